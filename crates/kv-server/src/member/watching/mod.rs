//! The thread of the watch hub, and the streams that it serves.
//!
//! ```text
//!   entry applied ──wake──▶ ┌────────────┐ ──parcels──▶ Outbox ──wake──▶ stream's future ──▶ HTTP/2
//!                           │ hub thread │
//!   stream's future ──────▶ └────────────┘
//!        create, cancel, progress, review: bounded mailbox
//!        closed, read: a list that holds each stream at most once
//! ```
//!
//! * The applying thread never waits for the hub. It does one load of an atomic, and unparks the thread if
//!   that sleeps and has watchers.
//! * Nothing is dropped when the mailbox is full: the stream's future waits, and reads no further request.
//! * A review of permissions takes no place of its stream's requests, which a client that does not read
//!   keeps.
//! * At most [`stream::HANDED_BYTES_MAX`] bytes of a stream are outside of the hub and not encoded yet, or
//!   one parcel. The rest stays within the hub's bounds. The hub counts large parcels until they are sent; a
//!   stream that holds one for long is ended if others wait.
//! * History and previous values are read on the hub's thread, never by Raft's driver.
//!
//! Does not check permissions, and does not know HTTP/2.

mod stream; // a stream, between the hub's thread and its future

mod review; // watchers looked at again
mod run; // the thread

pub(crate) use run::WatchThread;
pub(crate) use stream::{WatchRequest, WatchStopped, WatchStream, Watching};

#[cfg(test)]
mod tests;
