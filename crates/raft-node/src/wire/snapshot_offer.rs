//! What a leader offers to a follower that needs its state, and what came of it.

use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};

use super::message::encode;
use crate::types::{LogIndex, LogPosition, NodeId, Term};

/// How a snapshot's stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotOutcome {
    /// The follower has all of it, message included.
    Sent,
    /// It does not, for any reason; Raft asks again if it is still needed.
    Failed,
}

/// A follower needs this member's state: the process streams its newest checkpoint and then owes
/// [`crate::Event::SnapshotReported`].
///
/// The checkpoint may be newer than the offer. What follows it is in the log as long as the stream lasts.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotOffer {
    pub to: NodeId,
    /// The leader's term: in a later one the follower will take no notice of the message.
    pub term: Term,
    /// The oldest checkpoint that will do.
    pub at: LogPosition,
    message: Message,
}

impl SnapshotOffer {
    pub(crate) fn new(message: Message, at: LogPosition) -> Self {
        assert_eq!(message.msg_type, MessageType::MsgSnapshot, "an offer of something else");
        let is_in_log = at.index > LogIndex::ZERO && at.term > Term(0);
        assert!(is_in_log && message.to != 0, "an offer without position or receiver");
        SnapshotOffer { to: message.to, term: Term(message.term), at, message }
    }

    /// The message that the follower hands to its own Raft once it has staged the checkpoint of `at`
    /// wholly. A checkpoint is committed state, so any that is not older than the offer is as good as the
    /// offer's.
    pub fn message(&self, at: LogPosition) -> Bytes {
        let is_newer = at.index >= self.at.index && at.term >= self.at.term;
        assert!(is_newer, "a checkpoint at {}, older than offered", at.index);
        let mut message = self.message.clone();
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (at.index.0, at.term.0);
        encode(&message)
    }
}
