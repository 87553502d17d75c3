//! Members with in-memory disks and machines, and the messages between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::path::Path;

use bytes::Bytes;
use raft::{GetEntriesContext, StateRole, Storage as _};
use wal::testing::{Crash, SimFs};
use wal::{Wal, WalOptions};

use super::commands::{self, batch, id, ids, link};
use super::{forged, show};
use crate::core::event::{CommittedEntry, CoreSetup, CoreTurn, Event, Payload};
use crate::core::{Confirmation, Core, FirstState, Inquiry};
use crate::log::{LogStore, PersistJob, RecoveredLog, durable_state, persist};
use crate::wire::{Outbound, SnapshotOffer, SnapshotOutcome};
use crate::{ChangeCheck, EmptyLog, LogIndex, LogPosition, Membership, Progress, StoreState, Term};

/// Small, so that a few long commands fill a segment.
const OPTIONS: WalOptions = WalOptions { segment_bytes: 8 << 10, salt: [7; 16] };
const CACHE_BYTES_MAX: usize = 4 << 10;
const DIR: &str = "/log";

#[derive(Default)]
pub(super) struct ScriptCluster {
    /// Parameters of all members; None before `members`.
    setup: Option<CoreSetup>,
    voters: Vec<u64>,
    members: BTreeMap<u64, ScriptMember>,
    /// Messages in flight with their senders, in send order.
    wire: Vec<(u64, Outbound)>,
    isolated: BTreeSet<u64>,
    offers: Vec<(u64, SnapshotOffer)>,
    batches: u64,
    printed: String,
}

struct OpenedLog {
    disk: SimFs,
    wal: Wal<SimFs>,
    found: RecoveredLog<SimFs>,
}

struct ScriptMember {
    disk: SimFs,
    wal: Wal<SimFs>,
    core: Core,
    jobs: Vec<PersistJob>,
    disk_is_held: bool,
    work: VecDeque<CommittedEntry>,
    machine_is_held: bool,
    applied: LogPosition,
    /// The machine's checkpoint.
    durable: LogPosition,
    /// With the option `changing`: memberships of the machine and of its checkpoint.
    membership: Membership,
    durable_membership: Membership,
    /// Last printed role, term, leader and commit index.
    seen: (StateRole, Term, Option<u64>, LogIndex),
}

impl ScriptCluster {
    /// Runs a command. [`ScriptCluster::printed`] returns its output.
    pub fn command(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match &words[..] {
            ["members", options @ ..] => self.begin(options),
            ["tick", members @ .., last] => {
                let count = last.strip_prefix('*').map(|count| count.parse().expect("a count"));
                let members = if count.is_some() { ids(members) } else { ids(&words[1..]) };
                let count = count.unwrap_or(1);
                for member in members {
                    (0..count).for_each(|_| self.event(member, Event::Tick));
                }
            }
            ["campaign", member] => self.campaign(id(member)),
            ["elect", member] => self.elect(id(member)),
            ["deliver"] => self.deliver_all(),
            [action @ ("deliver" | "drop" | "duplicate" | "reverse"), of, kind @ ..] => {
                self.carry(action, link(of), kind)
            }
            ["isolate", members @ ..] => {
                self.isolated.extend(ids(members));
                let isolated = &self.isolated;
                self.wire.retain(|(from, sent)| !isolated.contains(from) && !isolated.contains(&sent.to));
            }
            ["heal"] => self.isolated.clear(),
            ["fill", member, count] => {
                let printed = self.printed();
                for _ in 0..count.parse().expect("a count") {
                    self.propose(id(member), &["x*1000"]);
                    self.deliver_all();
                }
                self.printed = printed;
            }
            ["propose", member, commands @ ..] => self.propose(id(member), commands),
            ["change", member, change] => self.change(id(member), change),
            ["join", joiner, of] => self.join(id(joiner), id(of)),
            ["disk", member, action] => self.disk(id(member), action),
            ["machine", member, action] => self.machine(id(member), action),
            ["read", member, name] => self.read(id(member), name),
            ["checkpoint", member] => {
                let kept = self.member(id(member));
                let at = kept.applied;
                (kept.durable, kept.durable_membership) = (at, kept.membership.clone());
                self.event(id(member), Event::Checkpointed { at });
            }
            ["unreachable", member, peer] => self.event(id(member), Event::Unreachable { peer: id(peer) }),
            ["stream", of, outcome @ ..] => self.stream(link(of), outcome.is_empty()),
            ["reseed", member] => self.event(id(member), Event::Reseed),
            ["transfer", from, to] => self.event(id(from), Event::TransferLeader { to: id(to) }),
            ["restart", member, how @ ..] => self.restart(id(member), how.first().copied()),
            ["inquire", member, peers @ ..] => self.inquire(id(member), &ids(peers)),
            ["forge", of, message @ ..] => {
                let (from, to) = link(of);
                self.forge(from, to, message);
            }
            ["status"] => self.voters.clone().into_iter().for_each(|member| self.status(member)),
            ["status", members @ ..] => ids(members).into_iter().for_each(|member| self.status(member)),
            ["log", member] => self.log(id(member)),
            ["progress", member, of] => self.progress(id(member), id(of)),
            ["wire"] => {
                for (from, sent) in std::mem::take(&mut self.wire) {
                    self.print(&show::message(&show::decoded(from, &sent)));
                    self.wire.push((from, sent));
                }
            }
            other => panic!("no such command: {other:?}"),
        }
    }

    fn forge(&mut self, from: u64, to: u64, message: &[&str]) {
        self.event(to, Event::Message { from, bytes: forged::bytes(from, to, message) });
    }

    pub fn printed(&mut self) -> String {
        std::mem::take(&mut self.printed)
    }

    fn print(&mut self, line: &str) {
        writeln!(self.printed, "{line}").expect("a string takes all");
    }

    fn member(&mut self, id: u64) -> &mut ScriptMember {
        self.members.get_mut(&id).expect("a member")
    }

    fn begin(&mut self, options: &[&str]) {
        *self = ScriptCluster::default();
        let keeps_voters = commands::keeps_voters;
        let mut setup = CoreSetup { timeout_ticks: 15..16, keeps_voters, ..CoreSetup::of_tests() };
        for option in options {
            match option.split_once('=').unwrap_or((option, "")) {
                ("unconfirmed", _) => setup.empty_log = EmptyLog::Unconfirmed,
                ("changing", _) => setup.membership = Some(Membership::default()),
                ("strict", _) => setup.change_check = ChangeCheck::new(|command| command != b"+13"),
                ("hands-over", _) => setup.removed_by = commands::removed_by,
                ("apply", bytes) => setup.apply_bytes_max = bytes.parse().expect("a number"),
                ("catch-up", entries) => setup.catch_up_entries = entries.parse().expect("a number"),
                (voter, _) => self.voters.push(id(voter)),
            }
        }
        setup.membership.iter_mut().for_each(|list| list.voters.clone_from(&self.voters));
        self.setup = Some(setup);
        for voter in self.voters.clone() {
            self.create(voter);
        }
    }

    fn create(&mut self, id: u64) {
        let disk = SimFs::new();
        let start = wal::LogPosition::default();
        let wal = Wal::create(disk.clone(), Path::new(DIR), b"scripts", start, OPTIONS).unwrap();
        let membership = self.setup.as_ref().and_then(|setup| setup.membership.clone());
        let log = OpenedLog { disk, found: RecoveredLog::created(&wal), wal };
        self.open(id, log, LogPosition::default(), membership, StoreState::Whole);
    }

    /// A member that was added starts with an empty log and no store.
    fn join(&mut self, id: u64, of: u64) {
        let given = self.member(of).membership.clone();
        let disk = SimFs::new();
        let wal = Wal::create(disk.clone(), Path::new(DIR), b"scripts", wal::LogPosition::default(), OPTIONS);
        let wal = wal.unwrap();
        let log = OpenedLog { disk, found: RecoveredLog::created(&wal), wal };
        self.voters.push(id);
        self.open(id, log, LogPosition::default(), Some(given), StoreState::Lost);
    }

    fn change(&mut self, id: u64, change: &str) {
        self.batches += 1;
        self.offer(id, &[commands::change_batch(change, self.batches)]);
    }

    fn open(
        &mut self,
        id: u64,
        log: OpenedLog,
        applied: LogPosition,
        membership: Option<Membership>,
        store: StoreState,
    ) {
        let OpenedLog { disk, wal, found } = log;
        let common = self.setup.clone().expect("a script begins with members");
        let setup = CoreSetup { id, store, membership: membership.clone(), ..common };
        let state = durable_state(&self.voters, membership.as_ref(), &found, applied, store).unwrap();
        let (start, last) = (found.start, found.last);
        let log =
            LogStore::open(Box::new(found.reader), state, start, last, applied, CACHE_BYTES_MAX).unwrap();
        let core = Core::new(&setup, log, applied.index).unwrap();
        let seen = (StateRole::Follower, core.term(), None, core.commit());
        let member = ScriptMember {
            disk,
            wal,
            core,
            jobs: Vec::new(),
            disk_is_held: false,
            work: VecDeque::new(),
            machine_is_held: false,
            applied,
            durable: applied,
            durable_membership: membership.clone().unwrap_or_default(),
            membership: membership.unwrap_or_default(),
            seen,
        };
        self.members.insert(id, member);
        self.settle(id);
    }

    /// Handles an event at a member and its effects there.
    fn event(&mut self, id: u64, event: Event) {
        self.member(id).core.handle(event).unwrap();
        let refused = std::mem::take(&mut self.member(id).core.refusals.noted);
        refused.into_iter().for_each(|reason| self.print(&format!("{id}: refuses: {reason}")));
        self.settle(id);
    }

    /// Polls, syncs and applies until the member waits for an event, or for an action that the script holds.
    fn settle(&mut self, id: u64) {
        loop {
            let mut turn = self.member(id).core.turn().unwrap();
            let effects = &mut turn.effects;
            self.print_changes(id);
            let more = effects.more;
            let member = self.member(id);
            let (jobs, sent) = (std::mem::take(&mut effects.persist), std::mem::take(&mut effects.send));
            let verb = if member.disk_is_held { "waits to sync" } else { "syncs" };
            let lines: Vec<_> = jobs.iter().map(|job| format!("{id}: {verb} {}", show::job(job))).collect();
            member.jobs.extend(jobs);
            member.work.extend(std::mem::take(&mut turn.committed));
            self.send(id, sent);
            lines.iter().for_each(|line| self.print(line));
            self.print_effects(id, turn);
            let member = self.member(id);
            let (syncs, applies) = (!member.disk_is_held, !member.machine_is_held);
            let has_synced = syncs && self.sync(id);
            let has_applied = applies && self.apply(id);
            if !more && !has_synced && !has_applied {
                return;
            }
        }
    }

    fn print_changes(&mut self, id: u64) {
        let member = self.member(id);
        let core = &member.core;
        let now = (core.raw.raft.state, core.term(), core.leader(), core.commit());
        let before = std::mem::replace(&mut member.seen, now);
        let (role, term, leader, commit) = now;
        if (before.0, before.1, before.2) != (role, term, leader) {
            let role = show::role(role);
            let of = leader.filter(|leader| *leader != id).map(|leader| format!(" of {leader}"));
            self.print(&format!("{id}: {role}{} t{term}", of.unwrap_or_default()));
        }
        if before.3 != commit {
            self.print(&format!("{id}: commits {commit}"));
        }
    }

    fn print_effects(&mut self, id: u64, turn: CoreTurn) {
        let CoreTurn { effects, confirmed, .. } = turn;
        for (name, index) in confirmed {
            self.print(&format!("{id}: read {} at {index}", name.escape_ascii()));
        }
        for offer in effects.snapshots {
            self.print(&format!("{id}: offers {} a snapshot of {}", offer.to, show::position(offer.at)));
            self.offers.push((id, offer));
        }
        for at in effects.snapshots_ignored {
            self.print(&format!("{id}: ignores the snapshot of {}", show::position(at)));
        }
        if let Some(index) = effects.checkpoint_wanted {
            self.print(&format!("{id}: wants a checkpoint of {index}"));
        }
    }

    /// Orders messages by receiver, because raft-rs iterates over a hash map.
    fn send(&mut self, from: u64, mut sent: Vec<Outbound>) {
        sent.sort_by_key(|message| message.to);
        for message in sent {
            let is_lost = self.isolated.contains(&from) || self.isolated.contains(&message.to);
            let shown = show::message(&show::decoded(from, &message));
            self.print(&format!("{shown}{}", if is_lost { " (lost)" } else { "" }));
            if !is_lost {
                self.wire.push((from, message));
            }
        }
    }

    fn sync(&mut self, id: u64) -> bool {
        let member = self.member(id);
        if member.jobs.is_empty() {
            return false;
        }
        let jobs = std::mem::take(&mut member.jobs);
        let (durable, promises) = persist(&mut member.wal, jobs).unwrap().0.redeem();
        member.core.handle(Event::Durable(durable)).unwrap();
        self.send(id, promises);
        true
    }

    fn apply(&mut self, id: u64) -> bool {
        let work = std::mem::take(&mut self.member(id).work);
        for CommittedEntry { at, payload } in &work {
            self.member(id).applied = *at;
            let shown = match payload {
                Payload::Empty => format!("applies {} -", show::position(*at)),
                Payload::Batch(data) => format!("applies {} {}", show::position(*at), show::payload(data)),
                Payload::Change(data) => {
                    let membership = &mut self.member(id).membership;
                    let is_accepted = commands::apply(membership, data);
                    let (at, change) = (show::position(*at), show::payload(data));
                    match is_accepted {
                        true => format!("applies {at} {change}: {}", commands::shown(membership)),
                        false => format!("applies {at} {change}: refused"),
                    }
                }
                Payload::Install => {
                    self.member(id).durable = *at;
                    format!("installs {}", show::position(*at))
                }
            };
            self.print(&format!("{id}: {shown}"));
            if matches!(payload, Payload::Change(_) | Payload::Install) {
                let membership = self.member(id).membership.clone();
                self.member(id).core.handle(Event::Membership { at: at.index, membership }).unwrap();
            }
        }
        let Some(last) = work.back() else { return false };
        self.member(id).core.handle(Event::Applied { index: last.at.index }).unwrap();
        true
    }

    fn campaign(&mut self, id: u64) {
        let before = self.printed.len();
        for _ in 0..20 {
            self.event(id, Event::Tick);
            if self.printed[before..].contains("vote-request") {
                return;
            }
        }
        self.print(&format!("{id}: does not campaign"));
    }

    fn elect(&mut self, id: u64) {
        let (printed, wire) = (self.printed(), std::mem::take(&mut self.wire));
        let others: Vec<u64> = self.voters.iter().copied().filter(|voter| *voter != id).collect();
        others.into_iter().for_each(|other| (0..10).for_each(|_| self.event(other, Event::Tick)));
        self.wire.clear();
        self.campaign(id);
        self.deliver_all();
        (self.printed, self.wire) = (printed, wire);
        self.status(id);
    }

    fn deliver(&mut self, from: u64, sent: Outbound) {
        if self.members.contains_key(&sent.to) {
            self.event(sent.to, Event::Message { from, bytes: sent.bytes });
        }
    }

    fn deliver_all(&mut self) {
        for _ in 0..10_000 {
            if self.wire.is_empty() {
                return;
            }
            let (from, first) = self.wire.remove(0);
            self.deliver(from, first);
        }
        panic!("messages without end");
    }

    /// Delivers the current messages on a link. Resulting messages stay on the wire.
    fn carry(&mut self, action: &str, of: (u64, u64), kind: &[&str]) {
        let is_meant = |(from, sent): &(u64, Outbound)| {
            let is_kind = |kind: &&str| show::kind(show::decoded(*from, sent).msg_type) == *kind;
            (*from, sent.to) == of && kind.first().is_none_or(is_kind)
        };
        let (meant, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.wire).into_iter().partition(is_meant);
        self.wire = others;
        if meant.is_empty() {
            self.print("no such message");
        }
        match action {
            "reverse" => return self.wire.extend(meant.into_iter().rev()),
            "drop" => return,
            "duplicate" => self.wire.extend(meant.clone()),
            _ => {}
        }
        meant.into_iter().for_each(|(from, sent)| self.deliver(from, sent));
    }

    fn propose(&mut self, id: u64, commands: &[&str]) {
        let mut batches = Vec::new();
        for command in commands {
            self.batches += 1;
            batches.push(batch(command, self.batches));
        }
        self.offer(id, &batches);
    }

    fn offer(&mut self, id: u64, batches: &[Bytes]) {
        match self.member(id).core.propose(batches) {
            Ok(()) => self.settle(id),
            Err(refused) => self.print(&format!("{id}: refuses the proposal: {refused:?}")),
        }
    }

    fn disk(&mut self, id: u64, action: &str) {
        self.member(id).disk_is_held = action != "go";
        if action != "hold" && !self.sync(id) {
            self.print(&format!("{id}: nothing to sync"));
        }
        self.settle(id);
    }

    fn machine(&mut self, id: u64, action: &str) {
        self.member(id).machine_is_held = action != "go";
        if action != "hold" && !self.apply(id) {
            self.print(&format!("{id}: nothing to apply"));
        }
        self.settle(id);
    }

    fn read(&mut self, id: u64, name: &str) {
        if !self.member(id).core.ready_for_reads() {
            return self.print(&format!("{id}: not ready for reads"));
        }
        self.event(id, Event::ReadIndex { context: Bytes::copy_from_slice(name.as_bytes()) });
    }

    fn stream(&mut self, of: (u64, u64), arrives: bool) {
        let place = self.offers.iter().position(|(from, offer)| (*from, offer.to) == of);
        let Some(place) = place else { return self.print("no such offer") };
        let (from, offer) = self.offers.remove(place);
        if arrives {
            let (at, membership) = (self.member(from).durable, self.member(from).durable_membership.clone());
            self.member(offer.to).membership.clone_from(&membership);
            self.member(offer.to).durable_membership = membership;
            self.event(offer.to, Event::Message { from, bytes: offer.message(at) });
        }
        let outcome = if arrives { SnapshotOutcome::Sent } else { SnapshotOutcome::Failed };
        self.event(from, Event::SnapshotReported { peer: offer.to, outcome });
    }

    /// Restarts a member, and drops unsynced data and messages in flight to it.
    fn restart(&mut self, id: u64, how: Option<&str>) {
        let old = self.members.remove(&id).expect("a member");
        self.wire.retain(|(_, sent)| sent.to != id);
        self.offers.retain(|(from, _)| *from != id);
        if how == Some("empty") {
            self.setup.as_mut().expect("a script begins with members").empty_log = EmptyLog::Unconfirmed;
            return self.create(id);
        }
        let disk = old.disk.crashed(Crash::Synced, &mut || false);
        let (wal, recovery) = Wal::open(disk.clone(), Path::new(DIR), OPTIONS).unwrap();
        let log = OpenedLog { disk, found: RecoveredLog::opened(&wal, recovery), wal };
        let (applied, store) = match how {
            Some("lost") => (LogPosition::default(), StoreState::Lost),
            _ => (old.durable, StoreState::Whole),
        };
        let is_changing = self.setup.as_ref().is_some_and(|setup| setup.membership.is_some());
        let membership = is_changing.then_some(old.durable_membership);
        self.open(id, log, applied, membership, store);
    }

    fn inquire(&mut self, id: u64, peers: &[u64]) {
        let own = FirstState::of(self.member(id).core.last_index(), 0);
        let mut inquiry = Inquiry::new(id, &self.voters, own);
        for peer in peers {
            let Some(answer) = self.member(*peer).core.answer_member(id) else {
                self.print(&format!("{peer}: does not answer yet"));
                continue;
            };
            let role = if answer.is_leader { ", leads" } else { "" };
            let held = if answer.is_held { ", held" } else { "" };
            self.print(&format!("{peer}: answers t{} last {}{role}{held}", answer.term, answer.last_index));
            inquiry.note(*peer, answer, 0);
        }
        match inquiry.confirmation() {
            None => return self.print(&format!("{id}: unconfirmed")),
            Some(Confirmation::New) => self.print(&format!("{id}: confirmed as new")),
            Some(Confirmation::CatchUp { until }) => {
                self.print(&format!("{id}: confirmed, held until {}", show::position(until)));
            }
        }
        self.event(id, Event::Confirmed(inquiry.confirmation().expect("just seen")));
    }

    fn status(&mut self, id: u64) {
        let member = self.member(id);
        let core = &member.core;
        let last = core.last_index();
        let last = show::position(LogPosition { index: last, term: core.term_at(last).unwrap_or_default() });
        let leader = core.leader().filter(|leader| *leader != id).map(|leader| format!(" of {leader}"));
        let starved = if core.is_starved() { ", more to apply" } else { "" };
        let held = match (core.is_unconfirmed(), core.is_held()) {
            (true, _) => ", unconfirmed",
            (_, true) => ", held",
            _ => "",
        };
        let members = core.follows_machine.then(|| format!(", {}", commands::shown(&core.membership())));
        let members = members.unwrap_or_default();
        let line = format!(
            "{id}: {}{} t{}, last {last}, commit {}, applied {}{starved}{held}{members}",
            show::role(core.raw.raft.state),
            leader.unwrap_or_default(),
            core.term(),
            core.commit(),
            member.applied.index
        );
        self.print(&line);
    }

    fn progress(&mut self, id: u64, of: u64) {
        let line = match self.member(id).core.progress_of(of) {
            None => format!("{id}: knows nothing of {of}"),
            Some(progress) => {
                let Progress { matched, applied, last_index } = progress;
                let sync = if progress.is_in_sync() { "in sync" } else { "out of sync" };
                format!("{id}: {of} has {matched} and has applied {applied} of {last_index}: {sync}")
            }
        };
        self.print(&line);
    }

    fn log(&mut self, id: u64) {
        let store = self.member(id).core.raw.store();
        let (first, last) = (store.first_index().unwrap(), store.last_index().unwrap());
        let mut entries = Vec::new();
        while first + (entries.len() as u64) <= last {
            let next = first + entries.len() as u64;
            entries.extend(store.entries(next, last + 1, None, GetEntriesContext::empty(false)).unwrap());
        }
        self.print(&format!("{id}: after {} [{}]", first - 1, show::entries(&entries)));
    }
}
