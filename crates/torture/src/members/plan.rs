//! The sequence of changes and faults, derived from the seed only.
//!
//! ```text
//!   Plan { voters, learners, absent members } ──step──▶ Step { returning members, change, fault }
//! ```
//!
//! * A majority of the voters runs in every configuration of a step, so a write that is never
//!   acknowledged is a bug in the program. A voter that was added but not started counts as down.
//! * Changes are sequential. There is at most one learner, the program's default limit.
//! * A fault may last for several changes: its members return to a membership unknown to them.
//! * A cut separates a minority of the voters, and learners, from the remaining members. The
//!   members of the minority still reach each other.
//!
//! Independent of processes.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Number of places for members. Each has its ports; a place is reused by new members.
pub const PLACES: usize = 8;
/// Number of initial members, in the first places.
pub const FIRST: usize = 3;
const VOTERS_MAX: usize = 5;

pub type At = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// Adds a new member. With `cut`, its first start is killed that many microseconds after exec.
    Add {
        at: At,
        is_learner: bool,
        cut: Option<u64>,
    },
    Promote {
        at: At,
    },
    /// Removes a member. With `leads`, it is made the leader first.
    Remove {
        at: At,
        leads: bool,
    },
    /// Runs the operator's command `member replace`.
    Replace {
        old: At,
        new: At,
    },
    MoveLeader {
        at: At,
    },
    /// Changes the peer URL of the member and restarts it there.
    Move {
        at: At,
    },
    /// Starts the directory of a removed member once more.
    Return {
        at: At,
    },
    /// Starts a directory that was never added.
    Stranger {
        at: At,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberFaultKind {
    Kill,
    Pause,
    /// Isolated from the other members, but not from clients.
    Cut(Ways, Manner),
}

/// Severed directions between the isolated group and the remaining members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    Both,
    /// From the group: it receives messages, but its own are blocked.
    From,
    /// To the group: its messages arrive, but it receives none.
    To,
}

/// Appearance of a cut to the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Connections stay open without traffic.
    Silent,
    /// Connections are closed, and new ones are closed immediately.
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberFault {
    pub at: At,
    pub others: Vec<At>,
    pub kind: MemberFaultKind,
    pub leads: bool,
    /// Delay after the request for the change was sent.
    pub delay_ms: u64,
    pub lasts_ms: u64,
    /// Number of further changes that it lasts for.
    pub changes: u32,
}

impl MemberFault {
    pub fn group(&self) -> impl Iterator<Item = At> {
        std::iter::once(self.at).chain(self.others.iter().copied())
    }

    pub fn strikes(&self, at: At) -> bool {
        self.group().any(|struck| struck == at)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanStep {
    /// Members that return from a fault of an earlier step.
    pub returning: Vec<At>,
    /// True if the returning members catch up before the change, false if they do so concurrently.
    pub is_settled: bool,
    pub change: MemberChange,
    pub fault: Option<MemberFault>,
}

#[derive(Clone, Copy, Debug)]
struct Seat {
    is_learner: bool,
    /// Remaining changes until the fault is over.
    away: u32,
}

pub struct MembershipPlan {
    seats: [Option<Seat>; PLACES],
    removed: [bool; PLACES],
    chance: SmallRng,
}

/// Kinds of change, with weights.
#[derive(Clone, Copy)]
enum ChangeKind {
    AddVoter,
    AddLearner,
    Promote,
    Remove,
    RemoveLeader,
    Replace,
    MoveLeader,
    Move,
    Return,
    Stranger,
}

const KINDS: [(ChangeKind, u32); 10] = [
    (ChangeKind::AddVoter, 8),
    (ChangeKind::AddLearner, 4),
    (ChangeKind::Promote, 6),
    (ChangeKind::Remove, 4),
    (ChangeKind::RemoveLeader, 3),
    (ChangeKind::Replace, 2),
    (ChangeKind::MoveLeader, 2),
    (ChangeKind::Move, 3),
    (ChangeKind::Return, 1),
    (ChangeKind::Stranger, 1),
];

impl MembershipPlan {
    pub fn new(seed: u64) -> MembershipPlan {
        let mut seats = [None; PLACES];
        seats[..FIRST].fill(Some(Seat { is_learner: false, away: 0 }));
        MembershipPlan { seats, removed: [false; PLACES], chance: SmallRng::seed_from_u64(seed) }
    }

    /// Draws the next change and its fault.
    pub fn step(&mut self) -> PlanStep {
        let returning = self.end_absences();
        let change = loop {
            let kind = self.kind();
            // The leader can always be moved, so the loop terminates.
            if let Some(change) = self.change(kind)
                && self.keeps_quorum(&change, &[])
            {
                break change;
            }
        };
        let is_settled = self.chance.random_bool(0.5);
        let fault = self.chance.random_bool(0.8).then(|| self.fault(&change)).flatten();
        self.apply(&change);
        if let Some(fault) = &fault {
            for at in fault.group() {
                self.seats[at].iter_mut().for_each(|seat| seat.away = fault.changes);
            }
        }
        PlanStep { returning, is_settled, change, fault }
    }

    /// Reverts all faults and returns their members.
    pub fn recall(&mut self) -> Vec<At> {
        let away: Vec<At> = self.places(|seat| seat.away > 0);
        self.seats.iter_mut().flatten().for_each(|seat| seat.away = 0);
        away
    }

    fn end_absences(&mut self) -> Vec<At> {
        let ending = self.places(|seat| seat.away == 1);
        self.seats.iter_mut().flatten().for_each(|seat| seat.away = seat.away.saturating_sub(1));
        ending
    }

    fn places(&self, wanted: impl Fn(&Seat) -> bool) -> Vec<At> {
        (0..PLACES).filter(|at| self.seats[*at].as_ref().is_some_and(&wanted)).collect()
    }

    fn voters(&self) -> Vec<At> {
        self.places(|seat| !seat.is_learner)
    }

    fn kind(&mut self) -> ChangeKind {
        let mut left = self.chance.random_range(0..KINDS.iter().map(|(_, weight)| weight).sum());
        let chosen = KINDS.iter().find(|(_, weight)| {
            let found = left < *weight;
            left = left.saturating_sub(*weight);
            found
        });
        chosen.expect("the number is below the sum of the weights").0
    }

    fn one_of(&mut self, places: &[At]) -> Option<At> {
        (!places.is_empty()).then(|| places[self.chance.random_range(0..places.len())])
    }

    /// Returns a possible change of this kind, if any.
    fn change(&mut self, kind: ChangeKind) -> Option<MemberChange> {
        let learners = self.places(|seat| seat.is_learner);
        let free: Vec<At> = (0..PLACES).filter(|at| self.seats[*at].is_none()).collect();
        let voters = self.voters();
        let present = self.places(|seat| seat.away == 0);
        let leaders = self.places(|seat| seat.away == 0 && !seat.is_learner);
        let cut = self.chance.random_bool(0.3).then(|| self.chance.random_range(0..200_000));
        match kind {
            ChangeKind::AddVoter if voters.len() < VOTERS_MAX => {
                self.one_of(&free).map(|at| MemberChange::Add { at, is_learner: false, cut })
            }
            ChangeKind::AddLearner if learners.is_empty() => {
                self.one_of(&free).map(|at| MemberChange::Add { at, is_learner: true, cut })
            }
            ChangeKind::Promote if voters.len() < VOTERS_MAX => {
                let here: Vec<At> = learners.into_iter().filter(|at| present.contains(at)).collect();
                self.one_of(&here).map(|at| MemberChange::Promote { at })
            }
            ChangeKind::Remove => {
                let members = self.places(|_| true);
                let may_go = |at: &At| learners.contains(at) || voters.len() > 1;
                let members: Vec<At> = members.into_iter().filter(may_go).collect();
                self.one_of(&members).map(|at| MemberChange::Remove { at, leads: false })
            }
            ChangeKind::RemoveLeader if voters.len() > 1 => {
                self.one_of(&leaders).map(|at| MemberChange::Remove { at, leads: true })
            }
            ChangeKind::Replace if learners.is_empty() => {
                let (old, new) = (self.one_of(&voters)?, self.one_of(&free)?);
                Some(MemberChange::Replace { old, new })
            }
            ChangeKind::MoveLeader => self.one_of(&leaders).map(|at| MemberChange::MoveLeader { at }),
            ChangeKind::Move => self.one_of(&present).map(|at| MemberChange::Move { at }),
            ChangeKind::Return => {
                let gone: Vec<At> = free.into_iter().filter(|at| self.removed[*at]).collect();
                self.one_of(&gone).map(|at| MemberChange::Return { at })
            }
            ChangeKind::Stranger => {
                let unused: Vec<At> = free.into_iter().filter(|at| !self.removed[*at]).collect();
                self.one_of(&unused).map(|at| MemberChange::Stranger { at })
            }
            ChangeKind::AddVoter
            | ChangeKind::AddLearner
            | ChangeKind::Promote
            | ChangeKind::RemoveLeader
            | ChangeKind::Replace => None,
        }
    }

    /// Returns a fault that the cluster must tolerate during this change, if any.
    fn fault(&mut self, change: &MemberChange) -> Option<MemberFault> {
        let kind = self.fault_kind();
        let changes = if self.chance.random_bool(0.4) { self.chance.random_range(1..=5) } else { 0 };
        let (delay_ms, lasts_ms) = (self.chance.random_range(0..60), self.chance.random_range(0..2_500));
        let wants_leader = self.chance.random_bool(0.4);
        let needed: &[At] = match change {
            MemberChange::Promote { at } | MemberChange::MoveLeader { at } | MemberChange::Move { at } => {
                &[*at]
            }
            MemberChange::Replace { old, new } => &[*old, *new],
            MemberChange::Add { .. }
            | MemberChange::Remove { .. }
            | MemberChange::Return { .. }
            | MemberChange::Stranger { .. } => &[],
        };
        let victims: Vec<At> = self
            .places(|seat| seat.away == 0)
            .into_iter()
            .filter(|at| !needed.contains(at) && self.keeps_quorum(change, &[*at]))
            .collect();
        let at = self.one_of(&victims)?;
        let others = match kind {
            MemberFaultKind::Kill | MemberFaultKind::Pause => Vec::new(),
            MemberFaultKind::Cut(..) => self.cut_off_with(at, &victims, change),
        };
        let can_lead = self.seats[at].is_some_and(|seat| !seat.is_learner);
        let leads = wants_leader && can_lead && !matches!(change, MemberChange::Remove { .. });
        Some(MemberFault { at, others, kind, leads, delay_ms, lasts_ms, changes })
    }

    /// Half of the faults are cuts.
    fn fault_kind(&mut self) -> MemberFaultKind {
        let ways = [Ways::Both, Ways::Both, Ways::From, Ways::To][self.chance.random_range(0..4)];
        let manner = [Manner::Silent, Manner::Closed][self.chance.random_range(0..2)];
        let cut = MemberFaultKind::Cut(ways, manner);
        [MemberFaultKind::Kill, MemberFaultKind::Pause, cut, cut][self.chance.random_range(0..4)]
    }

    /// Returns the members on the same side of a cut as `at`: none, or as many as possible.
    fn cut_off_with(&mut self, at: At, victims: &[At], change: &MemberChange) -> Vec<At> {
        let mut group = vec![at];
        let first = self.chance.random_range(0..victims.len());
        if self.chance.random_bool(0.6) {
            for other in victims.iter().cycle().skip(first).take(victims.len()) {
                let with_it = [&group[..], &[*other]].concat();
                if !group.contains(other) && self.keeps_quorum(change, &with_it) {
                    group = with_it;
                }
            }
        }
        group.split_off(1)
    }

    /// Reports whether a majority runs in each configuration of the change, even without `down`.
    fn keeps_quorum(&self, change: &MemberChange, down: &[At]) -> bool {
        let before = self.voters();
        let with = |voters: &[At], at: At| [voters, &[at]].concat();
        let without = |voters: &[At], gone: At| -> Vec<At> {
            voters.iter().copied().filter(|at| *at != gone).collect()
        };
        let (configurations, started, stopped) = match *change {
            MemberChange::Add { at, is_learner: false, .. } => (vec![with(&before, at), before], None, None),
            MemberChange::Promote { at } => (vec![with(&before, at), before], None, None),
            MemberChange::Remove { at, .. } => (vec![without(&before, at), before], None, None),
            MemberChange::Replace { old, new } => {
                let both = with(&before, new);
                (vec![without(&both, old), both, before], Some(new), None)
            }
            MemberChange::Move { at } => (vec![before], None, Some(at)),
            MemberChange::Add { .. }
            | MemberChange::MoveLeader { .. }
            | MemberChange::Return { .. }
            | MemberChange::Stranger { .. } => (vec![before], None, None),
        };
        let runs = |at: At| {
            let is_present = self.seats[at].is_some_and(|seat| seat.away == 0) || started == Some(at);
            is_present && !down.contains(&at) && stopped != Some(at)
        };
        configurations.iter().all(|voters| voters.iter().filter(|at| runs(**at)).count() > voters.len() / 2)
    }

    fn apply(&mut self, change: &MemberChange) {
        match *change {
            MemberChange::Add { at, is_learner, .. } => {
                self.seats[at] = Some(Seat { is_learner, away: 0 });
                self.removed[at] = false;
            }
            MemberChange::Promote { at } => self.seats[at] = Some(Seat { is_learner: false, away: 0 }),
            MemberChange::Remove { at, .. } => {
                self.seats[at] = None;
                self.removed[at] = true;
            }
            MemberChange::Replace { old, new } => {
                self.seats[old] = None;
                self.removed[old] = true;
                self.seats[new] = Some(Seat { is_learner: false, away: 0 });
                self.removed[new] = false;
            }
            MemberChange::MoveLeader { .. }
            | MemberChange::Move { .. }
            | MemberChange::Return { .. }
            | MemberChange::Stranger { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn the_seed_alone_decides() {
        let steps = |seed| {
            let mut plan = MembershipPlan::new(seed);
            (0..200).map(|_| plan.step()).collect::<Vec<_>>()
        };
        assert_eq!(steps(7), steps(7));
        assert_ne!(steps(7), steps(8));
    }

    /// An independent model of the running members, derived from the steps.
    #[derive(Default)]
    struct Account {
        voters: BTreeSet<At>,
        learners: BTreeSet<At>,
        down: BTreeSet<At>,
    }

    impl Account {
        fn assert_majority(&self, seed: u64, step: &PlanStep) {
            let up = self.voters.difference(&self.down).count();
            assert!(
                up > self.voters.len() / 2,
                "seed {seed}: {step:?}: {:?} without {:?}",
                self.voters,
                self.down
            );
            assert!(self.learners.len() <= 1, "seed {seed}: {step:?}: two learners");
        }

        /// Applies the step, configuration by configuration.
        fn follow(&mut self, seed: u64, step: &PlanStep) {
            step.returning.iter().for_each(|at| assert!(self.down.remove(at), "seed {seed}: {step:?}"));
            self.down.extend(step.fault.iter().flat_map(MemberFault::group));
            self.assert_majority(seed, step);
            match step.change {
                MemberChange::Add { at, is_learner: true, .. } => assert!(self.learners.insert(at)),
                MemberChange::Add { at, .. } => {
                    assert!(self.voters.insert(at) && self.down.insert(at));
                    self.assert_majority(seed, step);
                    self.down.remove(&at);
                }
                MemberChange::Promote { at } => assert!(self.learners.remove(&at) && self.voters.insert(at)),
                MemberChange::Remove { at, .. } => {
                    assert!(self.voters.remove(&at) || self.learners.remove(&at));
                    self.down.remove(&at);
                }
                MemberChange::Replace { old, new } => {
                    assert!(self.learners.insert(new));
                    self.assert_majority(seed, step);
                    assert!(self.learners.remove(&new) && self.voters.insert(new));
                    self.assert_majority(seed, step);
                    assert!(self.voters.remove(&old));
                    self.down.remove(&old);
                }
                MemberChange::Move { at } => {
                    assert!(self.down.insert(at));
                    self.assert_majority(seed, step);
                    self.down.remove(&at);
                }
                MemberChange::MoveLeader { at } => {
                    assert!(self.voters.contains(&at) && !self.down.contains(&at))
                }
                MemberChange::Return { at } | MemberChange::Stranger { at } => {
                    assert!(!self.voters.contains(&at) && !self.learners.contains(&at));
                }
            }
            self.assert_majority(seed, step);
            for fault in step.fault.iter().filter(|fault| fault.changes == 0) {
                self.down.retain(|at| !fault.strikes(*at));
            }
        }
    }

    #[test]
    fn a_majority_runs_in_every_configuration_and_every_kind_of_change_occurs() {
        let (mut kinds, mut sizes, mut cuts) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        for seed in 0..100 {
            let mut plan = MembershipPlan::new(seed);
            let mut account = Account { voters: (0..FIRST).collect(), ..Account::default() };
            for number in 1..=100 {
                let step = plan.step();
                account.follow(seed, &step);
                let text = format!("{:?}", step.change);
                let kind = text.split_whitespace().next().unwrap_or_default().to_owned();
                *kinds.entry(kind).or_insert(0) += 1;
                sizes.insert(account.voters.len());
                if let Some(fault) = step.fault.filter(|fault| matches!(fault.kind, MemberFaultKind::Cut(..)))
                {
                    *cuts.entry(format!("{:?} of {}", fault.kind, fault.group().count())).or_insert(0) += 1;
                }
                if number % 10 == 0 {
                    let recalled: BTreeSet<At> = plan.recall().into_iter().collect();
                    assert_eq!(recalled, std::mem::take(&mut account.down), "seed {seed}");
                }
            }
        }
        assert_eq!(kinds.len(), 8, "{kinds:?}");
        assert!(kinds.values().all(|count| *count > 100), "{kinds:?}");
        assert_eq!(sizes, (1..=VOTERS_MAX).collect(), "numbers of voters that occurred");
        // Groups of one to three members, in each direction and manner.
        assert_eq!(cuts.len(), 3 * 2 * 3, "{cuts:?}");
    }
}
