//! Raft, as the traffic of peers reaches it.

use std::pin::Pin;

use bytes::Bytes;
use raft_node::{Confirmation, LogIndex, Membership, PeerState, Progress, SnapshotOutcome};
use tokio::sync::oneshot;

/// Raft, as the peers' traffic reaches it.
pub trait Inbox: Send + Sync + 'static {
    fn receive(&self, from: u64, message: Bytes);
    fn report_unreachable(&self, peer: u64);
    /// How a snapshot's stream to `peer` ended.
    fn report_snapshot(&self, peer: u64, outcome: SnapshotOutcome);
    /// The last index that this member knows to be committed.
    fn commit(&self) -> LogIndex;
    /// What is answered to member `asker`, whose log is empty.
    fn answer_member(&self, asker: u64) -> oneshot::Receiver<PeerState>;
    /// How far a member's log is, if this member leads.
    fn progress_of(&self, member: u64) -> Pin<Box<dyn Future<Output = Option<Progress>> + Send + '_>>;
    /// Whether this member takes no part before it is confirmed.
    fn is_unconfirmed(&self) -> bool;
    fn confirm(&self, confirmation: Confirmation);
    /// Another member has these members, while this one has no list.
    fn peer_membership(&self, membership: Membership);
}

impl<O: Send + 'static> Inbox for raft_node::Handle<O> {
    fn receive(&self, from: u64, message: Bytes) {
        raft_node::Handle::receive(self, from, message);
    }

    fn report_unreachable(&self, peer: u64) {
        raft_node::Handle::report_unreachable(self, peer);
    }

    fn report_snapshot(&self, peer: u64, outcome: SnapshotOutcome) {
        raft_node::Handle::report_snapshot(self, peer, outcome);
    }

    fn commit(&self) -> LogIndex {
        self.status().commit
    }

    fn answer_member(&self, asker: u64) -> oneshot::Receiver<PeerState> {
        raft_node::Handle::answer_member(self, asker)
    }

    fn progress_of(&self, member: u64) -> Pin<Box<dyn Future<Output = Option<Progress>> + Send + '_>> {
        Box::pin(raft_node::Handle::progress_of(self, member))
    }

    fn is_unconfirmed(&self) -> bool {
        self.status().is_unconfirmed
    }

    fn confirm(&self, confirmation: Confirmation) {
        raft_node::Handle::confirm(self, confirmation);
    }

    fn peer_membership(&self, membership: Membership) {
        raft_node::Handle::peer_membership(self, membership);
    }
}
