//! Member to member: messages of Raft, carried as opaque bytes, and whole stores for members whose entries
//! left the log.
//!
//! ```text
//!   raft-node ─send─▶ queue ─▶ link ─one stream, all that waits in one batch─▶ server of the peer ─▶ receive
//!                 (one queue, one link and one TCP connection per peer and lane)
//!   raft-node ──send_snapshot──▶ sending ──a separate stream──▶ server of the peer ──▶ incoming ──▶ receive
//! ```
//!
//! * Sending never blocks. A full queue drops, and the peer is reported to Raft as unreachable.
//! * A message leaves a queue once: what a broken stream loses is never sent again by us.
//! * A heartbeat never waits for a megabyte of entries: each lane has its own connection.
//! * No message is accepted before both sides agree on the cluster and on their ids.
//!
//! Knows nothing of what a message says.

mod context; // the members, and bounds of messages

mod link; // keeps one stream open; what waits to be sent on it

mod questions; // what members ask each other

mod introduction; // addresses that the list does not hold, or no longer

mod confirming; // of this member, if its log was empty
mod pacing; // how fast
mod sending; // whole stores
mod transport; // what Raft sends through

mod leases; // leases, by way of the leader

mod connections; // connections with and without a hello, counted apart
mod server; // what the peer port answers

mod port; // its connections

pub(crate) use confirming::{FirstList, confirm};
pub(crate) use context::{Context, Levels};
pub(crate) use leases::{LeaseService, PendingLease};
pub(crate) use link::{bootstrapped_elsewhere, members_now, running_cluster};
pub(crate) use port::serve;
pub(crate) use questions::at_start as hashes_at_start;
pub(crate) use server::{CONNECTIONS_MAX, PeerServer};
pub(crate) use transport::Peers;

#[cfg(test)]
mod tests;
