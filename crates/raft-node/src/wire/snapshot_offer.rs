//! What a leader offers to a follower that needs its state, and what came of it.

use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};

use super::message::encode;
use crate::types::Position;

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
    pub to: u64,
    /// The leader's term: in a later one the follower will take no notice of the message.
    pub term: u64,
    /// The oldest checkpoint that will do.
    pub at: Position,
    message: Message,
}

impl SnapshotOffer {
    pub(crate) fn new(message: Message, at: Position) -> Self {
        assert_eq!(message.msg_type, MessageType::MsgSnapshot, "an offer of something else");
        assert!(at.index > 0 && at.term > 0 && message.to != 0, "an offer without position or receiver");
        SnapshotOffer { to: message.to, term: message.term, at, message }
    }

    /// The message that the follower hands to its own Raft once it has staged the checkpoint of (`index`,
    /// `term`) wholly. A checkpoint is committed state, so any that is not older than the offer is as good as
    /// the offer's.
    pub fn message(&self, index: u64, term: u64) -> Bytes {
        assert!(
            index >= self.at.index && term >= self.at.term,
            "a checkpoint at {index}, older than offered"
        );
        let mut message = self.message.clone();
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (index, term);
        encode(&message)
    }
}
