//! The public interface of a member: cheap to clone, callable from any thread.
//!
//! | call | waits for | rejected when |
//! |---|---|---|
//! | `propose`, `propose_change` | the command's outcome on this member | too many are pending or unapplied |
//! | `read_point` | a quorum, then the machine | too many reads are pending |
//! | `receive` ([`Inbox`], for peers) | – | too many bytes of peers are pending: the message is dropped |
//! | `checkpointed`, `report_…`, `reseed` | – | never: they are few and small |
//! | `transfer_leadership` | another leader | this member does not lead, or no other member can take over |
//!
//! Locks are only held for the time of a queue operation; limits are enforced in `queue.rs`.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use super::queue::{PendingReply, RequestOrigin};
use super::shared::{Input, RuntimeShared, Status};
use crate::core::Event;
use crate::core::{Confirmation, PeerState, Start};
use crate::types::Travel;
use crate::{
    LogIndex, LogPosition, Membership, NodeId, Progress, ProposeError, ReadError, SnapshotOutcome,
    TransferError,
};

/// A member, as used by the rest of the process.
pub struct Handle<O> {
    pub(super) shared: Arc<RuntimeShared<O>>,
}

impl<O> Clone for Handle<O> {
    fn clone(&self) -> Self {
        Handle { shared: self.shared.clone() }
    }
}

impl<O: Send + 'static> Handle<O> {
    /// Replicates `command` and returns its outcome once it was applied on this member.
    ///
    /// May be called on any member. Dropping the future withdraws the command if it is not in a batch yet;
    /// otherwise it may already be in flight to other members. Unless an error states otherwise, the command
    /// may have been applied.
    pub async fn propose(&self, command: Bytes) -> Result<O, ProposeError> {
        self.queue(RequestOrigin::Client, command, Travel::Batched).await
    }

    /// Like `propose`, for the member itself: independent of the limits of clients.
    pub async fn propose_for_member(&self, command: Bytes) -> Result<O, ProposeError> {
        self.queue(RequestOrigin::Member, command, Travel::Batched).await
    }

    /// Like `propose`, for a command that changes the membership: it is applied by
    /// [`crate::StateMachine::apply_change`], after earlier changes.
    pub async fn propose_change(&self, command: Bytes) -> Result<O, ProposeError> {
        self.queue(RequestOrigin::Client, command, Travel::AsChange).await
    }

    async fn queue(&self, origin: RequestOrigin, command: Bytes, travel: Travel) -> Result<O, ProposeError> {
        let shared = &self.shared;
        let status = shared.status();
        let unapplied = status.commit.entries_since(status.applied);
        let permit = shared.entrance.propose(origin, command.len(), unapplied)?;
        let (to, answer) = oneshot::channel();
        let input = Input::Propose { command, travel, reply: PendingReply { to, permit } };
        shared.inbox.put(input).map_err(|_| ProposeError::Stopped)?;
        // A stopping or failing member drops the reply.
        answer.await.unwrap_or(Err(ProposeError::Stopped))
    }

    /// Waits until this member has applied all entries committed anywhere before the call, and returns an
    /// index up to which that is so. A later read of the state machine is linearizable.
    pub async fn read_point(&self) -> Result<LogIndex, ReadError> {
        self.read_point_of(RequestOrigin::Client).await
    }

    /// Like `read_point`, for the member itself: independent of the limits of clients.
    pub async fn read_point_for_member(&self) -> Result<LogIndex, ReadError> {
        self.read_point_of(RequestOrigin::Member).await
    }

    /// Like `read_point`, within the limits of the requester.
    pub async fn read_point_of(&self, origin: RequestOrigin) -> Result<LogIndex, ReadError> {
        let permit = self.shared.entrance.read(origin)?;
        let (to, answer) = oneshot::channel();
        let input = Input::Read { reply: PendingReply { to, permit } };
        self.shared.inbox.put(input).map_err(|_| ReadError::Stopped)?;
        answer.await.unwrap_or(Err(ReadError::Stopped))
    }

    /// Returns the gauges, without involving the driver.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Returns a watch on the leader known to this member.
    pub fn leader_known(&self) -> watch::Receiver<Option<NodeId>> {
        self.shared.leader_known.subscribe()
    }

    /// Returns the progress of `member` according to this leader. None if this member does not lead or
    /// stops, or the member is unknown.
    pub async fn progress_of(&self, member: NodeId) -> Option<Progress> {
        let (reply, answer) = oneshot::channel();
        self.shared.inbox.put(Input::Progress { of: member, reply }).ok()?;
        answer.await.ok().flatten()
    }

    /// Reports that the machine's store is durable up to `at`: only followers need the log before it.
    ///
    /// Durable means that it survives a power loss at this moment. If it is reported too early, entries are
    /// removed that the next start needs; if it is reported late or never, the log only grows.
    pub fn checkpointed(&self, at: LogPosition) {
        let _ = self.shared.inbox.put(Input::Event(Event::Checkpointed { at }));
    }

    /// Transfers leadership to `to` and waits until this member follows another. Proposals wait in the
    /// meantime.
    pub async fn transfer_leadership(&self, to: NodeId) -> Result<(), TransferError> {
        self.move_leadership(Some(to)).await
    }

    /// Transfers leadership to the voter with the longest log. Returns `Ok` immediately if this member does
    /// not lead.
    pub async fn hand_over(&self) -> Result<(), TransferError> {
        self.move_leadership(None).await
    }

    async fn move_leadership(&self, to: Option<NodeId>) -> Result<(), TransferError> {
        let (reply, answer) = oneshot::channel();
        self.shared.inbox.put(Input::HandOver { to, reply }).map_err(|_| TransferError::Stopped)?;
        answer.await.unwrap_or(Err(TransferError::Stopped))
    }

    /// Replaces a wrong machine state: this member requests a snapshot from the leader and installs it. It
    /// retains its log and its votes, and acknowledges entries in the meantime, but applies none. Ignored by
    /// a leader and by a lone voter. Must be repeated if [`crate::StateMachine::install`] does not follow.
    pub fn reseed(&self) {
        let _ = self.shared.inbox.put(Input::Event(Event::Reseed));
    }

    /// Stops the threads after the current write; pending calls fail with `Stopped`. Does not wait, see
    /// [`crate::Threads::join`].
    pub fn stop(&self) {
        self.shared.inbox.close();
    }
}

/// The interface for peer traffic, independent of the outcome type. Calls neither block nor fail: a stopped
/// member ignores them.
pub trait Inbox: Send + Sync + 'static {
    /// Passes bytes from peer `from`. Never blocks; a malformed message is dropped, as is any message while
    /// too many bytes are pending.
    fn receive(&self, from: NodeId, message: Bytes);
    /// Reports that the transport lost a message to `peer`, or the connection.
    fn report_unreachable(&self, peer: NodeId);
    /// Reports the result of a snapshot stream to `peer`; required for each
    /// [`crate::Transport::send_snapshot`].
    fn report_snapshot(&self, peer: NodeId, outcome: SnapshotOutcome);
    fn commit(&self) -> LogIndex;
    /// Returns the leader known to this member.
    fn leader(&self) -> Option<NodeId>;
    /// Requests the reply to member `asker`, which has an empty log; see [`crate::Inquiry`]. The driver
    /// creates it, because it must include everything that this member has sent, which the gauges may not.
    /// The sender is dropped without a reply by a stopping member, and by a leader that replied to the asker
    /// less than an election timeout ago and has received acknowledgements from it since.
    fn answer_member(&self, asker: NodeId) -> oneshot::Receiver<PeerState>;
    /// See [`Handle::progress_of`].
    fn progress_of(&self, member: NodeId) -> Pin<Box<dyn Future<Output = Option<Progress>> + Send + '_>>;
    /// Reports whether this member does not take part until it is confirmed.
    fn is_unconfirmed(&self) -> bool;
    /// Returns the facts that this member has about its start.
    fn start(&self) -> Start;
    /// Confirms this member, which was unconfirmed at its start, after the replies of the other members.
    fn confirm(&self, confirmation: Confirmation);
    /// Passes the membership according to another member. Ignored once this member is confirmed, or if its
    /// machine has a membership.
    fn peer_membership(&self, membership: Membership);
}

impl<O: Send + 'static> Inbox for Handle<O> {
    fn receive(&self, from: NodeId, message: Bytes) {
        if !self.shared.entrance.receive(&message) {
            tracing::debug!(peer = from, bytes = message.len(), "message dropped: the inbox is full");
            return;
        }
        // A stopped member ignores messages.
        let _ = self.shared.inbox.put(Input::Event(Event::Message { from, bytes: message }));
    }

    fn report_unreachable(&self, peer: NodeId) {
        let _ = self.shared.inbox.put(Input::Event(Event::Unreachable { peer }));
    }

    fn report_snapshot(&self, peer: NodeId, outcome: SnapshotOutcome) {
        let _ = self.shared.inbox.put(Input::Event(Event::SnapshotReported { peer, outcome }));
    }

    fn commit(&self) -> LogIndex {
        self.status().commit
    }

    fn leader(&self) -> Option<NodeId> {
        self.status().leader
    }

    fn answer_member(&self, asker: NodeId) -> oneshot::Receiver<PeerState> {
        let (reply, answer) = oneshot::channel();
        let _ = self.shared.inbox.put(Input::AnswerMember { asker, reply });
        answer
    }

    fn progress_of(&self, member: NodeId) -> Pin<Box<dyn Future<Output = Option<Progress>> + Send + '_>> {
        Box::pin(Handle::progress_of(self, member))
    }

    fn is_unconfirmed(&self) -> bool {
        self.status().is_unconfirmed
    }

    fn start(&self) -> Start {
        self.status().start
    }

    fn confirm(&self, confirmation: Confirmation) {
        let _ = self.shared.inbox.put(Input::Event(Event::Confirmed(confirmation)));
    }

    fn peer_membership(&self, membership: Membership) {
        let _ = self.shared.inbox.put(Input::Event(Event::PeerMembership(membership)));
    }
}
