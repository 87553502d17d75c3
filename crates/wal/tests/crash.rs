//! Stops the process at every file-system call, crashes the disk in every way, reopens the log, and
//! compares.

use crate::common;
use crate::common::{Chance, Model, Step, create, dir, entries, history, is_io, open, run, run_in_place};
use wal::testing::{Crash, Fault, SimFs};
use wal::{Recovery, Wal};

/// Permitted contents after a crash: everything up to the last durable step, and any prefix of the
/// later steps.
struct Allowed {
    durable: Model,
    pending: Vec<Step>,
}

impl Allowed {
    fn new() -> Allowed {
        Allowed { durable: Model::default(), pending: Vec::new() }
    }

    fn begin(&mut self, step: &Step) {
        self.pending.push(step.clone());
    }

    /// Records that the step returned, and moves durable steps to `durable`.
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
                // A conflict may survive in part: old entries removed, new ones missing.
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
            "{context}: found start {:?}, last {:?}, {} entries: no prefix of {:?} on {} entries up to {:?}",
            recovery.start,
            recovery.last,
            found.len(),
            self.pending,
            self.durable.entries.len(),
            self.durable.last(),
        );
    }
}

/// Runs a history on `fs` until its end or a disk failure.
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

/// Opens the log after a crash and compares it; then appends to it, to check that it is usable.
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

/// Counts the calls of a history on a working disk.
fn calls(history: &[Step]) -> u64 {
    let whole = SimFs::new();
    play(&whole, history);
    whole.calls()
}

/// Runs a history with a fault at `call`, crashes the disk in every way, and reopens each result.
fn fail_and_crash(seed: u64, history: &[Step], call: u64, fault: Fault) {
    let fs = SimFs::new();
    fs.fail_at(call, fault);
    let allowed = play(&fs, history);
    let mut chance = Chance(seed << 32 | call);
    for crash in Crash::ALL {
        let after = fs.crashed(crash, &mut || chance.coin());
        reopen(&after, &allowed, &format!("seed {seed}, call {call}, {fault:?}, {crash:?}"));
    }
}

#[test]
fn no_crash_at_any_call_loses_or_invents_a_record() {
    for seed in 0..4 {
        let history = history(seed, 30);
        for call in 0..=calls(&history) {
            fail_and_crash(seed, &history, call, Fault::Stop);
        }
    }
}

#[test]
fn a_power_cut_during_the_recovery_from_a_kill_loses_nothing() {
    for seed in 100..105 {
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
                    // The result of a successful open must hold.
                    Ok((_, opened)) => {
                        let (_, found) = open(&after).unwrap();
                        assert_eq!(
                            (opened.last, &opened.state),
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
    for seed in 200..202 {
        let history = history(seed, 30);
        for call in 0..=calls(&history) {
            for fault in [Fault::InputOutput, Fault::NoSpace] {
                fail_and_crash(seed, &history, call, fault);
            }
        }
    }
}

/// Builds a log of several segments with an unsynced tail, about to be restarted.
fn about_to_restart(fs: &SimFs) -> (Wal<SimFs>, Allowed) {
    let mut wal = create(fs);
    let mut allowed = Allowed::new();
    let sizes = [3000, 2000, 4000, 100, 6000, 10, 900];
    let mut steps: Vec<Step> =
        (1..).zip(sizes).map(|(index, bytes)| Step::Append { index, term: 1, bytes }).collect();
    steps.insert(5, Step::Sync);
    steps.insert(3, Step::Sync);
    steps.insert(2, Step::State(b"before".to_vec()));
    for step in steps {
        allowed.begin(&step);
        wal = run(fs, wal, &step).unwrap();
        allowed.done(&step);
    }
    (wal, allowed)
}

#[test]
fn a_restart_that_is_stopped_anywhere_leaves_the_old_log_or_the_new_one() {
    let restart = Step::Restart { index: 40, term: 3, state: b"after".to_vec() };
    let (mut old, mut new) = (0, 0);
    for call in 0.. {
        let fs = SimFs::new();
        let (wal, mut allowed) = about_to_restart(&fs);
        fs.fail_at(fs.calls() + call, Fault::Stop);
        allowed.begin(&restart);
        let done = run(&fs, wal, &restart).is_ok();
        if done {
            allowed.done(&restart);
        }
        let mut chance = Chance(call);
        for crash in Crash::ALL {
            for _ in 0..4 {
                let after = fs.crashed(crash, &mut || chance.coin());
                reopen(&after, &allowed, &format!("call {call}, {crash:?}"));
                let (_, found) = open(&after).unwrap();
                match found.start == common::at(40, 3) {
                    true => new += 1,
                    false => old += 1,
                }
            }
        }
        if done {
            break;
        }
    }
    assert!(old > 20 && new > 20, "{old} old and {new} new logs");
}

/// Reports whether every later call fails, even if the disk works again.
fn is_poisoned(wal: &mut Wal<SimFs>) -> bool {
    wal.put_state(b"never");
    let last = wal.last().index;
    wal.sync().is_err() && wal.release_before(last).is_err() && wal.restart_at(common::at(1, 1), b"").is_err()
}

/// Runs `history` on a disk that fails from `call` on, or only at `call`; then clears the fault and
/// starts again on the same disk without a crash.
fn fail_and_go_on(history: &[Step], call: u64, fault: Fault, lasts: bool, context: &str) {
    let fs = SimFs::new();
    match lasts {
        true => fs.fail_from(call, fault),
        false => fs.fail_at(call, fault),
    }
    let mut allowed = Allowed::new();
    let created = Wal::create(fs.clone(), dir(), common::IDENTITY, Default::default(), common::OPTIONS);
    if let Ok(mut wal) = created {
        for step in history {
            allowed.begin(step);
            if let Err(error) = run_in_place(&mut wal, step) {
                assert!(is_io(&error), "{context}: {step:?} failed with {error}");
                assert!(is_poisoned(&mut wal), "{context}");
                fs.heal();
                assert!(is_poisoned(&mut wal), "{context}: a disk that works again is no reason to go on");
                break;
            }
            allowed.done(step);
        }
    }
    fs.heal();
    reopen(&fs, &allowed, context);
}

#[test]
fn a_full_or_failing_disk_poisons_the_log_which_opens_again_when_the_cause_is_gone() {
    for seed in 300..301 {
        let history = history(seed, 25);
        for call in 0..=calls(&history) {
            for fault in [Fault::InputOutput, Fault::NoSpace] {
                for lasts in [true, false] {
                    let context = format!("seed {seed}, call {call}, {fault:?}, lasting {lasts}");
                    fail_and_go_on(&history, call, fault, lasts, &context);
                }
            }
        }
    }
}

#[test]
fn a_start_on_a_full_or_failing_disk_fails_and_the_next_one_finds_everything() {
    for seed in 400..402 {
        let fs = SimFs::new();
        let allowed = play(&fs, &history(seed, 25));
        for fault in [Fault::InputOutput, Fault::NoSpace] {
            for call in 0.. {
                let disk = fs.crashed(Crash::Kill, &mut || false);
                disk.fail_from(call, fault);
                let opened = open(&disk).map(drop);
                let done = opened.is_ok() && call >= disk.calls();
                assert!(opened.map_err(|error| assert!(is_io(&error), "{error}")).is_ok() || !done);
                disk.heal();
                reopen(&disk, &allowed, &format!("seed {seed}, call {call}, {fault:?}"));
                if done {
                    break;
                }
            }
        }
    }
}

/// Runs repeatedly on the same disk: each run crashes at a random call, and the next continues from the
/// recovered log. Returns the number of interrupted runs.
fn runs(seed: u64, runs: u64, steps: usize) -> u64 {
    let mut chance = Chance(seed);
    let mut fs = SimFs::new();
    let mut model = common::Model::default();
    let mut cut_short = 0;
    drop(create(&fs));
    for run in 0..runs {
        let (mut wal, _) = open(&fs).unwrap();
        fs.fail_at(fs.calls() + chance.below(4 * steps as u64), Fault::Stop);
        let mut allowed = Allowed { durable: model.clone(), pending: Vec::new() };
        for step in common::continue_history(&mut chance, &model, wal.reader().start().index.0, steps) {
            allowed.begin(&step);
            if run_in_place(&mut wal, &step).is_err() {
                cut_short += 1;
                break;
            }
            allowed.done(&step);
        }
        drop(wal);
        let crash = Crash::ALL[chance.below(4) as usize];
        fs = fs.crashed(crash, &mut || chance.coin());
        let (wal, recovery) = open(&fs).unwrap_or_else(|error| panic!("seed {seed}, run {run}: {error}"));
        allowed.check(&recovery, &wal, &format!("seed {seed}, run {run}, {crash:?}"));
        model =
            common::Model { base: recovery.start, entries: entries(&wal).unwrap(), state: recovery.state };
    }
    cut_short
}

#[test]
fn a_log_survives_run_after_run() {
    let cut_short: u64 = (0..4).map(|seed| runs(seed, 25, 20)).sum();
    assert!(cut_short > 30, "{cut_short} of 100");
}

#[test]
#[ignore = "slow: every call of long histories, and many runs; run by hand, in a release build"]
fn no_crash_at_any_call_of_long_histories_loses_or_invents_a_record() {
    for seed in 1000..1040 {
        let history = history(seed, 150);
        for call in 0..=calls(&history) {
            fail_and_crash(seed, &history, call, Fault::Stop);
            if call % 5 == seed % 5 {
                for (fault, lasts) in [(Fault::InputOutput, false), (Fault::NoSpace, true)] {
                    let context = format!("seed {seed}, call {call}, {fault:?}");
                    fail_and_go_on(&history, call, fault, lasts, &context);
                }
            }
        }
    }
    let cut_short: u64 = (0..400).map(|seed| runs(seed, 100, 40)).sum();
    assert!(cut_short > 10_000, "{cut_short} of 40,000 runs");
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
