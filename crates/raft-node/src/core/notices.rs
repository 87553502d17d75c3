//! Messages of a leader that followers do not answer: heartbeats, and appends without entries, which bring a
//! commit index that has moved.
//!
//! The follower acknowledges the entries themselves. An acknowledgement that is lost is asked for again after
//! the next heartbeat, by an append that is answered. So are all appends to a follower that is probed. A
//! follower whose log does not fit, that asks for a snapshot, or that is in a later term, answers always.
//!
//! An answer to a heartbeat says that the follower is there, and how far its log and its state are. So it is
//! asked for until the follower was heard since the leader last counted who is there, which is once in each
//! election timeout, and while the follower lacks something. One that confirms a read is always answered.

use raft::ProgressState;
use raft::eraftpb::{Message, MessageType};

use super::Core;
use super::membership::may_report;
use crate::LogIndex;

/// The hint of an append that is not to be answered. Members that do not know the hint answer it.
pub(super) const NOT_ANSWERED: u64 = 1;

impl Core {
    /// Has raft-rs take in what may move this leader's commit index, or a tick, and marks the messages that
    /// need no answer.
    pub(super) fn marking_notices(&mut self, action: impl FnOnce(&mut Core)) {
        let sent_before = self.raw.raft.msgs.len();
        action(self);
        let mut messages = std::mem::take(&mut self.raw.raft.msgs);
        for message in &mut messages[sent_before..] {
            let follower = self.raw.raft.prs().get(message.to);
            let Some(follower) = follower.filter(|follower| follower.state == ProgressState::Replicate)
            else {
                continue;
            };
            let is_notice = match message.msg_type {
                MessageType::MsgAppend => message.entries.is_empty(),
                MessageType::MsgHeartbeat => {
                    let last = self.last_index();
                    let has_all =
                        LogIndex(follower.matched) == last && self.reports.applied(message.to) == Some(last);
                    let is_heard = follower.recent_active || base::mutant("unanswered-heartbeats");
                    message.context.is_empty() && has_all && is_heard
                }
                _ => false,
            };
            if is_notice {
                message.reject_hint = NOT_ANSWERED;
            }
        }
        self.raw.raft.msgs = messages;
    }

    /// Has raft-rs take in an append or a heartbeat, without its answer if none is wanted.
    pub(super) fn receive_notice(&mut self, message: Message) {
        let is_notice =
            message.reject_hint == NOT_ANSWERED && message.entries.is_empty() && message.context.is_empty();
        let term = message.term;
        let sent_before = self.raw.raft.msgs.len();
        self.step(|raw| raw.step(message));
        if is_notice && self.term().0 == term {
            let mut number = 0;
            self.raw.raft.msgs.retain(|answer| {
                number += 1;
                number <= sent_before || !may_report(answer) || answer.request_snapshot != raft::INVALID_INDEX
            });
        }
    }
}
