//! Leader messages without a response: heartbeats, and appends without entries that announce a new commit
//! index.
//!
//! The follower acknowledges the entries themselves. A lost acknowledgement is requested again after the
//! next heartbeat, by an append with a response. All appends to a follower in probe state have responses. A
//! follower always responds if its log does not match, if it requests a snapshot, or if it is in a later
//! term.
//!
//! A heartbeat response reports that the follower is active, and the progress of its log and state. It is
//! therefore requested until the follower was active since the leader's last quorum check, which happens
//! once per election timeout, and while the follower lags. A heartbeat that confirms a read always has
//! a response.

use raft::ProgressState;
use raft::eraftpb::{Message, MessageType};

use super::Core;
use super::membership::may_report;
use crate::LogIndex;

/// Hint of an append without a response. Members that do not support it respond.
pub(super) const NOT_ANSWERED: u64 = 1;

impl Core {
    /// Runs an action that may raise this leader's commit index, or a tick, and marks the messages that need
    /// no response.
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

    /// Handles an append or a heartbeat, and suppresses the response if none is requested.
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
