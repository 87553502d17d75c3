//! The watch hub's thread, and the streams that it serves.
//!
//! ```text
//!   entry applied ──wake──▶ ┌────────────┐ ──parcels──▶ Outbox ──wake──▶ stream's future ──▶ HTTP/2
//!                           │ hub thread │
//!   stream's future ──────▶ └────────────┘
//!        create, cancel, progress, review: bounded mailbox
//!        closed, read: a list that contains each stream at most once
//! ```
//!
//! * The apply thread never waits for the hub. It loads an atomic, and unparks the hub thread if that is
//!   parked and has watchers.
//! * No request is dropped when the mailbox is full: the stream's future waits, and reads no further request.
//! * A permission review needs no request permit, since a client that does not read may hold all of them.
//! * Per stream, at most [`stream::HANDED_BYTES_MAX`] bytes, or a single parcel, have left the hub and are
//!   not encoded yet. The hub limits the rest. It counts large parcels until they are sent, and closes
//!   streams that hold one for long while other streams wait for memory.
//! * History and previous values are read on the hub thread, never by Raft's driver.
//!
//! Does not check permissions, and does not depend on HTTP/2.

mod stream; // a stream's state shared by hub and future

mod review; // permission review of watchers
mod run; // the thread

pub(crate) use run::WatchThread;
pub(crate) use stream::{WatchRequest, WatchStopped, WatchStream, Watching};

#[cfg(test)]
mod tests;
