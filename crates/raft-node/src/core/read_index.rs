//! ReadIndex requests of followers. The leader responds without a heartbeat round if the request itself
//! proves a majority.
//!
//! A leader may respond with its commit index if, at some time after the read started, no other leader could
//! have committed an entry unknown to this one. raft-rs confirms that by a heartbeat round. With two or
//! three voters the request confirms it as well:
//!
//! * A leader of a later term has the votes of a majority. This leader and the follower form a majority
//!   themselves. So one of them voted for the later leader, durably, and has had its term since then.
//! * The follower sent the request to the leader of its term, after its reads had started. So it had not
//!   voted in a later term. This member led that term and still leads, so it had not voted in a later term
//!   either.
//! * Hence no later leader had been elected when the request was sent. This leader has all entries committed
//!   by then, because it has committed an entry in its own term.
//!
//! * A membership change that is not applied here may be in effect elsewhere. Until it is applied, requests
//!   do not count as proof.
//!
//! The delay of the request and a restart of the follower do not matter. With more than three voters the two
//! are not a majority, and the request takes a heartbeat round. So does a read on the leader.

use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};

use super::Core;
use crate::{LogIndex, NodeId, Role};

impl Core {
    /// Starts a round for reads of this member. A follower sends a request to the leader.
    pub(super) fn begin_read(&mut self, name: Bytes) {
        if let Some(context) = self.context_of(name) {
            self.raw.read_index(context.to_vec());
        }
    }

    /// Starts a round for reads of another member.
    pub(super) fn begin_read_for(&mut self, mut request: Message) {
        for entry in &mut request.entries {
            let Some(context) = self.context_of(std::mem::take(&mut entry.data)) else { return };
            entry.data = context;
        }
        self.step(|raw| raw.step(request));
    }

    /// Returns the context of a round. None on a leader without a committed entry in its term: raft-rs would
    /// drop the round.
    fn context_of(&mut self, name: Bytes) -> Option<Bytes> {
        match self.role() {
            Role::Leader if !self.raw.raft.commit_to_current_term() => None,
            Role::Leader => Some(self.read_names.number(self.term(), name)),
            Role::Follower | Role::Candidate => Some(name),
        }
    }

    /// Returns the confirmed rounds of this member by name, with their read index.
    pub(super) fn confirmed_reads(&mut self, states: Vec<raft::ReadState>) -> Vec<(Bytes, LogIndex)> {
        let named =
            |state: raft::ReadState| (self.read_names.name(state.request_ctx.into()), LogIndex(state.index));
        states.into_iter().map(named).collect()
    }

    /// Replaces the numbers in responses to other members with the original names.
    pub(super) fn name_answers(&mut self, messages: &mut [Message]) {
        let answers = messages.iter_mut().filter(|message| message.msg_type == MessageType::MsgReadIndexResp);
        for entry in answers.flat_map(|message| message.entries.iter_mut()) {
            entry.data = self.read_names.name(std::mem::take(&mut entry.data));
        }
    }
}

impl Core {
    /// Reports whether a request from `peer` proves by itself that this leader may respond. A request
    /// relayed by another member does not: it takes a heartbeat round.
    pub(super) fn read_request_is_proof(&self, peer: NodeId, request: &Message) -> bool {
        let voters = self.voters();
        let majority = 2 * 2 > voters.len() || base::mutant("minority-reads");
        self.role() == Role::Leader
            && majority
            && peer == request.from
            && voters.contains(&peer)
            && voters.contains(&self.raw.raft.id)
            && (!self.raw.raft.has_pending_conf() || base::mutant("reads-by-past-members"))
            && (self.raw.raft.commit_to_current_term() || base::mutant("unsettled-reads"))
    }

    /// Responds with the current commit index, under the name that the follower gave its request.
    pub(super) fn answer_read_request(&mut self, request: Message) {
        assert_eq!(self.role(), Role::Leader, "an answer without proof");
        self.answers.push(Message {
            msg_type: MessageType::MsgReadIndexResp,
            from: self.raw.raft.id,
            to: request.from,
            term: self.term().0,
            index: self.commit().0,
            entries: request.entries,
            ..Message::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use raft::eraftpb::Entry;

    use super::*;
    use crate::core::event::Event;
    use crate::core::tests::{CoreBench, bench};
    use crate::wire::{Outbound, decode};

    fn from_peer(msg_type: MessageType, term: u64) -> Message {
        Message { msg_type, from: 2, to: 1, term, ..Message::default() }
    }

    fn request() -> Message {
        let name = Entry { data: Bytes::from_static(b"name"), ..Entry::default() };
        Message { entries: vec![name].into(), ..from_peer(MessageType::MsgReadIndex, 0) }
    }

    /// Handles the message and its effects, syncs included.
    fn receive(bench: &mut CoreBench, message: Message) {
        let effects = bench.hear(message);
        if !effects.persist.is_empty() {
            bench.sync(effects.persist);
        }
        bench.settle();
    }

    /// Returns the index and the name in the only message, if any.
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
        assert_eq!(answer(bench.hear(request()).send), None, "a follower that knows no leader");
        (0..11).for_each(|_| bench.core.handle(Event::Tick).unwrap());
        bench.settle();
        bench.core.handle(Event::Tick).unwrap();
        receive(&mut bench, from_peer(MessageType::MsgRequestPreVoteResponse, 1));
        receive(&mut bench, from_peer(MessageType::MsgRequestVoteResponse, 1));
        assert_eq!((bench.core.role(), bench.core.commit()), (Role::Leader, LogIndex::ZERO));
        assert_eq!(answer(bench.hear(request()).send), None, "it does not know yet what is committed");
        let nothing = format!("{:?}", crate::core::read_names::ReadNames::default());
        assert_eq!(format!("{:?}", bench.core.read_names), nothing, "what is not begun is not kept");
        receive(&mut bench, Message { index: 1, ..from_peer(MessageType::MsgAppendResponse, 1) });
        assert_eq!(answer(bench.hear(request()).send), Some((1, Bytes::from_static(b"name"))));
        let of_a_stranger = Message { from: 9, ..request() };
        assert_eq!(answer(bench.hear(of_a_stranger.clone()).send), None);
        // A stranger's relayed request is rejected; another member's takes a heartbeat round.
        for (from, sent) in [(9, 0), (3, 2)] {
            let bytes = crate::wire::encode(&Message { from, ..of_a_stranger.clone() });
            bench.core.handle(Event::Message { from: 2, bytes }).unwrap();
            let lanes: Vec<_> =
                bench.core.turn().unwrap().effects.send.iter().map(|message| message.lane).collect();
            assert_eq!(lanes, vec![crate::Lane::Urgent; sent], "from {from}");
        }
    }
}
