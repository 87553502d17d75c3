//! Appends without entries, which bring followers a commit index that has moved: they are not answered.
//!
//! The follower acknowledges the entries themselves. An acknowledgement that is lost is asked for again after
//! the next heartbeat, by an append that is answered. So are all appends to a follower that is probed. A
//! follower whose log does not fit, that asks for a snapshot, or that is in a later term, answers always.

use raft::ProgressState;
use raft::eraftpb::{Message, MessageType};

use super::Core;

/// The hint of an append that is not to be answered. Members that do not know the hint answer it.
pub(super) const NOT_ANSWERED: u64 = 1;

impl Core {
    /// Has raft-rs take in what may move this leader's commit index, and marks the appends that say so.
    pub(super) fn marking_notices(&mut self, action: impl FnOnce(&mut Core)) {
        let sent_before = self.raw.raft.msgs.len();
        action(self);
        let mut messages = std::mem::take(&mut self.raw.raft.msgs);
        for message in &mut messages[sent_before..] {
            let follower = self.raw.raft.prs().get(message.to);
            if message.msg_type == MessageType::MsgAppend
                && message.entries.is_empty()
                && follower.is_some_and(|follower| follower.state == ProgressState::Replicate)
            {
                message.reject_hint = NOT_ANSWERED;
            }
        }
        self.raw.raft.msgs = messages;
    }

    /// Has raft-rs take in an append, without its answer if none is wanted.
    pub(super) fn receive_append(&mut self, message: Message) {
        let is_notice = message.reject_hint == NOT_ANSWERED && message.entries.is_empty();
        let term = message.term;
        let sent_before = self.raw.raft.msgs.len();
        self.step(|raw| raw.step(message));
        if is_notice && self.term().0 == term {
            let mut number = 0;
            self.raw.raft.msgs.retain(|answer| {
                number += 1;
                number <= sent_before
                    || answer.msg_type != MessageType::MsgAppendResponse
                    || answer.reject
                    || answer.request_snapshot != raft::INVALID_INDEX
            });
        }
    }
}
