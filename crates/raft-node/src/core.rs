//! The Raft core: events in, effects out. No clock, no disk, no channel; the same events give the same effects.
//!
//! ```text
//!   events ──handle──▶ raft-rs ──turn──▶ Effects { send, persist, committed, confirmed }
//!     ▲                                     │        │         └▶ apply ──▶ Event::Applied
//!     └──────────── Event::Durable ◀────────┼── one sync
//!                                           └▶ peers, at once
//! ```
//!
//! * What a leader appends leaves in the same turn as it is handed to the disk (Raft thesis 10.2.1); raft-rs counts
//!   the leader's own vote for an entry only after `Durable`. Everything else that promises durability is inside
//!   the persist job.
//! * Jobs are numbered; `Durable` of one covers all before it.
//! * Committed entries are handed out in order, each once, only when they are synced here as well, and only while
//!   less than `apply_bytes_max` of them wait to be applied. The rest is fetched again when there is room.
//! * A commit index that moved is no reason to sync: it rides along with the next job.

use std::collections::VecDeque;

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, HardState, Message, MessageType};
use raft::{RawNode, StateRole};

use crate::batch::Batch;
use crate::event::{Committed, Effects, Event, Payload, Setup};
use crate::message::{decode, encode_all, entry_kind};
use crate::persist::PersistJob;
use crate::store::LogStore;
use crate::{Fatal, Limits, Position, Role};

/// Messages of entries on their way to one follower: 64 of at most 1 MiB fill any link's delay, and bound what the
/// transport may hold for a follower that does not answer.
const INFLIGHT_MESSAGES_MAX: usize = 64;
/// Committed entries in one turn: small enough that a turn never keeps heartbeats waiting.
const COMMITTED_BYTES_PER_READY: u64 = 4 << 20;
/// Readies in one turn. More are taken in the next one, after the inbox had its say.
const READIES_PER_TURN: usize = 8;

/// Why a batch was not taken. It was not proposed and may be proposed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    NoLeader,
    /// The previous turn's entries are not synced yet, or leadership is moving, or too much is uncommitted.
    Busy,
}

/// The core of one member. Its owner feeds it with [`Core::handle`] and carries out what [`Core::turn`] asks for.
pub(crate) struct Core {
    raw: RawNode<LogStore>,
    /// Numbers of the jobs handed out and not yet durable.
    unsynced: VecDeque<u64>,
    /// The newest ready's number, whether or not it needed a job.
    newest: u64,
    /// The newest job that carries a new term or vote, while it is not durable.
    vote_unsynced: Option<u64>,
    /// Hard state or membership changed since the last job.
    state_due: bool,
    /// Batches that followers sent to this leader, waiting for the disk.
    forwarded: Vec<Bytes>,
    forwarded_bytes: usize,
    /// Last index that is committed and synced here.
    stable: u64,
    /// Last index handed out for applying.
    handed: u64,
    /// (index, bytes) of what was handed out and is not yet applied.
    applying: VecDeque<(u64, usize)>,
    applying_bytes: usize,
    apply_bytes_max: usize,
}

impl Core {
    /// Builds the core over a log; `applied` is where the state machine stands.
    pub fn new(setup: &Setup, mut store: LogStore, applied: u64) -> Result<Core, Fatal> {
        assert!(setup.apply_bytes_max > 0, "nothing could ever be applied");
        assert!(
            setup.timeout_ticks.start >= setup.election_ticks,
            "an election before the leader's time is up"
        );
        // A log without any state yet: the membership it was told must become durable with the first job.
        let fresh = store.state.hard == HardState::default();
        store.state.hard = crate::store::restarted(store.state.hard.clone(), applied);
        let voters = store.state.conf.voters.clone();
        let raw = RawNode::new(&raft_config(setup, applied), store, &crate::logger::logger())
            .map_err(|error| Fatal::new(format!("build the Raft core: {error}")))?;
        let mut core = Core {
            raw,
            unsynced: VecDeque::new(),
            newest: 0,
            vote_unsynced: None,
            state_due: fresh,
            forwarded: Vec::new(),
            forwarded_bytes: 0,
            stable: applied,
            handed: applied,
            applying: VecDeque::new(),
            applying_bytes: 0,
            apply_bytes_max: setup.apply_bytes_max,
        };
        if voters == [setup.id] {
            // Nobody else could object, so there is nothing to wait for.
            core.step(|raw| raw.campaign());
        }
        Ok(core)
    }

    /// Takes in one event. Its effects come with the next [`Core::turn`].
    pub fn handle(&mut self, event: Event) -> Result<(), Fatal> {
        match event {
            Event::Tick => drop(self.raw.tick()),
            Event::Message { from, bytes } => self.receive(from, bytes)?,
            Event::Durable(durable) => self.durable(durable.number),
            Event::Applied { index } => self.applied(index),
            Event::Unreachable { peer } => self.raw.report_unreachable(peer),
            Event::TransferLeader { to } => self.raw.transfer_leader(to),
            Event::ReadIndex { context } => self.raw.read_index(context.to_vec()),
        }
        self.raw.store().take_failure().map_or(Ok(()), Err)
    }

    /// Proposes batches as entries of their own, in one step. On a follower they leave for the leader.
    pub fn propose(&mut self, batches: &[Bytes]) -> Result<(), Refused> {
        assert!(!batches.is_empty(), "nothing to propose");
        self.ready_for_proposals()?;
        let entry = |data: &Bytes| Entry { data: data.clone(), ..Entry::default() };
        let entries: Vec<Entry> = batches.iter().map(entry).collect();
        let from = self.raw.raft.id;
        let message = Message {
            msg_type: MessageType::MsgPropose,
            from,
            entries: entries.into(),
            ..Message::default()
        };
        self.raw.step(message).map_err(|_| Refused::Busy)
    }

    /// Whether a proposal would be taken now. While a leader's entries are being synced the next ones wait, so
    /// that batches grow with the load; a follower forwards at any time.
    pub fn ready_for_proposals(&self) -> Result<(), Refused> {
        match self.role() {
            _ if self.leader().is_none() => Err(Refused::NoLeader),
            Role::Leader if !self.unsynced.is_empty() || self.raw.raft.lead_transferee.is_some() => {
                Err(Refused::Busy)
            }
            Role::Leader | Role::Follower | Role::Candidate => Ok(()),
        }
    }

    /// Whether a read round begun now can be answered at all.
    pub fn ready_for_reads(&self) -> bool {
        match self.role() {
            // A leader knows what is committed only after committing in its own term (Raft thesis 6.4).
            Role::Leader => self.raw.raft.commit_to_current_term(),
            Role::Follower => self.leader().is_some(),
            Role::Candidate => false,
        }
    }

    /// Collects everything that the events since the last turn call for.
    pub fn turn(&mut self) -> Result<Effects, Fatal> {
        let mut effects = Effects::default();
        self.propose_forwarded();
        for _ in 0..READIES_PER_TURN {
            if !self.raw.has_ready() {
                break;
            }
            self.take_ready(&mut effects)?;
        }
        effects.more = self.raw.has_ready();
        assert!(self.stable <= self.commit(), "only what is committed is handed out");
        self.hand_out_more(&mut effects)?;
        self.raw.store().take_failure().map_or(Ok(effects), Err)
    }

    /// What this member is in the current term; a pre-candidate, who only asks whether it should stand, counts as
    /// candidate.
    pub fn role(&self) -> Role {
        match self.raw.raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
        }
    }

    /// Whom this member takes for the leader of [`Core::term`]: itself, another, or nobody yet.
    pub fn leader(&self) -> Option<u64> {
        Some(self.raw.raft.leader_id).filter(|id| *id != raft::INVALID_ID)
    }

    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// The commit index as this member knows it. Its own log may not be synced that far: see `stable`.
    pub fn commit(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    pub fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    pub fn voters(&self) -> &[u64] {
        &self.raw.store().state.conf.voters
    }

    /// Whether committed entries wait for earlier ones to be applied.
    pub fn is_starved(&self) -> bool {
        self.handed < self.stable
    }

    /// The other voter whose log is furthest, as far as this leader knows.
    pub fn most_caught_up(&self) -> Option<u64> {
        let this = self.raw.raft.id;
        let progress = self.raw.raft.prs().iter().filter(|(id, _)| **id != this);
        // Of equals the lowest id, so that the choice does not depend on the order of a hash map.
        progress
            .max_by_key(|(id, p)| (p.recent_active, p.matched, std::cmp::Reverse(**id)))
            .map(|(id, _)| *id)
    }

    /// Term of an entry that is in the log, for checks of the log's laws.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        self.raw.raft.raft_log.term(index).ok()
    }

    /// Takes in a peer's message. What is malformed, or asks for what raft-rs would panic at, stops here: the first
    /// is the peer's fault and dropped, the second says that this member's own disk is no longer to be trusted.
    fn receive(&mut self, from: u64, bytes: Bytes) -> Result<(), Fatal> {
        let message = match decode(from, self.raw.raft.id, bytes) {
            Ok(message) => message,
            Err(error) => {
                tracing::warn!(peer = from, %error, "message dropped");
                return Ok(());
            }
        };
        if message.msg_type == MessageType::MsgHeartbeat
            && message.term >= self.term()
            && message.commit > self.last_index()
        {
            // The leader only says so after this member acknowledged that entry as synced.
            return Err(Fatal::new(format!(
                "follow member {from}: this log ends at {}, but had acknowledged {}; it lost synced entries",
                self.last_index(),
                message.commit
            )));
        }
        if message.msg_type == MessageType::MsgPropose {
            self.receive_proposal(from, message);
            return Ok(());
        }
        self.step(|raw| raw.step(message));
        Ok(())
    }

    /// A refusal of raft-rs here concerns one message only; whoever waits for an effect of it has a timeout.
    fn step(&mut self, action: impl FnOnce(&mut RawNode<LogStore>) -> raft::Result<()>) {
        if let Err(error) = action(&mut self.raw) {
            tracing::debug!(target: "raft", %error, "message refused");
        }
    }

    /// A leader keeps a forwarded batch until the disk is free; any other member passes it on.
    fn receive_proposal(&mut self, from: u64, message: Message) {
        for entry in &message.entries {
            // What every member will have to apply must be sound before it enters the log.
            if entry.entry_type != EntryType::EntryNormal || Batch::parse(&entry.data).is_err() {
                tracing::warn!(peer = from, "malformed proposal dropped");
                return;
            }
        }
        if self.role() != Role::Leader {
            return self.step(|raw| raw.step(message));
        }
        let bytes: usize = message.entries.iter().map(|entry| entry.data.len()).sum();
        if self.forwarded_bytes + bytes > Limits::UNCOMMITTED_BYTES_MAX as usize {
            tracing::warn!(peer = from, bytes, "proposal dropped: too many are waiting");
            return;
        }
        self.forwarded_bytes += bytes;
        self.forwarded.extend(message.entries.into_iter().map(|entry| entry.data));
    }

    /// Batches of followers go into the log in one step, as soon as the disk is free.
    fn propose_forwarded(&mut self) {
        if self.forwarded.is_empty() {
            return;
        }
        let batches = std::mem::take(&mut self.forwarded);
        match self.propose(&batches) {
            // Without a leader nobody can take them; their proposers wait with a timeout, not for this member.
            Ok(()) | Err(Refused::NoLeader) => self.forwarded_bytes = 0,
            Err(Refused::Busy) => self.forwarded = batches,
        }
        assert_eq!(
            self.forwarded.is_empty(),
            self.forwarded_bytes == 0,
            "kept batches and their bytes disagree"
        );
    }

    /// One round of raft-rs' asynchronous ready.
    ///
    /// The order is its contract: everything in the ready is taken, the log store holds the entries, and only then is
    /// the ready advanced. That the entries are on disk is reported later, by [`Event::Durable`] of the job's number;
    /// readies in between are allowed, and one that needs no job is persisted as soon as all before it are.
    fn take_ready(&mut self, effects: &mut Effects) -> Result<(), Fatal> {
        let mut ready = self.raw.ready();
        let number = ready.number();
        assert!(number > self.newest, "readies are numbered in order");
        assert!(ready.snapshot().is_empty(), "no member sends Raft snapshots");
        self.newest = number;
        effects.send.extend(encode_all(ready.take_messages()));
        effects
            .confirmed
            .extend(ready.take_read_states().into_iter().map(|r| (r.request_ctx.into(), r.index)));
        self.note_vote(ready.hs(), number);
        let (promises, free): (Vec<_>, Vec<_>) = ready
            .take_persisted_messages()
            .into_iter()
            .partition(|message| self.promises_durability(message));
        effects.send.extend(encode_all(free));
        let promises = encode_all(promises);
        let entries = ready.take_entries();
        let committed = ready.take_committed_entries();
        let must_sync = ready.must_sync();
        let hard = ready.hs().cloned();
        let store = self.raw.mut_store();
        // raft-rs reads the entries back from the store as soon as the ready is advanced.
        store.append(&entries);
        if let Some(hard) = hard {
            store.state.hard = hard;
            self.state_due = true;
        }
        self.raw.advance_append_async(ready);
        if must_sync || (!promises.is_empty() && !self.unsynced.is_empty()) {
            let state = std::mem::take(&mut self.state_due).then(|| self.raw.store().state.encode());
            self.unsynced.push_back(number);
            effects.persist.push(PersistJob { number, entries, state, promises });
            if cfg!(feature = "mutant-leader-counts-unsynced") {
                self.raw.on_persist_ready(number);
            }
        } else {
            // Nothing new to make durable and nothing before it under way: these promises are kept already.
            effects.send.extend(promises);
            self.acknowledge_idle();
        }
        self.hand_out(committed, effects)
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

    /// raft-rs holds back everything that a follower or candidate says until all before it is synced. Some of it says
    /// nothing about this member's disk, and readers and writers wait for it: what is forwarded for others, and the
    /// answer to a heartbeat, which only says that this member was in the leader's term when it came. That must not
    /// be said of a term that a crash could take back.
    fn promises_durability(&self, message: &Message) -> bool {
        match message.msg_type {
            _ if cfg!(feature = "mutant-early-promises") => false,
            MessageType::MsgPropose | MessageType::MsgReadIndex => false,
            MessageType::MsgHeartbeatResponse => self.vote_unsynced.is_some(),
            _ => true,
        }
    }

    /// A sync covered the job `number` and all before it. This is where a leader counts its own copy of an entry, and
    /// where a lone voter commits.
    fn durable(&mut self, number: u64) {
        assert!(self.unsynced.contains(&number), "a sync of job {number}, which is not under way");
        while self.unsynced.front().is_some_and(|first| *first <= number) {
            self.unsynced.pop_front();
        }
        self.vote_unsynced = self.vote_unsynced.filter(|job| *job > number);
        self.raw.on_persist_ready(number);
        self.acknowledge_idle();
    }

    /// Readies without a job count as persisted once every job before them is.
    fn acknowledge_idle(&mut self) {
        if self.unsynced.is_empty() {
            self.raw.on_persist_ready(self.newest);
        }
    }

    /// Hands out what raft-rs just gave, as far as there is room and nothing older waits. raft-rs gives each entry
    /// once; what finds no room here is read from the log again by [`Core::hand_out_more`].
    fn hand_out(&mut self, committed: Vec<Entry>, effects: &mut Effects) -> Result<(), Fatal> {
        let Some(last) = committed.last() else { return Ok(()) };
        assert!(last.index > self.stable, "entry {} was committed before", last.index);
        let next = self.stable + 1;
        self.stable = last.index;
        assert_eq!(
            committed.len() as u64,
            last.index + 1 - committed[0].index,
            "a gap among committed entries"
        );
        // Only if nothing is owed from before; otherwise the order says to fetch them again, later.
        if self.handed + 1 == next && committed[0].index == next {
            for entry in committed {
                if self.applying_bytes >= self.apply_bytes_max {
                    break;
                }
                self.hand_out_one(entry, effects)?;
            }
        }
        Ok(())
    }

    /// Hands out what had to wait, and lets the cache forget what it no longer must hold.
    fn hand_out_more(&mut self, effects: &mut Effects) -> Result<(), Fatal> {
        while self.handed < self.stable && self.applying_bytes < self.apply_bytes_max {
            let room = self.apply_bytes_max - self.applying_bytes;
            for entry in self.raw.store().read(self.handed + 1, self.stable + 1, room)? {
                self.hand_out_one(entry, effects)?;
            }
        }
        let stable = self.stable;
        self.raw.mut_store().evict(stable);
        Ok(())
    }

    fn hand_out_one(&mut self, entry: Entry, effects: &mut Effects) -> Result<(), Fatal> {
        assert_eq!(entry.index, self.handed + 1, "entries are applied in order, each once");
        self.handed = entry.index;
        // The least an entry can count, so that empty ones are bounded as well.
        let bytes = entry.data.len() + 64;
        self.applying_bytes += bytes;
        self.applying.push_back((entry.index, bytes));
        let payload = match entry.entry_type {
            EntryType::EntryNormal if entry.data.is_empty() => Payload::Empty,
            EntryType::EntryNormal => Payload::Batch(entry.data),
            EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                let kind = entry_kind(&entry);
                return Err(Fatal::new(format!("apply entry {}: kind {kind} is not supported", entry.index)));
            }
        };
        effects.committed.push(Committed { at: Position { index: entry.index, term: entry.term }, payload });
        Ok(())
    }

    /// Makes room for more. raft-rs wants to know as well: a member with unapplied changes of membership must not
    /// stand for election.
    fn applied(&mut self, index: u64) {
        assert!(index <= self.handed, "entry {index} was applied before it was handed out");
        assert!(self.handed <= self.stable, "handed out before it was committed and synced");
        while let Some((_, bytes)) = self.applying.front().filter(|(first, _)| *first <= index) {
            self.applying_bytes -= bytes;
            self.applying.pop_front();
        }
        assert_eq!(self.applying.is_empty(), self.applying_bytes == 0, "a leak in the bytes being applied");
        if index > self.raw.raft.raft_log.applied {
            self.raw.advance_apply_to(index);
        }
    }
}

/// What raft-rs is told. Its defaults are no help: one entry per message, no bound on anything, no pre-vote.
///
/// * `pre_vote` and `check_quorum`: a member that was cut off does not depose a healthy leader when it returns, and a
///   leader that was cut off stops believing that it leads.
/// * Reads are confirmed by a quorum each time (the default, "safe"): a lease would trust every member's clock.
/// * `batch_append` stays off: it merges messages beyond any limit on their size.
fn raft_config(setup: &Setup, applied: u64) -> raft::Config {
    raft::Config {
        id: setup.id,
        election_tick: setup.election_ticks as usize,
        heartbeat_tick: setup.heartbeat_ticks as usize,
        applied,
        max_size_per_msg: Limits::MESSAGE_BYTES_MAX,
        max_inflight_msgs: INFLIGHT_MESSAGES_MAX,
        check_quorum: true,
        pre_vote: true,
        min_election_tick: setup.timeout_ticks.start as usize,
        max_election_tick: setup.timeout_ticks.end as usize,
        max_uncommitted_size: Limits::UNCOMMITTED_BYTES_MAX,
        max_committed_size_per_ready: COMMITTED_BYTES_PER_READY,
        read_only_option: if cfg!(feature = "mutant-lease-reads") {
            raft::ReadOnlyOption::LeaseBased
        } else {
            raft::ReadOnlyOption::Safe
        },
        ..raft::Config::default()
    }
}

#[cfg(test)]
mod tests;
