//! A follower's question for a read point, answered without asking anybody else where that is proof enough.
//!
//! A leader may name its commit index to a reader if, at some moment after the reader asked, nobody else could have committed
//! anything unknown to it. raft-rs finds out by a round of heartbeats. But the question is such a word already:
//!
//! * A leader of a later term has the votes of a majority. Where this leader and the follower are a majority themselves, one of
//!   them voted for it, durably, and knew of its term from then on.
//! * The follower asked the leader that it followed in its own term, after its readers had asked it. So it had not voted in any
//!   term later than that; and this member, which led that term, is leader still and so has not either.
//! * Hence no later leader had been elected when the question left, and what was committed by then is known here: this leader has
//!   committed in its own term.
//!
//! It does not matter how late the question arrives, or whether the follower has been restarted meanwhile. With more than three
//! voters the two are no majority, and the question takes raft-rs' way; so does a question of this member's own.

use raft::eraftpb::{Message, MessageType};

use super::Core;
use crate::Role;

impl Core {
    /// Whether a question of `from` says by itself that this leader may answer it.
    pub(super) fn question_is_proof(&self, from: u64) -> bool {
        let voters = self.voters();
        let majority = 2 * 2 > voters.len() || cfg!(feature = "mutant-minority-reads");
        self.role() == Role::Leader
            && majority
            && voters.contains(&from)
            && self.raw.raft.commit_to_current_term()
    }

    /// The answer: the commit index of now, under the name that the follower gave its question.
    pub(super) fn answer_question(&mut self, question: Message) {
        assert!(self.question_is_proof(question.from), "an answer without proof");
        self.answers.push(Message {
            msg_type: MessageType::MsgReadIndexResp,
            from: self.raw.raft.id,
            to: question.from,
            term: self.term(),
            index: self.commit(),
            entries: question.entries,
            ..Message::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use raft::eraftpb::Entry;

    use super::*;
    use crate::core::tests::{Bench, bench};
    use crate::event::Event;
    use crate::message::{Outbound, decode};

    fn from_peer(msg_type: MessageType, term: u64) -> Message {
        Message { msg_type, from: 2, to: 1, term, ..Message::default() }
    }

    fn question() -> Message {
        let name = Entry { data: Bytes::from_static(b"name"), ..Entry::default() };
        Message { entries: vec![name].into(), ..from_peer(MessageType::MsgReadIndex, 0) }
    }

    /// The message and everything that follows from it, syncs included.
    fn tell(bench: &mut Bench, message: Message) {
        let effects = bench.hear(message);
        if !effects.persist.is_empty() {
            bench.sync(effects.persist);
        }
        bench.settle();
    }

    /// The index and the name in the only message, if there is one.
    fn answer(sent: Vec<Outbound>) -> Option<(u64, Bytes)> {
        let sent: Vec<_> =
            sent.into_iter().map(|message| decode(1, message.to, message.bytes).unwrap()).collect();
        let [answer] = &sent[..] else { return None };
        assert_eq!((answer.msg_type, answer.to), (MessageType::MsgReadIndexResp, 2));
        Some((answer.index, answer.entries[0].data.clone()))
    }

    #[test]
    fn a_leader_answers_once_it_has_committed_in_its_term() {
        let mut bench = bench(&[1, 2, 3], 1 << 20);
        assert_eq!(answer(bench.hear(question()).send), None, "a follower that knows no leader");
        (0..11).for_each(|_| bench.core.handle(Event::Tick).unwrap());
        bench.settle();
        bench.core.handle(Event::Tick).unwrap();
        tell(&mut bench, from_peer(MessageType::MsgRequestPreVoteResponse, 1));
        tell(&mut bench, from_peer(MessageType::MsgRequestVoteResponse, 1));
        assert_eq!((bench.core.role(), bench.core.commit()), (Role::Leader, 0));
        assert_eq!(answer(bench.hear(question()).send), None, "it does not know yet what is committed");
        tell(&mut bench, Message { index: 1, ..from_peer(MessageType::MsgAppendResponse, 1) });
        assert_eq!(answer(bench.hear(question()).send), Some((1, Bytes::from_static(b"name"))));
        let of_a_stranger = Message { from: 9, ..question() };
        assert_eq!(answer(bench.hear(of_a_stranger).send), None);
    }
}
