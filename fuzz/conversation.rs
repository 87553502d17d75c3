//! Fuzzing: plays arbitrary sequences of messages and local events to a core with a log.
//!
//! Checked properties: no panic, no fatal error; the commit index never decreases; committed entries keep
//! their term; an unconfirmed member sends and writes no data. The input is interpreted as a program, one
//! operation after another. Numbers in messages are near the core's numbers or the limits of their type:
//! random ones would almost all be rejected for the same reason.

use std::path::Path;

use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, EntryType, Message, MessageType};
use wal::testing::SimFs;
use wal::{Wal, WalOptions};

use super::Core;
use super::event::{CoreSetup, CoreTurn, Effects, Event};
use super::inquiry::Confirmation;
use crate::log::DurableState;
use crate::log::LogStore;
use crate::log::{PersistJob, persist};
use crate::wire::{BatchBuilder, BatchId, SnapshotOutcome, written};
use crate::{ChangeCheck, EmptyLog, LogIndex, LogPosition, Role, StoreState, Term};

const ID: u64 = 1;
/// Enough for a few elections and a log of some segments; more takes time without finding faults.
const OPERATIONS_MAX: usize = 256;

/// Plays `program` and panics if a property is violated.
#[doc(hidden)]
pub fn fuzzed_conversation(program: &[u8]) {
    let mut program = FuzzInput(program);
    let mut stage = CoreUnderTest::new(program.byte());
    for _ in 0..OPERATIONS_MAX {
        if program.0.is_empty() {
            break;
        }
        stage.operation(&mut program);
        stage.check();
    }
}

/// A core with its disk, and its input in flight.
struct CoreUnderTest {
    core: Core,
    wal: Wal<SimFs>,
    jobs: Vec<PersistJob>,
    handed: LogIndex,
    /// Terms of committed entries, as first observed.
    committed: Vec<(LogIndex, Term)>,
}

impl CoreUnderTest {
    /// Creates a follower of member 2 in term 3 with some entries, a member that has lost its store, or an
    /// unconfirmed one.
    fn new(kind: u8) -> CoreUnderTest {
        let setup = CoreSetup {
            id: ID,
            heartbeat_ticks: 1,
            election_ticks: 10,
            timeout_ticks: 10..11,
            apply_bytes_max: 1 << 20,
            entry_bytes_max: 1 << 20,
            catch_up_entries: 1,
            store: if kind & 1 == 0 { StoreState::Whole } else { StoreState::Lost },
            empty_log: if kind & 2 == 0 { EmptyLog::New } else { EmptyLog::Unconfirmed },
            removed_by: |_| None,
            keeps_voters: |_, _| false,
            change_check: ChangeCheck::default(),
            membership: None,
        };
        let options = WalOptions { segment_bytes: 8 << 10, salt: [7; 16] };
        let start = wal::LogPosition::default();
        let wal = Wal::create(SimFs::new(), Path::new("/log"), b"", start, options)
            .expect("a simulated disk without faults");
        let conf = ConfState { voters: vec![ID, 2, 3], ..ConfState::default() };
        let state = DurableState { conf, ..DurableState::default() };
        let none = LogPosition::default();
        let store = LogStore::open(Box::new(wal.reader()), state, none, none, none, 4096)
            .expect("an empty log needs no reading");
        let core = Core::new(&setup, store, LogIndex::ZERO).expect("a sound setup");
        let mut stage =
            CoreUnderTest { core, wal, jobs: Vec::new(), handed: LogIndex::ZERO, committed: Vec::new() };
        let entries = (1..=6).map(|index| entry(index, 1 + index / 3, EntryType::EntryNormal, 300)).collect();
        let append = Message { term: 3, commit: 4, entries, ..message(MessageType::MsgAppend, 2) };
        stage.hear(2, &append);
        stage.turn();
        stage.sync();
        stage
    }

    fn hear(&mut self, from: u64, message: &Message) {
        self.event(Event::Message { from, bytes: written(message) });
    }

    fn event(&mut self, event: Event) {
        self.core.handle(event).expect("no event of a peer is fatal");
    }

    fn operation(&mut self, program: &mut FuzzInput<'_>) {
        match program.byte() % 16 {
            0 => self.event(Event::Tick),
            1 => (0..program.byte() % 32).for_each(|_| {
                self.event(Event::Tick);
                self.turn();
            }),
            2 => self.sync(),
            3 => self.event(Event::Applied { index: self.handed }),
            4 => {
                let index = self.handed.min(self.core.commit());
                if let Some(term) = self.core.term_at(index).filter(|_| index > LogIndex::ZERO) {
                    self.event(Event::Checkpointed { at: LogPosition { index, term } });
                }
            }
            5 => drop(self.core.propose(&[batch(usize::from(program.byte()) * 8)])),
            6 => self.event(Event::ReadIndex { context: Bytes::copy_from_slice(&[program.byte(); 24]) }),
            7 => {
                let outcome =
                    [SnapshotOutcome::Sent, SnapshotOutcome::Failed][usize::from(program.byte() & 1)];
                self.event(Event::SnapshotReported { peer: 2 + u64::from(program.byte() & 1), outcome });
            }
            8 if self.core.role() != Role::Leader => {} // Only a leader transfers leadership.
            8 => self.event(Event::TransferLeader { to: 2 + u64::from(program.byte() & 1) }),
            9 => {
                let bytes = program.bytes();
                self.event(Event::Message { from: 2, bytes });
            }
            10 => {
                let until = LogPosition::new(program.number(8), program.number(4));
                let (term, is_alike) = (until.term, until.index.0 & 1 == 0);
                let until = Some(until).filter(|until| until.index > LogIndex::ZERO);
                let confirmations = [Confirmation::New, Confirmation::CatchUp { term, until, is_alike }];
                self.event(Event::Confirmed(confirmations[usize::from(program.byte() & 1)]));
            }
            11 => match program.byte() {
                peer @ 0..=127 => drop(self.core.answer_member(2 + u64::from(peer & 1))),
                _ => self.event(Event::Reseed),
            },
            _ => {
                let (peer, message) = self.message(program);
                self.hear(peer, &message);
            }
        }
        if program.byte() & 3 != 0 {
            self.turn();
        }
        if program.byte() & 3 == 0 {
            self.sync();
        }
    }

    /// Returns a message that a malicious peer could send.
    fn message(&self, program: &mut FuzzInput<'_>) -> (u64, Message) {
        use MessageType::*;
        let kinds = [
            MsgPropose,
            MsgAppend,
            MsgAppendResponse,
            MsgRequestVote,
            MsgRequestVoteResponse,
            MsgSnapshot,
            MsgHeartbeat,
            MsgHeartbeatResponse,
            MsgTimeoutNow,
            MsgReadIndex,
            MsgReadIndexResp,
            MsgRequestPreVote,
            MsgRequestPreVoteResponse,
        ];
        let kind = kinds[usize::from(program.byte()) % kinds.len()];
        let peer = 2 + u64::from(program.byte() & 1);
        let (term, last, commit) = (self.core.term().0, self.core.last_index().0, self.core.commit().0);
        let strange = program.byte() & 15 == 0;
        let mut made = message(kind, if strange { program.number(2) } else { peer });
        let forwarded = matches!(kind, MsgPropose | MsgReadIndex);
        made.term = if forwarded { 0 } else { program.number(term) };
        let base = if program.byte() & 1 == 0 { last } else { commit };
        made.index = program.number(base);
        let log_term = self.core.term_at(LogIndex(made.index)).filter(|_| program.byte() & 3 != 0);
        made.log_term = log_term.map_or(0, |term| term.0);
        made.commit = program.number(commit);
        let few = program.byte();
        made.reject = few & 1 == 1;
        if few & 6 == 6 {
            made.log_term = program.number(term);
            made.commit_term = program.number(term);
            made.reject_hint = program.number(last);
        }
        match kind {
            MsgAppend => {
                let (first, kinds) = (made.index.wrapping_add(1), program.byte());
                let of = |offset: u8| entry(first.wrapping_add(u64::from(offset)), 0, kind_of(kinds), 20);
                made.entries = (0..program.byte() % 5).map(of).collect();
                let term = made.term;
                for entry in made.entries.iter_mut() {
                    entry.term = term.min(program.number(term));
                }
            }
            MsgPropose | MsgReadIndex | MsgReadIndexResp => {
                made.entries = vec![entry(0, 0, kind_of(program.byte()), program.byte().into())].into();
                if kind != MsgPropose || program.byte() & 1 == 1 {
                    made.entries[0].data = {
                        let (byte, count) = (program.byte(), program.byte());
                        Bytes::from(vec![byte; count.into()])
                    };
                }
            }
            MsgAppendResponse if few & 24 == 24 => made.request_snapshot = program.number(last),
            MsgSnapshot => {
                let metadata = made.mut_snapshot().mut_metadata();
                (metadata.index, metadata.term) = (program.number(last), program.number(term));
                let voters = if program.byte() & 7 == 0 { vec![ID, 9] } else { vec![ID, 2, 3] };
                metadata.set_conf_state(ConfState { voters, ..ConfState::default() });
            }
            MsgRequestVote if few & 32 == 32 => made.context = Bytes::from_static(b"CampaignTransfer"),
            _ if few & 64 == 64 => made.context = program.bytes(),
            _ => {}
        }
        (peer, made)
    }

    fn turn(&mut self) {
        let turn = self.core.turn().expect("no message makes a turn fatal");
        let CoreTurn { effects: Effects { send, persist, .. }, committed, .. } = turn;
        let is_silent = send.is_empty() && persist.is_empty();
        assert!(is_silent || !self.core.is_unconfirmed(), "an unconfirmed member takes part");
        self.jobs.extend(persist);
        if let Some(last) = committed.last() {
            self.handed = last.at.index;
        }
    }

    fn sync(&mut self) {
        self.turn();
        if self.jobs.is_empty() {
            return;
        }
        let jobs = std::mem::take(&mut self.jobs);
        let (receipt, _) = persist(&mut self.wal, jobs).expect("a simulated disk without faults");
        self.event(Event::Durable(receipt.redeem().0));
    }

    fn check(&mut self) {
        let commit = self.core.commit();
        for (index, term) in &self.committed {
            assert!(*index <= commit, "the commit index went back");
            assert!(
                self.core.term_at(*index).is_none_or(|now| now == *term),
                "entry {index} changed its term"
            );
        }
        self.committed.extend(self.core.term_at(commit).map(|term| (commit, term)));
        self.committed.dedup();
    }
}

fn message(msg_type: MessageType, from: u64) -> Message {
    Message { msg_type, from, to: ID, ..Message::default() }
}

fn kind_of(byte: u8) -> EntryType {
    if byte & 15 == 15 { EntryType::EntryConfChangeV2 } else { EntryType::EntryNormal }
}

fn entry(index: u64, term: u64, entry_type: EntryType, bytes: usize) -> Entry {
    Entry { index, term, entry_type, data: batch(bytes), ..Entry::default() }
}

fn batch(bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new(BatchId { proposer: 2, nonce: 1, sequence: 1 }, bytes);
    builder.push(&vec![b'x'; bytes]);
    builder.finish()
}

/// The remaining input; zeros after its end.
struct FuzzInput<'p>(&'p [u8]);

impl FuzzInput<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn bytes(&mut self) -> Bytes {
        let length = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        Bytes::copy_from_slice(bytes)
    }

    /// Returns a number near `base`, a small one, or one near a limit.
    fn number(&mut self, base: u64) -> u64 {
        let byte = self.byte();
        let offset = u64::from(byte & 7);
        match byte >> 3 {
            0..=7 => base,
            8..=15 => base.saturating_add(offset),
            16..=21 => base.saturating_sub(offset),
            22..=26 => offset,
            27 => u64::MAX - offset,
            28 => (1 << 63) - 4 + offset,
            29 => (1 << 62) - 4 + offset,
            30 => base.saturating_add((1 << 32) - 4 + offset),
            _ => u64::from(self.byte()) << (8 * offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generates programs deterministically, so that every run of the tests plays the same ones.
    fn programs(count: u64) -> impl Iterator<Item = Vec<u8>> {
        (0..count).map(|seed| {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let next = std::iter::repeat_with(move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            });
            next.take(1500).collect()
        })
    }

    #[test]
    fn no_sequence_of_messages_ends_a_member() {
        for (seed, program) in programs(400).enumerate() {
            let played = std::panic::catch_unwind(|| fuzzed_conversation(&program));
            assert!(played.is_ok(), "program {seed}");
        }
    }
}
