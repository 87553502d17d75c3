//! Compares: every target and operator, missing keys, ranges, and mismatched operands.

use super::World;

/// Runs `setup`, then checks whether each compare holds.
fn check(setup: &str, compares: &[(&str, bool)]) {
    let mut world = World::new();
    world.play(setup);
    for (compare, holds) in compares {
        let answer = world.play(&format!("txn if {compare}"));
        assert_eq!(answer.starts_with("yes"), *holds, "\n  setup:   {setup}\n  compare: {compare}");
    }
}

#[test]
fn every_target_is_compared_with_every_operator() {
    // b is created at 3, changed at 5, version 2.
    let setup = "put a=1; put b=k; put c=1; put b=m";
    for (target, stored) in [("version", 2), ("create", 3), ("mod", 5), ("lease", 0)] {
        let (below, above) = (stored - 1, stored + 1);
        check(
            setup,
            &[
                (&format!("{target}(b)={stored}"), true),
                (&format!("{target}(b)={above}"), false),
                (&format!("{target}(b)!={stored}"), false),
                (&format!("{target}(b)!={below}"), true),
                (&format!("{target}(b)>{below}"), true),
                (&format!("{target}(b)>{stored}"), false),
                (&format!("{target}(b)<{above}"), true),
                (&format!("{target}(b)<{stored}"), false),
            ],
        );
    }
    check(
        setup,
        &[
            ("value(b)=m", true),
            ("value(b)=k", false),
            ("value(b)!=k", true),
            ("value(b)>k", true),
            ("value(b)>m", false),
            ("value(b)<mm", true),
            ("value(b)<m", false),
        ],
    );
}

#[test]
fn a_range_wider_than_one_read_is_compared_to_its_end() {
    let puts: String = (0..2500).map(|number| format!("put k{number:04}=v; ")).collect();
    check(
        &format!("{puts} put k2499=w"),
        &[
            ("version(*)>0", true),
            ("version(k0000..k2499)=1", true),
            ("version(*)=1", false),
            ("value(k0000..k2499)=v", true),
            ("value(*)=v", false),
            ("value(k0999..k2000)=v", true),
        ],
    );
}
