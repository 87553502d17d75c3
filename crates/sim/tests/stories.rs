//! Stories that are played with every run of the tests: short ones, of several seeds and sizes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::{Flaw, Plan, run};

fn plan(seed: u64, members: u64) -> Plan {
    Plan { seed, members, clients: 8, seconds: 20, flaw: Flaw::None }
}

#[test]
fn no_promise_is_broken_whatever_happens() {
    for (seed, members) in [(1, 3), (2, 5), (3, 1), (4, 3), (5, 5), (6, 3)] {
        let report = run(plan(seed, members)).unwrap_or_else(|breach| panic!("seed {seed}: {}", breach.0));
        assert!(report.puts > 20 && report.gets > 20, "seed {seed} tells of nothing: {report:?}");
        assert!(
            report.crashes + report.partitions + report.pauses > 0,
            "seed {seed} has no faults: {report:?}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let [one, two, other] = [7, 7, 8].map(|seed| run(plan(seed, 3)).expect("no promise is broken"));
    assert_eq!(one, two);
    assert_ne!(one.trace, other.trace);
}

#[test]
fn a_flaw_is_found_within_a_few_stories() {
    for flaw in [Flaw::DisksForget, Flaw::ReadsAskNobody] {
        let breaks = |seed: &u64| {
            let plan = Plan { flaw, ..plan(*seed, 3) };
            // A member may also notice by itself that its disk forgot, and refuse to go on.
            !matches!(catch_unwind(AssertUnwindSafe(|| run(plan))), Ok(Ok(_)))
        };
        assert!((1..=8).any(|seed| breaks(&seed)), "{flaw:?} was never noticed");
    }
}
