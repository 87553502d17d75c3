//! raft-rs' asynchronous ready: what leaves now, what goes to the disk first, and what the disk has
//! confirmed.
//!
//! ```text
//!   ready ─┬─ messages of a leader ────────────────▶ send, or offers of snapshots
//!          ├─ entries, state, restart ─▶ job ─sync─▶ Event::Durable ─▶ on_persist_ready
//!          └─ promises ───────────────▶ in the job, or sent if nothing is under way
//! ```
//!
//! * Readies are numbered; a job has the number of its ready, and `Durable` of one covers all before it.
//! * Several jobs may be under way: the log thread takes all that wait and syncs once.
//! * A ready without a job counts as persisted as soon as every job before it is.
//!
//! Which ready needs a job:
//!
//! | in the ready | job |
//! |---|---|
//! | entries, a new term or vote, a snapshot | yes: raft-rs says that they must be synced |
//! | promises while a job is under way | yes, one without bytes: it keeps their place after that sync |
//! | promises, and nothing under way | no: what they promise is durable already |
//! | a commit index that moved | no: it is written with the next job that is needed anyway |

use raft::eraftpb::{EntryType, HardState, Message, MessageType};

use super::Core;
use super::event::CoreTurn;
use crate::log::{PersistJob, Restart};
use crate::wire::encode_all;
use crate::{Fatal, LogIndex, Role};

impl Core {
    /// One round of raft-rs' asynchronous ready.
    ///
    /// The order is its contract: everything in the ready is taken, the log store holds the entries, and only
    /// then is the ready advanced. That the entries are on disk is reported later, by
    /// [`crate::Event::Durable`] of the job's number; readies in between are allowed, and one that needs no
    /// job is persisted as soon as all before it are.
    pub(super) fn take_ready(&mut self, turn: &mut CoreTurn) -> Result<(), Fatal> {
        let mut ready = self.raw.ready();
        let number = ready.number();
        assert!(number > self.newest, "readies are numbered in order");
        self.newest = number;
        let mut messages = self.offer_snapshots(ready.take_messages(), &mut turn.effects);
        self.mark_requests_to_the_other_of_two(&mut messages);
        turn.effects.send.extend(encode_all(messages));
        turn.confirmed
            .extend(ready.take_read_states().into_iter().map(|r| (r.request_ctx.into(), LogIndex(r.index))));
        self.note_vote(ready.hs(), number);
        let mut persisted = self.offer_snapshots(ready.take_persisted_messages(), &mut turn.effects);
        self.mark_requests_to_the_other_of_two(&mut persisted);
        self.report_applied(&mut persisted);
        let (promises, free): (Vec<_>, Vec<_>) =
            persisted.into_iter().partition(|message| self.promises_durability(message));
        turn.effects.send.extend(encode_all(free));
        let promises = encode_all(promises);
        let entries = ready.take_entries();
        let committed = ready.take_committed_entries();
        let changes = committed.iter().filter(|entry| entry.entry_type == EntryType::EntryConfChange);
        let uncertain = self.uncertain.len();
        self.uncertain.extend(changes.map(|entry| (LogIndex(entry.index), number)));
        let commits_change = self.uncertain.len() > uncertain;
        let must_sync = ready.must_sync() || commits_change;
        if let Some(hard) = ready.hs().cloned() {
            self.raw.mut_store().state.hard = hard;
            self.state_due = true;
        }
        self.note_part_taken(!entries.is_empty() || self.vote_unsynced == Some(number));
        let restart = (!ready.snapshot().is_empty()).then(|| self.restart(number, ready.snapshot()));
        // raft-rs reads the entries back from the store as soon as the ready is advanced.
        self.raw.mut_store().append(&entries);
        self.raw.advance_append_async(ready);
        self.state_due |= commits_change;
        if must_sync || (!promises.is_empty() && !self.unsynced.is_empty()) {
            let state = std::mem::take(&mut self.state_due).then(|| self.raw.store().state.encode());
            self.unsynced.push_back(number);
            turn.effects.persist.push(PersistJob {
                number,
                restart,
                entries,
                state,
                promises,
                release: None,
            });
            if base::mutant("leader-counts-unsynced") {
                self.raw.on_persist_ready(number);
            }
        } else {
            // Nothing new to make durable and nothing before it under way: these promises are kept already.
            assert!(restart.is_none(), "a log begins anew without a sync");
            turn.effects.send.extend(promises);
            self.acknowledge_idle();
        }
        self.hand_out(committed, turn)
    }

    /// The log begins anew after a snapshot: in memory now, on disk with job `number`.
    ///
    /// In between, raft-rs sees a log that starts at the snapshot, while the log thread still has the old
    /// one. Nothing asks the files meanwhile: what follows the snapshot is in the store's cache until it is
    /// synced.
    fn restart(&mut self, number: u64, snapshot: &raft::eraftpb::Snapshot) -> Restart {
        let at = super::state::position(snapshot);
        self.begin_restart(number, at);
        let store = self.raw.mut_store();
        store.restore(at);
        // That of the leader when it offered. The machine's own follows with the install.
        store.state.conf = snapshot.get_metadata().get_conf_state().clone();
        // What the new log knows committed when there is nothing in it yet. A later commit comes with its
        // entries.
        let mut state = store.state.clone();
        assert!(state.hard.commit >= at.index.0, "a snapshot of what is not committed");
        state.hard.commit = at.index.0;
        Restart { at, state: state.encode() }
    }

    /// Remembers which job makes a new term or vote durable.
    fn note_vote(&mut self, hard: Option<&HardState>, number: u64) {
        let Some(hard) = hard else { return };
        let before = &self.raw.store().state.hard;
        assert!(hard.term >= before.term, "terms never go back");
        assert!(hard.commit >= before.commit, "what was committed stays committed");
        if (hard.term, hard.vote) != (before.term, before.vote) {
            self.vote_unsynced = Some(number);
        }
    }

    /// raft-rs holds back everything that a follower or candidate says until all before it is synced. Some of
    /// it says nothing about this member's disk, and readers and writers wait for it: what is forwarded for
    /// others, and the answer to a heartbeat, which only says that this member was in the leader's term when
    /// it came. That must not be said of a term that a crash could take back.
    fn promises_durability(&self, message: &Message) -> bool {
        match message.msg_type {
            _ if base::mutant("early-promises") => false,
            MessageType::MsgPropose | MessageType::MsgReadIndex => false,
            MessageType::MsgHeartbeatResponse => {
                self.vote_unsynced.is_some() && !base::mutant("early-heartbeat-answers")
            }
            _ => true,
        }
    }

    /// A sync covered the job `number` and all before it. This is where a leader counts its own copy of an
    /// entry, and where a lone voter commits.
    pub(super) fn durable(&mut self, number: u64) {
        assert!(self.unsynced.contains(&number), "a sync of job {number}, which is not under way");
        while self.unsynced.front().is_some_and(|first| *first <= number) {
            self.unsynced.pop_front();
        }
        self.vote_unsynced = self.vote_unsynced.filter(|job| *job > number);
        self.uncertain.retain(|(_, job)| *job > number);
        self.marking_notices(|core| core.raw.on_persist_ready(number));
        self.acknowledge_idle();
        self.restarted(number);
    }

    /// Whether the owner should wake for a sync. If not, it hears of the sync together with what comes next,
    /// a tick at the latest: a leader's copy counts with a follower's acknowledgement, and a follower applies
    /// what is committed.
    pub fn waits_for_sync(&self) -> bool {
        let raft = &self.raw.raft;
        let waits_for_disk_alone = self.vote_unsynced.is_some()
            || !self.uncertain.is_empty()
            || !self.forwarded.is_empty()
            || !self.changes.is_empty()
            || !self.snapshots.restarting.is_empty();
        let is_acknowledged = |(id, follower): (&u64, &raft::Progress)| {
            *id != raft.id && follower.matched > raft.raft_log.committed
        };
        let waits = match self.role() {
            Role::Leader => self.voters().len() == 1 || raft.prs().iter().any(is_acknowledged),
            Role::Follower => self.stable < self.commit(),
            Role::Candidate => true,
        };
        (waits || waits_for_disk_alone) && !base::mutant("unheard-syncs")
    }

    /// Readies without a job count as persisted once every job before them is.
    fn acknowledge_idle(&mut self) {
        if self.unsynced.is_empty() {
            self.raw.on_persist_ready(self.newest);
        }
    }
}
