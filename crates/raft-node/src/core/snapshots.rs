//! Raft snapshots: a leader's offers, a follower's installs, and what of the log may go.
//!
//! ```text
//!   leader    needs an entry that is gone ──▶ raft-rs: MsgSnapshot ──▶ offer ──▶ process streams it
//!             asked by a member whose store is lost ─────────────────▶ offer          └─▶ SnapshotReported
//!   follower  MsgSnapshot, its state staged ─┬─ accepted ─▶ log restarts ──sync──▶ install ──▶ Applied
//!                                            ├─ store lost, log reaches it ──────▶ install
//!                                            └─ of no use ─▶ ignored: what is staged may go
//!   both      Checkpointed ──▶ trim: whole segments that checkpoint and catch-up entries do not need
//! ```
//!
//! * A snapshot is the leader's newest durable checkpoint, as it is; this file deals in positions and never
//!   sees data.
//! * The restart of the log is the commit point of an install: the machine is notified only after it is
//!   durable, and until the machine has done it this member does not stand for election.
//! * A snapshot is either installed or ignored, each exactly once; one that a newer one overtakes counts as
//!   ignored.
//! * A member whose store is lost keeps its log, its vote and its acknowledgements. Any checkpoint within its
//!   log will do: the machine takes the state over and continues with the entries after it, and the log needs
//!   no restart. It asks without raft-rs, whose request would stop the member from taking entries meanwhile.
//! * A running member whose state is wrong gives it up in the same way
//!   ([`Event::Reseed`](super::Event::Reseed)): nothing more is handed out, and only a checkpoint after what
//!   was handed out will do. If the log has no such entry, the leader appends an empty one.
//! * While a follower is being brought up, the entries that it will ask for stay: otherwise a busy leader
//!   would trim them before it is done, and begin again for ever.

use bytes::Bytes;
use raft::eraftpb::{ConfState, Message, MessageType};
use raft::{ProgressState, SnapshotStatus};

use super::Core;
use super::event::{CoreTurn, Effects};
use super::state::{Hold, position};
use crate::log::PersistJob;
use crate::wire::{SnapshotOffer, SnapshotOutcome, encode_all};
use crate::{LogIndex, LogPosition, NodeId, Role, StoreState};

/// After a snapshot was sent, what its follower lacks is kept until this many election timeouts passed
/// without progress: time to install it and to ask for the first entry.
///
/// Longer would keep the log of a follower that died right after its stream; shorter, and a large store would
/// be asked for twice. Ten seconds with the usual rhythm.
const HOLD_TIMEOUTS: u32 = 10;

/// Of catch-up entries no more than this is kept: an entry may hold a thousand puts or a megabyte, and five
/// thousand of those would be the disk of a small member. A follower that lags by more gets a snapshot, which
/// is hardly dearer.
const CATCH_UP_BYTES_MAX: u64 = 32 << 20;

/// A hold keeps no more of the log than this. Past it the hold is let go; the follower gets a newer snapshot,
/// whose stream takes the place of the one under way. A sender sees to it that its stream ends before.
pub const HOLD_BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 8 << 30 };

/// A member that asked for the state is taken for one without a store for this many election timeouts. It
/// asks in each.
const STORELESS_TIMEOUTS: u32 = 3;

/// Whether two memberships are the same. Their order does not matter.
fn same_members(a: &ConfState, b: &ConfState) -> bool {
    let sorted = |conf: &ConfState| {
        let lists = [&conf.voters, &conf.learners, &conf.voters_outgoing, &conf.learners_next];
        lists.map(|list| {
            let mut list = list.clone();
            list.sort_unstable();
            list
        })
    };
    sorted(a) == sorted(b) && a.auto_leave == b.auto_leave
}

/// The leader's side.
impl Core {
    /// The store has made a checkpoint durable. It may be an old one: the store reports from another thread.
    pub(super) fn checkpointed(&mut self, at: LogPosition) {
        if self.snapshots.store == StoreState::Lost || at.index <= self.raw.store().checkpoint.index {
            return;
        }
        assert!(at.index <= self.handed, "a checkpoint at {}, of what was never handed out", at.index);
        if self.changing.front().is_some_and(|change| *change <= at.index) {
            // The membership of that entry is not known here yet.
            self.checkpoint_due = Some(at);
            return;
        }
        self.raw.mut_store().checkpoint = at;
        // The report that its entries are applied may come later. raft-rs must not look for entries that are
        // trimmed.
        if at.index.0 > self.raw.raft.raft_log.applied {
            self.raw.advance_apply_to(at.index.0);
        }
        self.snapshots.trim_due = true;
    }

    /// Takes raft-rs' snapshots out of its messages. They are no messages yet: the process sends the state.
    pub(super) fn offer_snapshots(&mut self, messages: Vec<Message>, effects: &mut Effects) -> Vec<Message> {
        let (snapshots, messages): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|message| message.msg_type == MessageType::MsgSnapshot);
        for message in snapshots {
            // A member that no longer leads offers nothing; the next leader makes its own offer.
            if self.role() == Role::Leader && message.term == self.term().0 {
                effects.snapshots.push(self.offer(message));
            }
        }
        messages
    }

    /// From here on the entries after the offer stay in the log, until the stream is reported and its
    /// follower has caught up or makes no progress.
    fn offer(&mut self, message: Message) -> SnapshotOffer {
        let at = position(message.get_snapshot());
        self.snapshots.holds.insert(message.to, Hold { index: at.index, ticks_left: None });
        tracing::info!(to = message.to, index = at.index.0, "a snapshot is offered");
        SnapshotOffer::new(message, at)
    }

    /// A stream to `peer` ended. raft-rs continues with the entries after the snapshot, or begins again.
    pub(super) fn snapshot_reported(&mut self, peer: NodeId, outcome: SnapshotOutcome) {
        let status = match outcome {
            SnapshotOutcome::Sent => {
                let ticks = self.election_ticks * HOLD_TIMEOUTS;
                if let Some(hold) = self.snapshots.holds.get_mut(&peer) {
                    hold.ticks_left = Some(ticks);
                }
                SnapshotStatus::Finish
            }
            SnapshotOutcome::Failed => {
                self.snapshots.holds.remove(&peer);
                self.snapshots.trim_due = true;
                SnapshotStatus::Failure
            }
        };
        self.raw.report_snapshot(peer, status);
    }

    /// A member asks for the state, because its store is lost. Any checkpoint that its log can go on from
    /// will do.
    pub(super) fn snapshot_requested(&mut self, message: &Message) {
        let streaming = self.snapshots.holds.get(&message.from).is_some_and(|hold| hold.ticks_left.is_none());
        let led = self.role() == Role::Leader && message.term == self.term().0;
        self.snapshots.storeless.insert(message.from, self.election_ticks * STORELESS_TIMEOUTS);
        // A stream that raft-rs began serves as well; one at a time.
        let progress = self.raw.raft.prs().get(message.from).map(|progress| progress.state);
        if !led || streaming || progress.is_none_or(|state| state == ProgressState::Snapshot) {
            return;
        }
        let checkpoint = self.raw.store().checkpoint;
        let requested = LogIndex(message.request_snapshot);
        if checkpoint.index < requested.max(LogIndex(1)) {
            self.snapshots.wanted = Some(requested);
            self.append_up_to(requested);
            return;
        }
        let mut answer = Message {
            msg_type: MessageType::MsgSnapshot,
            from: self.raw.raft.id,
            to: message.from,
            term: self.term().0,
            ..Message::default()
        };
        answer.set_snapshot(self.raw.store().newest_snapshot());
        let offer = self.offer(answer);
        self.snapshots.offers.push(offer);
    }

    /// Appends an empty entry if the wanted checkpoint is one of the next entry: a member that gave its state
    /// up wants a later one than its own, and a cluster that refuses all changes appends nothing else.
    fn append_up_to(&mut self, index: LogIndex) {
        let is_idle = self.last_index() == self.commit();
        if is_idle && self.last_index() < index && self.propose_entries(&[&Bytes::new()]).is_err() {
            tracing::debug!("an empty entry is refused: a member goes on waiting for a snapshot");
        }
    }

    /// Lets go of whole segments that neither a restart nor a follower that lags a little needs.
    ///
    /// One border a tick, so that the disk is never busy with removing for long: ten segments a second with
    /// the usual rhythm, faster than any log grows.
    ///
    /// The store forgets them first, in memory, and the log thread removes them later: what is about to go is
    /// not read any more.
    pub(super) fn trim(&mut self, effects: &mut Effects) {
        // A separate job has the number of the last ready, which must not be that of a job under way.
        if effects.persist.is_empty() && !self.unsynced.is_empty() {
            return;
        }
        if !std::mem::take(&mut self.snapshots.trim_due) {
            return;
        }
        let store = self.raw.store();
        let durable = if base::mutant("early-trim") { self.handed } else { store.checkpoint.index };
        let by_number = durable.saturating_sub(self.snapshots.catch_up_entries);
        let unneeded = by_number.max(store.back_by(durable, CATCH_UP_BYTES_MAX).min(durable));
        let held = self.snapshots.holds.values().map(|hold| hold.index).min();
        let held = held.filter(|_| !base::mutant("trim-ignores-holds")).unwrap_or(LogIndex(u64::MAX));
        let start = store.release_point(unneeded.min(held));
        if start.index <= store.start().index {
            return;
        }
        assert!(start.index <= durable, "trimmed beyond what the store holds");
        self.raw.mut_store().trim(start);
        self.snapshots.trim_again = true;
        tracing::info!(first_index = start.index.0 + 1, "the log is trimmed");
        let release = Some(start.index + 1);
        match effects.persist.last_mut() {
            Some(job) => job.release = release,
            None => {
                self.unsynced.push_back(self.newest);
                effects.persist.push(PersistJob { release, ..PersistJob::empty(self.newest) });
            }
        }
    }

    /// What snapshots add to a turn, apart from what raft-rs said.
    pub(super) fn collect_snapshots(&mut self, effects: &mut Effects) {
        effects.snapshots.append(&mut self.snapshots.offers);
        effects.snapshots_ignored.append(&mut self.snapshots.ignored);
        let unavailable = self.raw.store().take_wanted();
        effects.checkpoint_wanted = self.snapshots.wanted.take().max(unavailable);
    }

    /// Time for holds and requests.
    pub(super) fn tick_snapshots(&mut self) {
        let led = self.role() == Role::Leader;
        self.snapshots.storeless.retain(|_, ticks_left| {
            *ticks_left = ticks_left.saturating_sub(1);
            *ticks_left > 0
        });
        self.bound_holds();
        let before = self.snapshots.holds.len();
        let (progress, checkpoint) = (self.raw.raft.prs(), self.raw.store().checkpoint.index);
        self.snapshots.holds.retain(|peer, hold| {
            let Some(ticks) = &mut hold.ticks_left else { return led };
            *ticks = ticks.saturating_sub(1);
            let matched = progress.get(*peer).map_or(LogIndex::ZERO, |progress| LogIndex(progress.matched));
            if matched > hold.index && !base::mutant("hold-ignores-progress") {
                (hold.index, *ticks) = (matched, self.election_ticks * HOLD_TIMEOUTS);
            }
            // With the newest checkpoint's entry it is a follower as any other.
            led && *ticks != 0 && matched < checkpoint
        });
        let released = self.snapshots.holds.len() != before;
        self.snapshots.trim_due |= std::mem::take(&mut self.snapshots.trim_again) || released;
        self.snapshots.ask_in = self.snapshots.ask_in.saturating_sub(1);
    }
}

impl Core {
    /// Lets go of holds that keep too much of the log.
    fn bound_holds(&mut self) {
        if self.snapshots.holds.is_empty() {
            return;
        }
        let floor = self.raw.store().back_by(self.stable, HOLD_BYTES_MAX);
        let over: Vec<u64> = self
            .snapshots
            .holds
            .iter()
            .filter(|(_, hold)| hold.index < floor)
            .map(|(peer, _)| *peer)
            .collect();
        for peer in over {
            tracing::warn!(peer, "a snapshot takes too long: the log that it needs is not kept any more");
            self.snapshot_reported(peer, SnapshotOutcome::Failed);
        }
    }

    /// Whether `peer` asked for the state lately.
    pub(super) fn lacks_its_store(&self, peer: NodeId) -> bool {
        self.snapshots.storeless.contains_key(&peer)
    }
}

/// The follower's side.
impl Core {
    /// Whether this member's store is lost, and no snapshot is on its way to it.
    pub(super) fn waits_for_a_store(&self) -> bool {
        self.snapshots.store == StoreState::Lost && !self.snapshots.under_way()
    }

    /// Whether this member may lead: a leader must have its state, or know that it is about to.
    pub(super) fn has_its_state(&self) -> bool {
        self.snapshots.store == StoreState::Whole && !self.snapshots.under_way()
    }

    /// Whether committed entries may go to the machine.
    pub(super) fn may_hand_out(&self) -> bool {
        self.snapshots.store == StoreState::Whole && self.snapshots.restarting.is_empty()
    }

    /// A snapshot's state is staged; raft-rs decides whether it is of use.
    ///
    /// It is, if this member follows the sender, has not committed as much, and does not have the entry in
    /// its log: then the log restarts. If it has the entry, its own log leads there, and only a machine
    /// without a store has any use for the state. Every other snapshot is stale, or of another cluster.
    pub(super) fn receive_snapshot(&mut self, message: Message) {
        let (from, at) = (message.from, position(message.get_snapshot()));
        let conf = message.get_snapshot().get_metadata().get_conf_state();
        if !self.follows_machine && !same_members(conf, &self.raw.store().state.conf) {
            tracing::warn!(peer = from, ?conf, "a snapshot of other members is ignored");
            return self.ignore_snapshot(at);
        }
        if at.term.0 > message.term {
            // Its leader was deposed while it streamed, and its state went on. Its term in the message does
            // not matter.
            return self.ignore_snapshot(at);
        }
        let overtaken = self.snapshots.accepted;
        self.step(|raw| raw.step(message));
        let pending = self.raw.snap().map(position);
        if pending == Some(at) && overtaken != Some(at) {
            self.snapshots.ignored.extend(overtaken);
            self.snapshots.accepted = Some(at);
            tracing::info!(peer = from, index = at.index.0, "a snapshot is accepted");
        } else if self.fills_the_log(at) {
            let before = self.snapshots.within.replace(at).filter(|before| *before != at);
            self.snapshots.ignored.extend(before);
        } else if pending != Some(at) && !self.snapshots.is_on_its_way(at) {
            let (index, commit) = (at.index.0, self.commit().0);
            tracing::info!(peer = from, index, commit, "a snapshot is ignored");
            self.snapshots.ignored.push(at);
        }
    }

    /// What is staged for `at` may go, unless the same snapshot came before and is on its way.
    pub(super) fn ignore_snapshot(&mut self, at: LogPosition) {
        if !self.snapshots.is_on_its_way(at) {
            self.snapshots.ignored.push(at);
        }
    }

    /// Whether a lost store can begin with `at` and go on with this log: the log holds that very entry, knows
    /// it committed, and everything after it. The sender's term does not matter: what is committed stays
    /// committed.
    fn fills_the_log(&self, at: LogPosition) -> bool {
        let snapshots = &self.snapshots;
        snapshots.store == StoreState::Lost
            && !snapshots.is_decided()
            && at.index <= self.commit()
            && self.term_at(at.index).is_some_and(|term| term == at.term)
            && at.index >= self.least_of_use()
    }

    /// The least index of a checkpoint that a lost store can begin with. A machine that runs may have applied
    /// all that was handed out, and the driver applies a brief entry that is next: an install at the same
    /// index would come after it. So the checkpoint must be a later one.
    fn least_of_use(&self) -> LogIndex {
        self.handed.max(self.snapshots.reseed_from)
    }

    /// Gives the machine's state up: it is replaced by the leader's. Ignored by a leader, by a lone voter,
    /// and while a snapshot is on its way. A restart before the install forgets it.
    pub(super) fn reseed(&mut self) {
        if !self.has_its_state() {
            return; // It is being replaced: an operator repeats the request until that is done.
        }
        let is_lone = self.voters() == [self.raw.raft.id];
        if self.role() == Role::Leader || is_lone {
            return tracing::warn!("the state of this member cannot be replaced: no other member leads");
        }
        tracing::info!(handed = self.handed.0, "the state of this member will be replaced by the leader's");
        self.give_state_up();
    }

    pub(super) fn give_state_up(&mut self) {
        self.snapshots.store = StoreState::Lost;
        self.snapshots.reseed_from = self.handed + 1;
        self.snapshots.ask_in = 0;
    }

    /// raft-rs' ready holds a snapshot: the log restarts with job `number`. What was committed before and has
    /// found no room is part of the snapshot, and its entries are gone from the log: nothing is owed any
    /// more.
    pub(super) fn begin_restart(&mut self, number: u64, at: LogPosition) {
        assert!(at.index >= self.handed, "a snapshot at {}, before the machine at {}", at.index, self.handed);
        let accepted = self.snapshots.accepted.take();
        assert_eq!(accepted, Some(at), "raft-rs restores what this core accepted");
        self.snapshots.ignored.extend(self.snapshots.within.take());
        if base::mutant("early-install") {
            self.snapshots.install_due = Some(at);
        } else {
            self.snapshots.restarting.push_back((number, at));
        }
        self.stable = self.handed;
    }

    /// Restarts of the log up to job `number` are durable. Only the newest is worth an install, and only if
    /// none follows.
    pub(super) fn restarted(&mut self, number: u64) {
        let mut durable = None;
        while let Some((_, at)) = self.snapshots.restarting.front().filter(|(job, _)| *job <= number) {
            self.snapshots.ignored.extend(durable.replace(*at));
            self.snapshots.restarting.pop_front();
        }
        let Some(at) = durable else { return };
        // raft-rs must not look for changes of membership among entries that are gone.
        self.raw.advance_apply_to(at.index.0);
        if self.snapshots.restarting.is_empty() {
            self.snapshots.ignored.extend(self.snapshots.install_due.replace(at));
        } else {
            self.snapshots.ignored.push(at);
        }
    }

    /// Hands out an install whose log is ready for it, before any entry after it.
    pub(super) fn hand_out_installs(&mut self, turn: &mut CoreTurn) {
        let reached = self.snapshots.within.take_if(|at| at.index <= self.stable);
        if let Some(at) = reached {
            self.raw.advance_apply_to(at.index.0);
            self.snapshots.install_due = Some(at);
        }
        let Some(at) = self.snapshots.install_due.take() else { return };
        self.snapshots.installing = Some(at);
        self.snapshots.store = StoreState::Whole;
        self.hand_out_install(at, turn);
    }

    /// Whether the next turn hands out an install that nothing else would wake the owner for.
    pub(super) fn install_may_follow(&self) -> bool {
        self.snapshots.install_due.is_some()
            || self.snapshots.within.is_some_and(|at| at.index <= self.stable)
    }

    /// The machine has taken over a snapshot's state, which was durable before it was staged.
    pub(super) fn note_installed(&mut self, applied: LogIndex) {
        if let Some(at) = self.snapshots.installing.take_if(|at| at.index <= applied) {
            tracing::info!(index = at.index.0, "a snapshot is installed");
            let store = self.raw.mut_store();
            if at.index > store.checkpoint.index {
                store.checkpoint = at;
            }
        }
    }

    /// Asks the leader for the state, once in an election timeout, while the store is lost and none is on its
    /// way.
    ///
    /// The least index that is of use to a store that was lost at the start is where the log starts. So a
    /// busy leader's newest checkpoint will do then, although it is always older than the end of this
    /// member's log.
    ///
    /// A reject of nothing, as far as raft-rs is concerned, and the leader's core keeps it from raft-rs.
    pub(super) fn ask_for_snapshot(&mut self, effects: &mut Effects) {
        let lost = self.waits_for_a_store();
        let leader = self.leader().filter(|leader| *leader != self.raw.raft.id);
        let Some(leader) = leader.filter(|_| lost && self.snapshots.ask_in == 0) else { return };
        if self.vote_unsynced.is_some() {
            return; // The term that it speaks in could be taken back.
        }
        self.snapshots.ask_in = self.election_ticks;
        let request = Message {
            msg_type: MessageType::MsgAppendResponse,
            from: self.raw.raft.id,
            to: leader,
            term: self.term().0,
            index: self.last_index().0,
            reject: true,
            request_snapshot: self.least_of_use().max(LogIndex(1)).0,
            ..Message::default()
        };
        effects.send.extend(encode_all(vec![request]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::bounds_tests::{acknowledge, leader, propose_all};
    use crate::core::event::Event;
    use crate::core::tests::{CoreBench, batch, bench};

    #[test]
    fn a_hold_keeps_a_bounded_part_of_the_log() {
        let mut bench = bench(&[1], 8 << 20);
        bench.settle();
        for (index, kept) in [(1, false), (6, true)] {
            bench.core.snapshots.holds.insert(3, Hold { index: LogIndex(index), ticks_left: None });
            for sequence in 1..=6 {
                bench.core.propose(&[batch(sequence, 400_000)]).unwrap();
                for committed in bench.settle() {
                    bench.core.handle(Event::Applied { index: committed.at.index }).unwrap();
                }
                if kept {
                    break;
                }
            }
            bench.core.handle(Event::Tick).unwrap();
            assert_eq!(bench.core.snapshots.holds.contains_key(&3), kept, "of entry {index}");
        }
    }

    fn follow(bench: &mut CoreBench, from: NodeId, index: LogIndex) {
        let jobs = acknowledge(bench, from, index.0).persist;
        if !jobs.is_empty() {
            bench.sync(jobs);
        }
    }

    #[test]
    fn a_follower_that_catches_up_slowly_gets_the_entries_after_its_snapshot() {
        let mut bench = leader(1 << 20, 1 << 20);
        acknowledge(&mut bench, 3, 1);
        let mut reached = LogIndex(1);
        let mut tick = |bench: &mut CoreBench, writes: bool, reads: bool| {
            // A segment of the log has eight such entries, and a hold keeps as many.
            propose_all(bench, 1 << 17, usize::from(writes));
            let index = bench.core.last_index();
            follow(bench, 3, index);
            bench.core.handle(Event::Applied { index }).unwrap();
            if writes {
                let at = LogPosition { index, term: bench.core.term() };
                bench.core.handle(Event::Checkpointed { at }).unwrap();
            }
            if reads {
                reached += 1;
                follow(bench, 2, reached);
            }
            bench.core.handle(Event::Tick).unwrap();
            bench.settle();
            (reached, bench.core.raw.store().start().index)
        };
        bench.core.snapshots.holds.insert(2, Hold { index: LogIndex(1), ticks_left: None });
        for _ in 0..6 {
            tick(&mut bench, true, false);
        }
        bench.core.snapshot_reported(2, SnapshotOutcome::Sent);
        for number in 0..500 {
            let goes_on = number % 20 == 0;
            let (reached, start) = tick(&mut bench, goes_on, goes_on);
            assert!(
                start <= reached,
                "tick {number}: the log begins after {start}, its follower is at {reached}"
            );
        }
        assert!(bench.core.raw.store().start().index > LogIndex(10), "what it has may go");
        // It goes on without writes until it has the newest checkpoint, or makes no progress any more.
        assert!(bench.core.snapshots.holds.contains_key(&2));
        for _ in 0..100 {
            tick(&mut bench, false, false);
        }
        assert!(!bench.core.snapshots.holds.contains_key(&2), "a hold ends");
        let hold = Hold { index: LogIndex(1), ticks_left: Some(100) };
        bench.core.snapshots.holds.insert(2, hold);
        while tick(&mut bench, false, true).0 < bench.core.last_index() {}
        assert!(!bench.core.snapshots.holds.contains_key(&2), "it has caught up");
    }
}
