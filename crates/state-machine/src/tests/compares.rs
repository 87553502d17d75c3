//! Compares: every target and operator, missing keys, ranges, and operands that do not fit.

use super::World;

/// After `story`, tells for each compare whether it holds.
fn check(story: &str, compares: &[(&str, bool)]) {
    let mut world = World::new();
    world.play(story);
    for (compare, holds) in compares {
        let answer = world.play(&format!("txn if {compare}"));
        assert_eq!(answer.starts_with("yes"), *holds, "\n  story:   {story}\n  compare: {compare}");
    }
}

#[test]
fn every_target_is_compared_with_every_operator() {
    // b is created at 3, changed at 5, version 2.
    let story = "put a=1; put b=k; put c=1; put b=m";
    for (target, stored) in [("version", 2), ("create", 3), ("mod", 5), ("lease", 0)] {
        let (below, above) = (stored - 1, stored + 1);
        check(
            story,
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
        story,
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
fn values_compare_as_unsigned_bytes() {
    check("put a=\\xff", &[("value(a)>\\x7f", true), ("value(a)<\\x7f", false), ("value(a)=\\xff", true)]);
}

#[test]
fn a_missing_key_counts_as_zero_and_has_no_value() {
    check(
        "put a=1; del a",
        &[
            ("version(a)=0", true),
            ("version(a)>0", false),
            ("version(a)!=0", false),
            ("create(a)=0", true),
            ("create(x)<1", true),
            ("mod(a)=0", true),
            ("lease(a)=0", true),
            ("value(a)=", false),
            ("value(a)!=1", false),
            ("value(a)<1", false),
            ("value(a)?1", false),
        ],
    );
}

#[test]
fn every_key_of_a_range_must_satisfy_the_compare() {
    check(
        "put a=1; put b=1; put c=2; put b=1",
        &[
            ("value(a..c)=1", true),
            ("value(a..)=1", false),
            ("value(*)<3", true),
            ("version(*)>0", true),
            ("version(*)=1", false),
            ("create(b..)>2", true),
            ("create(a..)>2", false),
        ],
    );
}

#[test]
fn an_empty_range_counts_as_a_missing_key() {
    check(
        "put a=1",
        &[
            ("version(x..z)=0", true),
            ("version(x..z)>0", false),
            ("mod(b..a)=0", true),
            ("value(x..z)=1", false),
            ("value(x..z)!=1", false),
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

#[test]
fn an_operand_that_does_not_fit_counts_as_nothing() {
    check(
        "put a=1; put e=",
        &[
            ("version(a)>_", true),
            ("version(x)=_", true),
            ("version(a)=mod:1", false),
            ("version(a)>mod:1", true),
            ("mod(a)>value:9", true),
            ("create(x)=version:4", true),
            ("lease(a)=version:4", true),
            ("value(a)>_", true),
            ("value(e)=_", true),
            ("value(e)=version:7", true),
        ],
    );
}

#[test]
fn what_a_newer_client_may_ask_has_a_defined_answer() {
    check(
        "put a=1",
        &[
            ("9(a)=7", true),
            ("9(a)!=7", false),
            ("9(x)=7", true),
            ("version(a)?5", true),
            ("value(a)?5", true),
        ],
    );
}
