//! The face that others see: cheap to clone, callable from any thread.
//!
//! | call | waits for | refused when |
//! |---|---|---|
//! | `propose`, `propose_change` | the command's outcome on this member | too much waits or is not applied |
//! | `read_point` | a quorum's word, then the machine | too many readers wait |
//! | `receive` ([`Inbox`], for peers) | nothing | too many bytes of peers wait: the message is dropped |
//! | `checkpointed`, `report_…`, `reseed` | nothing | never: they are few and small |
//! | `transfer_leadership` | another leader | this member does not lead, or no other member can take over |
//!
//! Nothing here waits for a lock longer than it takes to push on a queue; bounds are those of `queue.rs`.

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

/// One member, as the rest of the process uses it.
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
    /// May be called on any member. Dropping the future withdraws the command if it is in no batch yet;
    /// otherwise it may be on its way to other members. An error other than those that say so does not mean
    /// that it was not applied.
    pub async fn propose(&self, command: Bytes) -> Result<O, ProposeError> {
        self.queue(RequestOrigin::Client, command, Travel::Batched).await
    }

    /// As `propose`, for the member itself: clients that fill the bounds of what waits do not delay it.
    pub async fn propose_for_member(&self, command: Bytes) -> Result<O, ProposeError> {
        self.queue(RequestOrigin::Member, command, Travel::Batched).await
    }

    /// As `propose`, for a command that changes the membership: it is applied by
    /// [`crate::StateMachine::apply_change`], after the change before it.
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
        // A member that stops or fails drops the reply unanswered.
        answer.await.unwrap_or(Err(ProposeError::Stopped))
    }

    /// Waits until this member has applied everything that was committed, anywhere, when the call began, and
    /// returns an index up to which that is so. A read of the state machine made afterwards is linearizable.
    pub async fn read_point(&self) -> Result<LogIndex, ReadError> {
        self.read_point_of(RequestOrigin::Client).await
    }

    /// As `read_point`, for the member itself: clients that fill the bounds of what waits do not delay it.
    pub async fn read_point_for_member(&self) -> Result<LogIndex, ReadError> {
        self.read_point_of(RequestOrigin::Member).await
    }

    /// As `read_point`, within the bounds of who asks.
    pub async fn read_point_of(&self, origin: RequestOrigin) -> Result<LogIndex, ReadError> {
        let permit = self.shared.entrance.read(origin)?;
        let (to, answer) = oneshot::channel();
        let input = Input::Read { reply: PendingReply { to, permit } };
        self.shared.inbox.put(input).map_err(|_| ReadError::Stopped)?;
        answer.await.unwrap_or(Err(ReadError::Stopped))
    }

    /// The gauges, without disturbing the driver.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// The leader that this member knows, for those who wait until it is another one.
    pub fn leader_known(&self) -> watch::Receiver<Option<NodeId>> {
        self.shared.leader_known.subscribe()
    }

    /// How far the log of `member` is, as this leader knows it. None if this member does not lead or stops,
    /// or knows no such member.
    pub async fn progress_of(&self, member: NodeId) -> Option<Progress> {
        let (reply, answer) = oneshot::channel();
        self.shared.inbox.put(Input::Progress { of: member, reply }).ok()?;
        answer.await.ok().flatten()
    }

    /// The machine's store holds everything up to `at` durably: the log before it is needed for followers
    /// only.
    ///
    /// Durably means that a power cut right now would leave it there. Said too early, entries go that the
    /// next start would need; said late or never, the log only grows.
    pub fn checkpointed(&self, at: LogPosition) {
        let _ = self.shared.inbox.put(Input::Event(Event::Checkpointed { at }));
    }

    /// Asks `to` to take over and waits until this member follows another. Proposals wait meanwhile.
    pub async fn transfer_leadership(&self, to: NodeId) -> Result<(), TransferError> {
        self.move_leadership(Some(to)).await
    }

    /// Gives leadership to the voter whose log is furthest. `Ok` at once when this member does not lead.
    pub async fn hand_over(&self) -> Result<(), TransferError> {
        self.move_leadership(None).await
    }

    async fn move_leadership(&self, to: Option<NodeId>) -> Result<(), TransferError> {
        let (reply, answer) = oneshot::channel();
        self.shared.inbox.put(Input::HandOver { to, reply }).map_err(|_| TransferError::Stopped)?;
        answer.await.unwrap_or(Err(TransferError::Stopped))
    }

    /// The machine's state is wrong: this member asks the leader for a snapshot and installs it in place of
    /// that state. It keeps its log and its votes, and acknowledges entries meanwhile, but applies none.
    /// Ignored by a leader and by a lone voter. To be called again if [`crate::StateMachine::install`] does
    /// not follow.
    pub fn reseed(&self) {
        let _ = self.shared.inbox.put(Input::Event(Event::Reseed));
    }

    /// Stops the threads after what is being written; waiting callers get `Stopped`. Returns at once, see
    /// [`crate::Threads::join`].
    pub fn stop(&self) {
        self.shared.inbox.close();
    }
}

/// A member as the traffic of its peers reaches it, which knows no outcomes. Nothing here waits, and nothing
/// fails: a stopped member needs none of it.
pub trait Inbox: Send + Sync + 'static {
    /// Hands in bytes that peer `from` sent. Never blocks; a malformed message is dropped, and so is any when
    /// too many bytes wait already.
    fn receive(&self, from: NodeId, message: Bytes);
    /// The transport lost a message to `peer`, or the way to it.
    fn report_unreachable(&self, peer: NodeId);
    /// The stream of a snapshot to `peer` has ended; owed for each [`crate::Transport::send_snapshot`].
    fn report_snapshot(&self, peer: NodeId, outcome: SnapshotOutcome);
    /// The last index that this member knows to be committed.
    fn commit(&self) -> LogIndex;
    /// The leader that this member knows.
    fn leader(&self) -> Option<NodeId>;
    /// Asks the driver for what member `asker`, whose log is empty, is answered; see [`crate::Inquiry`]. Read
    /// by the driver and not from the gauges: the answer must know all that this member has said to others.
    /// The sender is dropped without an answer by a member that stops, and by a leader that answered the
    /// asker less than an election timeout ago and got acknowledgements from it since.
    fn answer_member(&self, asker: NodeId) -> oneshot::Receiver<PeerState>;
    /// As [`Handle::progress_of`].
    fn progress_of(&self, member: NodeId) -> Pin<Box<dyn Future<Output = Option<Progress>> + Send + '_>>;
    /// Whether this member takes no part before it is confirmed.
    fn is_unconfirmed(&self) -> bool;
    /// Returns what this member knows of its own start.
    fn start(&self) -> Start;
    /// The other members have answered this one, whose log was empty at its start.
    fn confirm(&self, confirmation: Confirmation);
    /// Another member has this membership. Ignored once this member is confirmed, or if its machine has a
    /// list.
    fn peer_membership(&self, membership: Membership);
}

impl<O: Send + 'static> Inbox for Handle<O> {
    fn receive(&self, from: NodeId, message: Bytes) {
        if !self.shared.entrance.receive(&message) {
            tracing::debug!(peer = from, bytes = message.len(), "message dropped: the inbox is full");
            return;
        }
        // A stopped member needs no messages.
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
