//! Time, and what happens next.
//!
//! A queue of happenings, ordered by time and then by when they were planned. Each is carried out on one member,
//! which then turns; what that calls for is planned in its turn. After the story's faulty part everything heals, and
//! the cluster must serve again and end in one state.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use raft_node::{Event, Outbound};

use crate::chance::{Chance, fold};
use crate::clients::{Ask, Clients, RequestId};
use crate::laws::{Breach, Elections, Truth, logs_match};
use crate::machine::SharedTruth;
use crate::network::Network;
use crate::site::{LocalDone, LocalTurn, Site};

pub(crate) const MILLISECOND: u64 = 1_000;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;
const TICK: u64 = 100 * MILLISECOND;
/// Calm time after the faults: clients stop, and everybody must have caught up, before it ends.
const CALM: u64 = 20 * SECOND;
const QUIET: u64 = 6 * SECOND;
/// Calm time after which everybody has found a leader again.
const SETTLING: u64 = 5 * SECOND;
/// Longer than messages, syncs and batches take in calm weather; shorter than any retry.
const PROMPT: u64 = 300 * MILLISECOND;
/// How long a client rests between requests at most.
const THINK_MAX: u64 = 200 * MILLISECOND;

/// One story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub members: u64,
    pub clients: u64,
    /// Seconds of simulated time with faults.
    pub seconds: u64,
    pub flaw: Flaw,
}

/// A bug that the world is given on purpose: a checker that never failed proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// Disks report syncs that a crash shows never to have happened.
    DisksForget,
    /// A member answers reads from its store without asking anybody.
    ReadsAskNobody,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Hash of everything that happened.
    pub trace: u64,
    pub simulated_seconds: u64,
    pub happenings: u64,
    pub puts: u64,
    pub gets: u64,
    pub failed: u64,
    pub terms_led: usize,
    pub crashes: u64,
    pub partitions: u64,
    pub pauses: u64,
}

#[derive(Debug)]
pub(crate) enum Happening {
    Tick { to: u64, boot: u64 },
    Deliver { from: u64, to: u64, bytes: Bytes },
    Sync { to: u64, boot: u64 },
    Apply { to: u64, boot: u64 },
    Client { client: u64 },
    Restart { to: u64 },
    Fault,
    Heal,
}

pub(crate) struct World {
    plan: Plan,
    pub now: u64,
    planned: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    pub chance: Chance,
    pub sites: BTreeMap<u64, Site>,
    pub network: Network,
    pub clients: Clients,
    truth: SharedTruth,
    elections: Elections,
    pub report: Report,
    pub healed: bool,
    /// Puts acknowledged since everything healed.
    pub puts_when_healed: u64,
}

/// Plays a story to its end.
pub fn run(plan: Plan) -> Result<Report, Breach> {
    let mut world = World::new(plan)?;
    let end = plan.seconds * SECOND + CALM;
    while let Some((&(at, number), _)) = world.queue.first_key_value() {
        if at > end {
            break;
        }
        let happening = world.queue.remove(&(at, number)).expect("looked at just now");
        world.now = at;
        world.happen(happening)?;
    }
    world.finish()
}

impl World {
    fn new(plan: Plan) -> Result<World, Breach> {
        let mut world = World {
            plan,
            now: 0,
            planned: 0,
            queue: BTreeMap::new(),
            chance: Chance::new(plan.seed),
            sites: (1..=plan.members).map(|id| (id, Site::new(id, plan.flaw))).collect(),
            network: Network::new(),
            clients: Clients::default(),
            truth: Arc::new(Mutex::new(Truth::default())),
            elections: Elections::default(),
            report: Report {
                trace: plan.seed,
                simulated_seconds: plan.seconds + CALM / SECOND,
                happenings: 0,
                puts: 0,
                gets: 0,
                failed: 0,
                terms_led: 0,
                crashes: 0,
                partitions: 0,
                pauses: 0,
            },
            healed: false,
            puts_when_healed: 0,
        };
        for id in 1..=plan.members {
            world.boot(id)?;
        }
        for client in 0..plan.clients {
            world.after(client * MILLISECOND, Happening::Client { client });
        }
        world.after(3 * SECOND, Happening::Fault);
        world.after(plan.seconds * SECOND, Happening::Heal);
        Ok(world)
    }

    pub fn after(&mut self, delay: u64, happening: Happening) {
        self.planned += 1;
        self.queue.insert((self.now + delay, self.planned), happening);
    }

    pub fn ids(&self) -> Vec<u64> {
        self.sites.keys().copied().collect()
    }

    pub fn site(&mut self, id: u64) -> &mut Site {
        self.sites.get_mut(&id).expect("members are never removed")
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Breach> {
        self.report.happenings += 1;
        self.trace(&happening);
        match happening {
            Happening::Tick { to, boot } => self.tick(to, boot),
            Happening::Deliver { from, to, bytes } => self.deliver(from, to, bytes),
            Happening::Sync { to, boot } => self.sync(to, boot),
            Happening::Apply { to, boot } => self.apply(to, boot),
            Happening::Client { client } => self.client(client),
            Happening::Restart { to } if self.sites[&to].up.is_none() => self.boot(to),
            Happening::Restart { .. } => Ok(()),
            Happening::Fault => self.fault(),
            Happening::Heal => self.heal(),
        }
    }

    fn trace(&mut self, happening: &Happening) {
        let mut digest = fold(self.report.trace, &self.now.to_le_bytes());
        digest = fold(digest, format!("{:?}", std::mem::discriminant(happening)).as_bytes());
        if let Happening::Deliver { from, to, bytes } = happening {
            digest = fold(digest ^ from << 8 ^ to, bytes);
        }
        self.report.trace = digest;
    }

    /// True if the member cannot act now; what it should have done comes later, or never if it was down meanwhile.
    fn is_away(&self, id: u64, boot: u64) -> bool {
        let site = &self.sites[&id];
        site.up.is_none() || site.boots != boot
    }

    fn pause_left(&self, id: u64) -> Option<u64> {
        self.sites[&id].paused_until.checked_sub(self.now).filter(|left| *left > 0)
    }

    pub fn boot(&mut self, id: u64) -> Result<(), Breach> {
        let (ids, truth) = (self.ids(), self.truth.clone());
        let site = self.sites.get_mut(&id).expect("members are never removed");
        site.boot(&ids, &truth, &mut self.chance)?;
        let boot = site.boots;
        let first = self.chance.within(1, TICK);
        self.after(first, Happening::Tick { to: id, boot });
        self.turn(id)
    }

    fn tick(&mut self, to: u64, boot: u64) -> Result<(), Breach> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        // Clocks drift by up to one part in fifty.
        let next = self.chance.within(TICK - TICK / 50, TICK + TICK / 50);
        self.after(next, Happening::Tick { to, boot });
        if self.pause_left(to).is_some() {
            return Ok(()); // Whoever stands still misses ticks.
        }
        self.site(to).handle(Event::Tick)?;
        self.turn(to)?;
        self.check_logs(to)
    }

    fn deliver(&mut self, from: u64, to: u64, bytes: Bytes) -> Result<(), Breach> {
        if let Some(left) = self.pause_left(to) {
            self.after(left, Happening::Deliver { from, to, bytes });
            return Ok(());
        }
        if self.sites[&to].up.is_none() {
            return Ok(());
        }
        self.site(to).handle(Event::Message { from, bytes })?;
        self.turn(to)
    }

    fn sync(&mut self, to: u64, boot: u64) -> Result<(), Breach> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        if let Some(left) = self.pause_left(to) {
            self.after(left, Happening::Sync { to, boot });
            return Ok(());
        }
        let (durable, promises) = self.site(to).sync()?;
        self.site(to).handle(Event::Durable(durable))?;
        self.send(to, promises);
        self.turn(to)
    }

    fn apply(&mut self, to: u64, boot: u64) -> Result<(), Breach> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        if let Some(left) = self.pause_left(to) {
            self.after(left, Happening::Apply { to, boot });
            return Ok(());
        }
        let Some(done) = self.site(to).apply_next()? else { return Ok(()) };
        if !self.sites[&to].up.as_ref().is_none_or(|up| up.work.is_empty()) {
            let soon = self.chance.within(10, 2 * MILLISECOND);
            self.after(soon, Happening::Apply { to, boot });
        }
        self.answer(to, done)?;
        if self.chance.per_mille(20) {
            self.site(to).checkpoint()?;
        }
        let index = self.sites[&to].applied();
        self.site(to).handle(Event::Applied { index })?;
        self.turn(to)
    }

    fn answer(&mut self, member: u64, done: LocalDone) -> Result<(), Breach> {
        let truth = self.truth.clone();
        let truth = truth.lock().unwrap_or_else(PoisonError::into_inner);
        for (request, outcome) in done.answered {
            self.check_prompt(request)?;
            let (client, revision) = self.clients.put_answered(request, outcome, &truth)?;
            self.check_durable(&truth, revision)?;
            self.rest(client);
        }
        drop(truth);
        done.readable.into_iter().try_for_each(|request| self.read(member, request))
    }

    fn read(&mut self, member: u64, request: RequestId) -> Result<(), Breach> {
        self.check_prompt(request)?;
        let store = self.sites[&member].up.as_ref().expect("only a running member is read").store.clone();
        let truth = self.truth.clone();
        let truth = truth.lock().unwrap_or_else(PoisonError::into_inner);
        let client = self.clients.may_read(request, &store, &truth)?;
        self.rest(client);
        Ok(())
    }

    /// Once everything has healed and settled, nobody waits for long: a lost answer that only a retry repairs would
    /// break no promise, and nobody would ever find it.
    fn check_prompt(&self, request: RequestId) -> Result<(), Breach> {
        let calm_since = self.plan.seconds * SECOND + SETTLING;
        match self.clients.asked_at(request) {
            Some(asked) if asked > calm_since && self.now - asked > PROMPT => {
                Err(format!("a request took {} ms in calm weather", (self.now - asked) / MILLISECOND).into())
            }
            _ => Ok(()),
        }
    }

    fn check_durable(&self, truth: &Truth, revision: i64) -> Result<(), Breach> {
        let at = truth.entry_of(revision).ok_or("an acknowledged revision is in no entry")?;
        let holders = self.sites.values().filter(|site| site.holds(at.index, at.term)).count();
        if 2 * holders <= self.sites.len() {
            return Err(format!(
                "revision {revision} was acknowledged, but only {holders} members have it synced"
            )
            .into());
        }
        Ok(())
    }

    fn check_logs(&self, id: u64) -> Result<(), Breach> {
        let up = |site: &Site| site.up.as_ref().map(|up| up.node.gauges().last_index);
        let one = &self.sites[&id];
        for other in self.sites.values().filter(|other| other.id != id) {
            let (Some(last), Some(last_other)) = (up(one), up(other)) else { continue };
            let term = |site: &Site, index| site.up.as_ref().and_then(|up| up.node.term_at(index));
            logs_match(last.min(last_other), |index| term(one, index), |index| term(other, index))?;
        }
        Ok(())
    }

    /// One turn of a member, and another as long as it has more to do.
    pub fn turn(&mut self, id: u64) -> Result<(), Breach> {
        loop {
            let turn = self.site(id).turn()?;
            let gauges = self.sites[&id].up.as_ref().expect("it turned just now").node.gauges();
            self.elections.observe(id, gauges)?;
            if !self.perform(id, turn) {
                return Ok(());
            }
        }
    }

    fn perform(&mut self, id: u64, turn: LocalTurn) -> bool {
        self.send(id, turn.send);
        for request in
            turn.proposals_failed.iter().map(|(id, _)| id).chain(turn.reads_failed.iter().map(|(id, _)| id))
        {
            self.gone(*request);
        }
        let boot = self.sites[&id].boots;
        let up = self.site(id).up.as_mut().expect("it turned just now");
        let (idle_disk, idle_machine) = (up.jobs.is_empty(), up.work.is_empty());
        let (syncs, applies) =
            (!turn.persist.is_empty() && idle_disk, !turn.apply.is_empty() && idle_machine);
        up.jobs.extend(turn.persist);
        up.work.extend(turn.apply);
        if syncs {
            // Mostly quick, sometimes not; in the calm part always quick.
            let slow = self.chance.per_mille(30) && !self.healed;
            let slow = if slow { 200 * MILLISECOND } else { 3 * MILLISECOND };
            let delay = self.chance.within(100, slow);
            self.after(delay, Happening::Sync { to: id, boot });
        }
        if applies {
            let delay = self.chance.within(10, 2 * MILLISECOND);
            self.after(delay, Happening::Apply { to: id, boot });
        }
        turn.more
    }

    fn send(&mut self, from: u64, messages: Vec<Outbound>) {
        for message in messages {
            for delay in self.network.arrivals(from, &message, &mut self.chance) {
                let (to, bytes) = (message.to, message.bytes.clone());
                self.after(delay, Happening::Deliver { from, to, bytes });
            }
        }
    }

    fn client(&mut self, client: u64) -> Result<(), Breach> {
        if self.now + QUIET > self.plan.seconds * SECOND + CALM {
            return Ok(()); // The story ends; nobody asks any more.
        }
        let member = self.chance.within(1, self.plan.members + 1);
        if self.sites[&member].up.is_none() || self.pause_left(member).is_some() {
            self.rest(client);
            return Ok(());
        }
        let (request, ask) = self.clients.ask(client, member, self.now, &mut self.chance);
        if let (Ask::Read, Flaw::ReadsAskNobody) = (&ask, self.plan.flaw) {
            return self.read(member, request);
        }
        let node = &mut self.site(member).up.as_mut().expect("looked at just now").node;
        match ask {
            Ask::Propose(command) => node.offer(command, request),
            Ask::Read => node.ask(request),
        }
        self.turn(member)
    }

    fn rest(&mut self, client: u64) {
        let delay = self.chance.within(MILLISECOND, THINK_MAX);
        self.after(delay, Happening::Client { client });
    }

    pub fn gone(&mut self, request: RequestId) {
        if let Some(client) = self.clients.gone(request) {
            self.rest(client);
        }
    }

    /// Everything healed and came to rest: the cluster must have served, and all members must be equal.
    fn finish(mut self) -> Result<Report, Breach> {
        if self.clients.puts == self.puts_when_healed {
            return Err("no write was acknowledged after everything had healed".into());
        }
        let last = self.truth.lock().unwrap_or_else(PoisonError::into_inner).last_index();
        let mut hashes = BTreeMap::new();
        for site in self.sites.values() {
            if site.applied() != last {
                return Err(format!(
                    "member {} applied {} of {last} entries in the end",
                    site.id,
                    site.applied()
                )
                .into());
            }
            let store = &site.up.as_ref().ok_or("a member is down in the end")?.store;
            let hash = store.hash_kv(0).map_err(|error| format!("hash of member {}: {error}", site.id))?;
            hashes.insert(site.id, (hash.hash, hash.revision));
        }
        if hashes.values().any(|hash| Some(hash) != hashes.values().next()) {
            return Err(format!("the members' stores differ in the end: {hashes:?}").into());
        }
        self.report.trace = fold(self.report.trace, format!("{hashes:?}").as_bytes());
        let Clients { puts, gets, failed, .. } = self.clients;
        Ok(Report { puts, gets, failed, terms_led: self.elections.count(), ..self.report })
    }
}
