//! Peer communication: Raft messages, carried as opaque bytes, and snapshots for followers that need
//! truncated log entries.
//!
//! ```text
//!   raft-node ─send─▶ queue ─▶ link ─one stream, queued messages batched─▶ server of the peer ─▶ receive
//!                 (one queue, link and TCP connection per peer and lane)
//!   raft-node ──send_snapshot──▶ sending ──a separate stream──▶ server of the peer ──▶ incoming ──▶ receive
//! ```
//!
//! * Sending never blocks. Messages to a full queue are dropped, and the peer is reported to Raft as
//!   unreachable.
//! * Messages lost with a broken stream are not retransmitted; Raft handles the loss.
//! * Heartbeats do not wait for megabytes of entries: each lane has its own connection.
//! * Messages are accepted only after both sides agree on the cluster and their IDs.

mod context; // membership, and limits of messages

mod link; // one outgoing stream and its queue

mod questions; // requests between members

mod introduction; // members at unlisted addresses

mod confirming; // membership check of a member with an empty log
mod pacing; // rate of a snapshot
mod sending; // snapshots
mod transport; // implementation of Raft's transport

mod leases; // lease requests to the leader

mod connections; // limits of incoming connections
mod server; // requests to the peer port

mod port; // accepts connections

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
