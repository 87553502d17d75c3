//! Stops the process at every call to the file system, crashes the disk in every way, reopens, and compares.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod common;

use common::{Chance, Model, Step, create, dir, entries, history, is_io, open, run};
use wal::testing::{Crash, Fault, SimFs};
use wal::{Recovery, Wal};

/// What a log may hold after a crash: everything up to the last durable step, and any prefix of what came after it.
struct Allowed {
    durable: Model,
    /// Steps since, in order.
    pending: Vec<Step>,
}

impl Allowed {
    fn new() -> Allowed {
        Allowed { durable: Model::default(), pending: Vec::new() }
    }

    fn begin(&mut self, step: &Step) {
        self.pending.push(step.clone());
    }

    /// The step at hand returned: is everything before it durable?
    fn done(&mut self, step: &Step) {
        match step {
            Step::Sync | Step::Close | Step::Reopen | Step::Restart { .. } => {
                for step in std::mem::take(&mut self.pending) {
                    self.durable.take(&step);
                }
            }
            Step::Append { .. } | Step::State(_) | Step::Release(_) => {}
        }
    }

    fn check(&self, recovery: &Recovery, wal: &Wal<SimFs>, context: &str) {
        let found = entries(wal).unwrap();
        let agrees = |model: &Model| model.agrees(recovery.start, &found, recovery.state.as_ref());
        let mut model = self.durable.clone();
        if agrees(&model) {
            return;
        }
        for step in &self.pending {
            if let Step::Append { index, .. } = step {
                // A conflict may be kept halfway: the old entries gone, the new ones not yet there.
                let mut halfway = model.clone();
                halfway.truncate_to(index - 1);
                if agrees(&halfway) {
                    return;
                }
            }
            model.take(step);
            if agrees(&model) {
                return;
            }
        }
        panic!(
            "{context}: found start {:?}, last {:?}, {} entries, which is no prefix of {:?} on top of {} entries up to {:?}",
            recovery.start,
            recovery.last,
            found.len(),
            self.pending,
            self.durable.entries.len(),
            self.durable.last(),
        );
    }
}

/// Runs a history on `fs` until it ends or the disk fails.
fn play(fs: &SimFs, history: &[Step]) -> Allowed {
    let mut allowed = Allowed::new();
    let Ok(mut wal) = Wal::create(fs.clone(), dir(), common::IDENTITY, Default::default(), common::OPTIONS)
    else {
        return allowed;
    };
    for step in history {
        allowed.begin(step);
        match run(fs, wal, step) {
            Ok(next) => wal = next,
            Err(error) => {
                assert!(is_io(&error), "{step:?} failed with {error}");
                return allowed;
            }
        }
        allowed.done(step);
    }
    allowed
}

/// Opens what a crash left and compares; then lets the recovered log go on, to see that it is sound.
fn reopen(fs: &SimFs, allowed: &Allowed, context: &str) {
    if !Wal::exists(fs, dir()).unwrap() {
        assert_eq!(allowed.durable, Model::default(), "{context}: the log is gone");
        create(fs);
        return;
    }
    let (mut wal, recovery) = open(fs).unwrap_or_else(|error| panic!("{context}: {error}"));
    allowed.check(&recovery, &wal, context);

    let kept = entries(&wal).unwrap();
    let next = recovery.last.index.0 + 1;
    let term = recovery.last.term.0 + 1;
    common::append(&mut wal, next, term, b"after the crash");
    wal.sync().unwrap();
    let again = fs.crashed(Crash::Synced, &mut || false);
    let (wal, second) = open(&again).unwrap_or_else(|error| panic!("{context}, again: {error}"));
    let found = entries(&wal).unwrap();
    assert_eq!((second.start, &second.state), (recovery.start, &recovery.state), "{context}");
    assert_eq!(found.split_last().unwrap().1, kept, "{context}: what was recovered once was lost later");
    assert_eq!(found.last().unwrap().payload, b"after the crash", "{context}");
}

#[test]
fn no_crash_at_any_call_loses_or_invents_a_record() {
    for seed in 0..7 {
        let history = history(seed, 30);
        let whole = SimFs::new();
        play(&whole, &history);
        for call in 0..=whole.calls() {
            let fs = SimFs::new();
            fs.fail_at(call, Fault::Stop);
            let allowed = play(&fs, &history);
            let mut chance = Chance(seed << 32 | call);
            for crash in Crash::ALL {
                let after = fs.crashed(crash, &mut || chance.coin());
                reopen(&after, &allowed, &format!("seed {seed}, call {call}, {crash:?}"));
            }
        }
    }
}

#[test]
fn a_power_cut_during_the_recovery_from_a_kill_loses_nothing() {
    for seed in 100..108 {
        let history = history(seed, 25);
        let fs = SimFs::new();
        fs.fail_at(40 + seed % 7 * 9, Fault::Stop);
        let allowed = play(&fs, &history);
        let killed = fs.crashed(Crash::Kill, &mut || false);
        for call in 0.. {
            let recovering = killed.crashed(Crash::Kill, &mut || false);
            recovering.fail_at(call, Fault::Stop);
            let opened = open(&recovering);
            let mut chance = Chance(seed << 32 | call);
            for crash in [Crash::Synced, Crash::Subset, Crash::Torn] {
                let after = recovering.crashed(crash, &mut || chance.coin());
                match &opened {
                    Err(_) => reopen(&after, &allowed, &format!("seed {seed}, call {call}, {crash:?}")),
                    // What an open has told must hold.
                    Ok((_, told)) => {
                        let (_, found) = open(&after).unwrap();
                        assert_eq!(
                            (told.last, &told.state),
                            (found.last, &found.state),
                            "seed {seed}, {crash:?}"
                        );
                    }
                }
            }
            if opened.is_ok() {
                break;
            }
        }
    }
}

#[test]
fn no_failing_call_lets_an_unsynced_record_pass_for_synced() {
    for seed in 200..205 {
        let history = history(seed, 30);
        let whole = SimFs::new();
        play(&whole, &history);
        for call in 0..=whole.calls() {
            for fault in [Fault::InputOutput, Fault::NoSpace] {
                let fs = SimFs::new();
                fs.fail_at(call, fault);
                let allowed = play(&fs, &history);
                let mut chance = Chance(seed << 32 | call);
                for crash in Crash::ALL {
                    let after = fs.crashed(crash, &mut || chance.coin());
                    reopen(&after, &allowed, &format!("seed {seed}, call {call}, {fault:?}, {crash:?}"));
                }
            }
        }
    }
}

#[test]
fn histories_reach_every_kind_of_operation() {
    let (mut cuts, mut releases, mut conflicts, mut restarts) = (0, 0, 0, 0);
    for seed in 0..24 {
        let fs = SimFs::new();
        let mut wal = create(&fs);
        let mut last = 0;
        for step in history(seed, 30) {
            match &step {
                Step::Append { index, .. } => {
                    conflicts += u32::from(*index <= last);
                    last = *index;
                }
                Step::Restart { index, .. } => {
                    restarts += 1;
                    last = *index;
                }
                Step::Release(index) => {
                    releases += wal.release_before(wal::LogIndex(*index)).unwrap();
                    continue;
                }
                Step::Sync => {
                    cuts += wal.sync().unwrap().cuts;
                    continue;
                }
                Step::State(_) | Step::Close | Step::Reopen => {}
            }
            wal = run(&fs, wal, &step).unwrap();
        }
    }
    assert!(
        cuts > 50 && releases > 10 && conflicts > 20 && restarts > 5,
        "{cuts} {releases} {conflicts} {restarts}"
    );
}
