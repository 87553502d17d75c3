//! Put, DeleteRange, Compact: what they change, what they answer, how the revision moves.

use super::{check, check_all};

#[test]
fn the_first_write_is_revision_two() {
    check("", "put a=1", "put r2");
}

#[test]
fn every_put_is_a_change_even_of_an_equal_value() {
    check_all(
        "",
        &[
            ("put a=1", "put r2"),
            ("put a=1", "put r3"),
            ("range a", "[a=1@2.3.2] of 1 r3"),
            ("put a=", "put r4"),
            ("range a", "[a=@2.4.3] of 1 r4"),
        ],
    );
}

#[test]
fn a_key_that_comes_back_begins_a_new_generation() {
    check("put a=1; put a=2; del a; put a=3", "range a", "[a=3@5.5.1] of 1 r5");
}

#[test]
fn a_put_returns_what_was_there_before() {
    check_all(
        "put a=1; put a=2",
        &[("put a=3 prev", "put r4 was a=2@2.3.2"), ("put b=1 prev", "put r5"), ("put a=4", "put r6")],
    );
}

#[test]
fn a_put_may_keep_the_value() {
    check_all(
        "put a=1",
        &[
            ("put a ignore_value", "put r3"),
            ("range a", "[a=1@2.3.2] of 1 r3"),
            ("put a ignore_value prev", "put r4 was a=1@2.3.2"),
            ("put a=2 ignore_value", "ValueProvided"),
            ("put b ignore_value", "KeyNotFound"),
            ("range *", "[a=1@2.4.3] of 1 r4"),
        ],
    );
}

#[test]
fn a_put_may_keep_the_lease() {
    check_all(
        "put a=1",
        &[
            ("put a=2 ignore_lease", "put r3"),
            ("range a", "[a=2@2.3.2] of 1 r3"),
            ("put a=2 ignore_lease lease=5", "LeaseProvided"),
            ("put b=2 ignore_lease", "KeyNotFound"),
            ("put a ignore_lease ignore_value", "put r4"),
            ("range a", "[a=2@2.4.3] of 1 r4"),
        ],
    );
}

#[test]
fn an_unknown_lease_is_refused_before_a_missing_key() {
    check_all(
        "put a=1",
        &[
            ("put a=2 lease=5", "LeaseNotFound"),
            ("put a=2 lease=-5", "LeaseNotFound"),
            ("put b ignore_value lease=5", "LeaseNotFound"),
            ("range *", "[a=1@2.2.1] of 1 r2"),
        ],
    );
}

#[test]
fn a_key_is_needed() {
    check("", "put =1", "EmptyKey");
    check("", "put = ignore_value", "EmptyKey");
    check("", "del ''", "EmptyKey");
    check("", "del ''..", "EmptyKey");
}

#[test]
fn a_delete_tells_how_many_and_which() {
    let story = "put a=1; put b=2; put c=3; put d=4";
    check_all(
        story,
        &[
            ("del b", "del 1 r6"),
            ("del b", "del 0 r6"),
            ("del a..d prev", "del 2 r7 was a=1@2.2.1 c=3@4.4.1"),
            ("range *", "[d=4@5.5.1] of 1 r7"),
            ("range * rev=5", "[a=1@2.2.1 b=2@3.3.1 c=3@4.4.1 d=4@5.5.1] of 4 r7"),
        ],
    );
    check(story, "del c.. prev", "del 2 r6 was c=3@4.4.1 d=4@5.5.1");
    check(story, "del *", "del 4 r6");
    check(story, "del c..b prev", "del 0 r5");
}

#[test]
fn a_delete_that_finds_nothing_moves_no_revision() {
    check_all(
        "",
        &[("del a", "del 0 r1"), ("del *", "del 0 r1"), ("put a=1", "put r2"), ("del b prev", "del 0 r2")],
    );
}

#[test]
fn a_refused_put_moves_no_revision() {
    check_all(
        "",
        &[("put a=1 lease=9", "LeaseNotFound"), ("put a ignore_value", "KeyNotFound"), ("put a=1", "put r2")],
    );
}

#[test]
fn compaction_is_accepted_once_per_revision_up_to_the_newest() {
    check_all(
        "put a=1; put a=2; put a=3",
        &[
            ("compact 5", "FutureRev"),
            ("compact 3", "compact r4"),
            ("compact 3", "Compacted"),
            ("compact 2", "Compacted"),
            ("compact 4", "compact r4"),
            ("compact 5", "FutureRev"),
            ("put a=4", "put r5"),
            ("range a rev=4", "[a=3@2.4.3] of 1 r5"),
        ],
    );
}

#[test]
fn revision_zero_can_be_compacted_on_a_young_store_only() {
    check_all("", &[("compact 0", "compact r1"), ("compact 0", "Compacted"), ("compact 1", "compact r1")]);
    check("", "compact -1", "Compacted");
    check("put a=1; compact 2", "compact 0", "Compacted");
}

#[test]
fn reads_after_a_compaction_see_what_was_live() {
    check_all(
        "put a=1; put b=1; put a=2; del b; compact 5",
        &[
            ("range * rev=5", "[a=2@2.4.2] of 1 r5"),
            ("range * rev=4", "Compacted"),
            ("put b=2", "put r6"),
            ("range *", "[a=2@2.4.2 b=2@6.6.1] of 2 r6"),
        ],
    );
}
