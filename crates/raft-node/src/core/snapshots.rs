//! Raft snapshots: a leader's offers, a follower's installs, and the truncation of the log.
//!
//! ```text
//!   leader    needs a truncated entry ───────▶ raft-rs: MsgSnapshot ──▶ offer ──▶ process streams it
//!             request of a member that lost its store ───────────────▶ offer          └─▶ SnapshotReported
//!   follower  MsgSnapshot, its state staged ─┬─ accepted ─▶ log restarts ──sync──▶ install ──▶ Applied
//!                                            ├─ store lost, log reaches it ──────▶ install
//!                                            └─ unusable ─▶ ignored: staged state may be removed
//!   both      Checkpointed ──▶ trim: whole segments not needed by checkpoint and catch-up entries
//! ```
//!
//! * A snapshot is the leader's latest durable checkpoint, unchanged; this file handles positions and never
//!   sees data.
//! * The restart of the log is the commit point of an install: the machine is notified only after it is
//!   durable, and until the machine has installed it this member does not campaign.
//! * A snapshot is either installed or ignored, each exactly once; a superseded one counts as ignored.
//! * A member that lost its store retains its log, its vote and its acknowledgements. Any checkpoint within
//!   its log is sufficient: the machine installs the state and continues with the entries after it, and the
//!   log needs no restart. The member sends its request without raft-rs, which would stop accepting entries
//!   until the snapshot arrives.
//! * A running member with a wrong state discards it in the same way
//!   ([`Event::Reseed`](super::Event::Reseed)): it outputs no more entries, and only a checkpoint after the
//!   already output ones is sufficient. If the log has no such entry, the leader appends an empty one.
//! * While a follower is receiving a snapshot, the entries that follow it are retained: otherwise a busy
//!   leader would truncate them before the follower is done, and start over forever.

use bytes::Bytes;
use raft::eraftpb::{ConfState, Message, MessageType};
use raft::{ProgressState, SnapshotStatus};

use super::Core;
use super::event::{CoreTurn, Effects};
use super::state::{Hold, position};
use crate::log::PersistJob;
use crate::wire::{SnapshotOffer, SnapshotOutcome, encode_all};
use crate::{LogIndex, LogPosition, NodeId, Role, StoreState};

/// Election timeouts without progress after which a hold is released, once its snapshot was sent: time to
/// install it and to request the first entry.
///
/// A longer time would retain the log for a follower that died right after its stream; with a shorter one, a
/// large store would be requested twice. Ten seconds with the usual timing.
const HOLD_TIMEOUTS: u32 = 10;

/// Limit of the retained catch-up entries: an entry may contain a thousand puts or a megabyte, and five
/// thousand of those would fill the disk of a small member. A follower that lags by more gets a snapshot,
/// which is hardly more expensive.
const CATCH_UP_BYTES_MAX: u64 = 32 << 20;

/// Limit of the log retained by a hold. Beyond it the hold is released; the follower gets a later snapshot
/// in a new stream that replaces the current one. Senders ensure that their streams finish earlier.
pub const HOLD_BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 8 << 30 };

/// Election timeouts for which a member that requested the state counts as a member without a store. It
/// repeats the request in each.
const STORELESS_TIMEOUTS: u32 = 3;

/// Reports whether two memberships are equal, regardless of order.
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

/// Leader
impl Core {
    /// Handles a durable checkpoint of the store. It may be outdated: the store reports from another thread.
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
        // The report that its entries are applied may come later. raft-rs must not read truncated entries.
        if at.index.0 > self.raw.raft.raft_log.applied {
            self.raw.advance_apply_to(at.index.0);
        }
        self.snapshots.trim_due = true;
    }

    /// Converts snapshot messages of raft-rs to offers. The process streams the state instead.
    pub(super) fn offer_snapshots(&mut self, messages: Vec<Message>, effects: &mut Effects) -> Vec<Message> {
        let (snapshots, messages): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|message| message.msg_type == MessageType::MsgSnapshot);
        for message in snapshots {
            // Only leaders offer snapshots; the next leader makes a new offer.
            if self.role() == Role::Leader && message.term == self.term().0 {
                effects.snapshots.push(self.offer(message));
            }
        }
        messages
    }

    /// Creates an offer and a hold: the entries after the offer stay in the log until the stream is reported
    /// and its follower has caught up or stopped making progress.
    fn offer(&mut self, message: Message) -> SnapshotOffer {
        let at = position(message.get_snapshot());
        self.snapshots.holds.insert(message.to, Hold { index: at.index, ticks_left: None });
        tracing::info!(to = message.to, index = at.index.0, "offering a snapshot");
        SnapshotOffer::new(message, at)
    }

    /// Handles a finished stream to `peer`. raft-rs continues with the entries after the snapshot, or starts
    /// over.
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

    /// Handles the request of a member that lost its store. Any checkpoint that its log can continue from is
    /// sufficient.
    pub(super) fn snapshot_requested(&mut self, message: &Message) {
        let streaming = self.snapshots.holds.get(&message.from).is_some_and(|hold| hold.ticks_left.is_none());
        let led = self.role() == Role::Leader && message.term == self.term().0;
        self.snapshots.storeless.insert(message.from, self.election_ticks * STORELESS_TIMEOUTS);
        // A stream started by raft-rs also serves the request; only one runs at a time.
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

    /// Appends an empty entry if the requested checkpoint is that of the next entry: a member that discarded
    /// its state needs a later one than its own, and a cluster that rejects all changes appends no entries
    /// otherwise.
    fn append_up_to(&mut self, index: LogIndex) {
        let is_idle = self.last_index() == self.commit();
        if is_idle && self.last_index() < index && self.propose_entries(&[&Bytes::new()]).is_err() {
            tracing::debug!("an empty entry is refused: a member goes on waiting for a snapshot");
        }
    }

    /// Truncates whole segments that neither a restart nor a slightly lagging follower needs.
    ///
    /// One boundary per tick, so that the disk is never busy with removals for long: ten segments a second
    /// with the usual timing, faster than any log grows.
    ///
    /// The log store drops them first, in memory, and the log thread removes the files later: entries about
    /// to be removed are not read any more.
    pub(super) fn trim(&mut self, effects: &mut Effects) {
        // A separate job has the number of the last ready, which must not be that of a job in flight.
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
        tracing::info!(first_index = start.index.0 + 1, "trimmed the log");
        let release = Some(start.index + 1);
        match effects.persist.last_mut() {
            Some(job) => job.release = release,
            None => {
                self.unsynced.push_back(self.newest);
                effects.persist.push(PersistJob { release, ..PersistJob::empty(self.newest) });
            }
        }
    }

    /// Adds the effects of snapshots that do not come from raft-rs.
    pub(super) fn collect_snapshots(&mut self, effects: &mut Effects) {
        effects.snapshots.append(&mut self.snapshots.offers);
        effects.snapshots_ignored.append(&mut self.snapshots.ignored);
        let unavailable = self.raw.store().take_wanted();
        effects.checkpoint_wanted = self.snapshots.wanted.take().max(unavailable);
    }

    /// Advances the timers of holds and requests.
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
            // With the entry of the latest checkpoint it is an ordinary follower.
            led && *ticks != 0 && matched < checkpoint
        });
        let released = self.snapshots.holds.len() != before;
        self.snapshots.trim_due |= std::mem::take(&mut self.snapshots.trim_again) || released;
        self.snapshots.ask_in = self.snapshots.ask_in.saturating_sub(1);
    }
}

impl Core {
    /// Releases holds that retain too much of the log.
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
            tracing::warn!(peer, "snapshot transfer aborted: the log entries after it were truncated");
            self.snapshot_reported(peer, SnapshotOutcome::Failed);
        }
    }

    /// Reports whether `peer` requested the state recently.
    pub(super) fn lacks_its_store(&self, peer: NodeId) -> bool {
        self.snapshots.storeless.contains_key(&peer)
    }
}

/// Follower
impl Core {
    /// Reports whether this member's store is lost, without a snapshot in progress.
    pub(super) fn waits_for_a_store(&self) -> bool {
        self.snapshots.store == StoreState::Lost && !self.snapshots.under_way()
    }

    /// Reports whether the state permits leadership: it is present, and will not be replaced.
    pub(super) fn has_its_state(&self) -> bool {
        self.snapshots.store == StoreState::Whole && !self.snapshots.under_way()
    }

    /// Reports whether committed entries may go to the machine.
    pub(super) fn may_hand_out(&self) -> bool {
        self.snapshots.store == StoreState::Whole && self.snapshots.restarting.is_empty()
    }

    /// Handles a snapshot whose state is staged; raft-rs decides whether it is useful.
    ///
    /// It is, if this member follows the sender, has a lower commit index, and does not have the entry in
    /// its log: then the log restarts. If it has the entry, its own log leads there, and only a machine
    /// without a store needs the state. Every other snapshot is stale, or from another cluster.
    pub(super) fn receive_snapshot(&mut self, message: Message) {
        let (from, at) = (message.from, position(message.get_snapshot()));
        let conf = message.get_snapshot().get_metadata().get_conf_state();
        if !self.follows_machine && !same_members(conf, &self.raw.store().state.conf) {
            tracing::warn!(peer = from, ?conf, "ignored a snapshot with a different membership");
            return self.ignore_snapshot(at);
        }
        if at.term.0 > message.term {
            // Its leader was deposed during the stream, after its state had advanced. Its term in the
            // message does not matter.
            return self.ignore_snapshot(at);
        }
        let overtaken = self.snapshots.accepted;
        self.step(|raw| raw.step(message));
        let pending = self.raw.snap().map(position);
        if pending == Some(at) && overtaken != Some(at) {
            self.snapshots.ignored.extend(overtaken);
            self.snapshots.accepted = Some(at);
            tracing::info!(peer = from, index = at.index.0, "accepted a snapshot");
        } else if self.fills_the_log(at) {
            let before = self.snapshots.within.replace(at).filter(|before| *before != at);
            self.snapshots.ignored.extend(before);
        } else if pending != Some(at) && !self.snapshots.is_on_its_way(at) {
            let (index, commit) = (at.index.0, self.commit().0);
            tracing::info!(peer = from, index, commit, "ignored a snapshot");
            self.snapshots.ignored.push(at);
        }
    }

    /// Drops the staged state for `at`, unless the same snapshot was received before and is in progress.
    pub(super) fn ignore_snapshot(&mut self, at: LogPosition) {
        if !self.snapshots.is_on_its_way(at) {
            self.snapshots.ignored.push(at);
        }
    }

    /// Reports whether a lost store can start with `at` and continue with this log: the log has that entry,
    /// committed, and all entries after it. The sender's term does not matter: committed entries stay
    /// committed.
    fn fills_the_log(&self, at: LogPosition) -> bool {
        let snapshots = &self.snapshots;
        snapshots.store == StoreState::Lost
            && !snapshots.is_decided()
            && at.index <= self.commit()
            && self.term_at(at.index).is_some_and(|term| term == at.term)
            && at.index >= self.least_of_use()
    }

    /// Returns the minimum index of a checkpoint that a lost store can start with. A running machine may
    /// have applied all output entries, and the driver applies a brief entry that is next: an install at the
    /// same index would come after it. So the checkpoint must be later.
    fn least_of_use(&self) -> LogIndex {
        self.handed.max(self.snapshots.reseed_from)
    }

    /// Discards the machine's state, to be replaced by the leader's. Ignored by a leader, by a lone voter,
    /// and while a snapshot is in progress. A restart before the install cancels it.
    pub(super) fn reseed(&mut self) {
        if !self.has_its_state() {
            return; // In progress: an operator repeats the request until it is done.
        }
        let is_lone = self.voters() == [self.raw.raft.id];
        if self.role() == Role::Leader || is_lone {
            return tracing::warn!("state of this member cannot be replaced: no other member is leader");
        }
        tracing::info!(handed = self.handed.0, "replacing the state of this member with the leader's");
        self.give_state_up();
    }

    pub(super) fn give_state_up(&mut self) {
        self.snapshots.store = StoreState::Lost;
        self.snapshots.reseed_from = self.handed + 1;
        self.snapshots.ask_in = 0;
    }

    /// Handles a snapshot in raft-rs' ready: the log restarts with job `number`. Committed entries that were
    /// not output yet are part of the snapshot and removed from the log.
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

    /// Handles durable restarts of the log up to job `number`. Only the latest is installed, and only if
    /// none follows.
    pub(super) fn restarted(&mut self, number: u64) {
        let mut durable = None;
        while let Some((_, at)) = self.snapshots.restarting.front().filter(|(job, _)| *job <= number) {
            self.snapshots.ignored.extend(durable.replace(*at));
            self.snapshots.restarting.pop_front();
        }
        let Some(at) = durable else { return };
        // raft-rs must not search removed entries for membership changes.
        self.raw.advance_apply_to(at.index.0);
        if self.snapshots.restarting.is_empty() {
            self.snapshots.ignored.extend(self.snapshots.install_due.replace(at));
        } else {
            self.snapshots.ignored.push(at);
        }
    }

    /// Outputs an install whose log is ready for it, before any entry after it.
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

    /// Reports whether the next poll outputs an install for which no other event would wake the owner.
    pub(super) fn install_may_follow(&self) -> bool {
        self.snapshots.install_due.is_some()
            || self.snapshots.within.is_some_and(|at| at.index <= self.stable)
    }

    /// Records that the machine has installed a snapshot, which was durable before it was staged.
    pub(super) fn note_installed(&mut self, applied: LogIndex) {
        if let Some(at) = self.snapshots.installing.take_if(|at| at.index <= applied) {
            tracing::info!(index = at.index.0, "installed a snapshot");
            let store = self.raw.mut_store();
            if at.index > store.checkpoint.index {
                store.checkpoint = at;
            }
        }
    }

    /// Requests the state from the leader, once per election timeout, while the store is lost and no
    /// snapshot is in progress.
    ///
    /// The minimum index that is useful to a store lost at the start is the start of the log. So a busy
    /// leader's latest checkpoint is sufficient, although it is always older than the end of this member's
    /// log.
    ///
    /// raft-rs would read the request as a reject without an index; the leader's core intercepts it.
    pub(super) fn ask_for_snapshot(&mut self, effects: &mut Effects) {
        let lost = self.waits_for_a_store();
        let leader = self.leader().filter(|leader| *leader != self.raw.raft.id);
        let Some(leader) = leader.filter(|_| lost && self.snapshots.ask_in == 0) else { return };
        if self.vote_unsynced.is_some() {
            return; // Its term could be lost in a crash.
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
            // A segment of the log has eight such entries, and a hold retains as many.
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
        // It stays without writes until the follower has the latest checkpoint, or stops making progress.
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
