//! Range: every option, alone and where two of them meet.

use super::{check, check_all};

const ABC: &str = "put a=1; put b=2; put c=3"; // revisions 2, 3, 4

#[test]
fn the_empty_store_is_at_revision_one() {
    check("", "range *", "[] of 0 r1");
    check("", "range a", "[] of 0 r1");
    check("", "range * count", "[] of 0 r1");
}

#[test]
fn a_range_selects_by_key_and_end() {
    check_all(
        "put a=1; put ab=2; put b=3; put c=4",
        &[
            ("range a", "[a=1@2.2.1] of 1 r5"),
            ("range x", "[] of 0 r5"),
            ("range a..b", "[a=1@2.2.1 ab=2@3.3.1] of 2 r5"),
            ("range ab..", "[ab=2@3.3.1 b=3@4.4.1 c=4@5.5.1] of 3 r5"),
            ("range *", "[a=1@2.2.1 ab=2@3.3.1 b=3@4.4.1 c=4@5.5.1] of 4 r5"),
            ("range b..a", "[] of 0 r5"),
            ("range b..b", "[] of 0 r5"),
            ("range ''", "EmptyKey"),
            ("range ''..", "EmptyKey"),
        ],
    );
}

#[test]
fn keys_compare_as_unsigned_bytes() {
    check(
        "put \\xff=1; put \\x7f=2; put \\0=3; put \\0\\0=4",
        "range *",
        "[\\x00=3@4.4.1 \\x00\\x00=4@5.5.1 \\x7f=2@3.3.1 \\xff=1@2.2.1] of 4 r5",
    );
}

#[test]
fn a_revision_reads_the_past_and_the_header_tells_the_present() {
    check_all(
        "put a=1; put a=2; del a; put a=3", // 2, 3, 4, 5
        &[
            ("range a rev=1", "[] of 0 r5"),
            ("range a rev=2", "[a=1@2.2.1] of 1 r5"),
            ("range a rev=3", "[a=2@2.3.2] of 1 r5"),
            ("range a rev=4", "[] of 0 r5"),
            ("range a rev=5", "[a=3@5.5.1] of 1 r5"),
            ("range a rev=6", "FutureRev"),
            ("range a rev=0", "[a=3@5.5.1] of 1 r5"),
            ("range a rev=-7", "[a=3@5.5.1] of 1 r5"),
        ],
    );
}

#[test]
fn compacted_history_is_refused_below_the_compact_revision_only() {
    check_all(
        "put a=1; put a=2; put a=3; compact 3",
        &[
            ("range a rev=2", "Compacted"),
            ("range a rev=1", "Compacted"),
            ("range a rev=3", "[a=2@2.3.2] of 1 r4"),
            ("range a rev=-1", "[a=3@2.4.3] of 1 r4"),
            ("range a rev=9", "FutureRev"),
        ],
    );
}

#[test]
fn a_limit_cuts_and_says_so_while_the_count_stays_whole() {
    check_all(
        ABC,
        &[
            ("range * limit=1", "[a=1@2.2.1] of 3 more r4"),
            ("range * limit=2", "[a=1@2.2.1 b=2@3.3.1] of 3 more r4"),
            ("range * limit=3", "[a=1@2.2.1 b=2@3.3.1 c=3@4.4.1] of 3 r4"),
            ("range * limit=9", "[a=1@2.2.1 b=2@3.3.1 c=3@4.4.1] of 3 r4"),
            ("range * limit=-1", "[a=1@2.2.1 b=2@3.3.1 c=3@4.4.1] of 3 r4"),
            ("range * limit=9223372036854775807", "[a=1@2.2.1 b=2@3.3.1 c=3@4.4.1] of 3 r4"),
            ("range * limit=1 rev=3", "[a=1@2.2.1] of 2 more r4"),
        ],
    );
}

#[test]
fn counting_ignores_limit_and_filters() {
    check_all(
        ABC,
        &[
            ("range * count", "[] of 3 r4"),
            ("range * count limit=1", "[] of 3 r4"),
            ("range * count min_mod=4", "[] of 3 r4"),
            ("range * count rev=2", "[] of 1 r4"),
            ("range * count keys sort=desc by=value", "[] of 3 r4"),
        ],
    );
}

#[test]
fn keys_only_drops_values() {
    check_all(
        ABC,
        &[
            ("range * keys", "[a=@2.2.1 b=@3.3.1 c=@4.4.1] of 3 r4"),
            ("range * keys limit=1", "[a=@2.2.1] of 3 more r4"),
            ("range * keys sort=desc by=mod", "[c=@4.4.1 b=@3.3.1 a=@2.2.1] of 3 r4"),
        ],
    );
}

#[test]
fn keys_only_sorted_by_value_uses_the_values_before_it_drops_them() {
    check(
        "put a=3; put b=1; put c=2",
        "range * keys sort=asc by=value",
        "[b=@3.3.1 c=@4.4.1 a=@2.2.1] of 3 r4",
    );
}

#[test]
fn every_sort_target_and_order_sorts() {
    // a: 2..6 version 3; b: 3 version 1; c: 5 version 2 (created at 4).
    check_all(
        "put a=5; put b=9; put c=7; put c=1; put a=2; put a=4",
        &[
            ("range * sort=asc by=key", "[a=4@2.7.3 b=9@3.3.1 c=1@4.5.2] of 3 r7"),
            ("range * sort=desc by=key", "[c=1@4.5.2 b=9@3.3.1 a=4@2.7.3] of 3 r7"),
            ("range * sort=asc by=version", "[b=9@3.3.1 c=1@4.5.2 a=4@2.7.3] of 3 r7"),
            ("range * sort=desc by=version", "[a=4@2.7.3 c=1@4.5.2 b=9@3.3.1] of 3 r7"),
            ("range * sort=asc by=create", "[a=4@2.7.3 b=9@3.3.1 c=1@4.5.2] of 3 r7"),
            ("range * sort=desc by=create", "[c=1@4.5.2 b=9@3.3.1 a=4@2.7.3] of 3 r7"),
            ("range * sort=asc by=mod", "[b=9@3.3.1 c=1@4.5.2 a=4@2.7.3] of 3 r7"),
            ("range * sort=desc by=mod", "[a=4@2.7.3 c=1@4.5.2 b=9@3.3.1] of 3 r7"),
            ("range * sort=asc by=value", "[c=1@4.5.2 a=4@2.7.3 b=9@3.3.1] of 3 r7"),
            ("range * sort=desc by=value", "[b=9@3.3.1 a=4@2.7.3 c=1@4.5.2] of 3 r7"),
            ("range * sort=none by=mod", "[b=9@3.3.1 c=1@4.5.2 a=4@2.7.3] of 3 r7"),
            ("range * sort=none by=key", "[a=4@2.7.3 b=9@3.3.1 c=1@4.5.2] of 3 r7"),
        ],
    );
}

#[test]
fn equal_elements_keep_their_key_order_both_ways() {
    check_all(
        "put a=x; put b=x; put c=x",
        &[
            ("range * sort=asc by=version", "[a=x@2.2.1 b=x@3.3.1 c=x@4.4.1] of 3 r4"),
            ("range * sort=desc by=value", "[a=x@2.2.1 b=x@3.3.1 c=x@4.4.1] of 3 r4"),
        ],
    );
}

#[test]
fn an_explicit_order_sorts_all_keys_before_the_limit() {
    check_all(
        "put a=3; put b=2; put c=1",
        &[
            ("range * sort=asc by=value limit=1", "[c=1@4.4.1] of 3 more r4"),
            ("range * sort=desc by=key limit=1", "[c=1@4.4.1] of 3 more r4"),
            ("range * sort=desc by=mod limit=2", "[c=1@4.4.1 b=2@3.3.1] of 3 more r4"),
            ("range * sort=desc by=mod limit=3", "[c=1@4.4.1 b=2@3.3.1 a=3@2.2.1] of 3 r4"),
        ],
    );
}

#[test]
fn without_an_order_the_limit_comes_before_the_sort() {
    // The smallest keys up to the limit and one are a and b; of these b has the smaller value. c is never seen.
    check("put a=3; put b=2; put c=1", "range * sort=none by=value limit=1", "[b=2@3.3.1] of 3 more r4");
}

#[test]
fn revision_filters_include_their_bounds() {
    check_all(
        "put a=1; put b=1; put c=1; put a=2", // a: create 2, mod 5; b: 3; c: 4
        &[
            ("range * min_mod=4", "[a=2@2.5.2 c=1@4.4.1] of 3 r5"),
            ("range * max_mod=4", "[b=1@3.3.1 c=1@4.4.1] of 3 r5"),
            ("range * min_mod=4 max_mod=4", "[c=1@4.4.1] of 3 r5"),
            ("range * min_create=3", "[b=1@3.3.1 c=1@4.4.1] of 3 r5"),
            ("range * max_create=2", "[a=2@2.5.2] of 3 r5"),
            ("range * min_create=3 max_create=3", "[b=1@3.3.1] of 3 r5"),
            ("range * min_mod=5 max_create=2", "[a=2@2.5.2] of 3 r5"),
            ("range * min_mod=9", "[] of 3 r5"),
            ("range * max_mod=-1", "[] of 3 r5"),
            ("range * min_mod=-1", "[a=2@2.5.2 b=1@3.3.1 c=1@4.4.1] of 3 r5"),
        ],
    );
}

#[test]
fn filters_come_before_the_limit_and_look_at_the_version_that_is_read() {
    check_all(
        "put a=1; put b=1; put c=1; put a=2",
        &[
            ("range * min_mod=3 limit=1", "[a=2@2.5.2] of 3 more r5"),
            ("range * max_mod=4 limit=1", "[b=1@3.3.1] of 3 more r5"),
            ("range * max_mod=4 limit=2", "[b=1@3.3.1 c=1@4.4.1] of 3 r5"),
            ("range * max_mod=3 rev=4", "[a=1@2.2.1 b=1@3.3.1] of 3 r5"),
            ("range * max_mod=4 sort=desc by=mod limit=1", "[c=1@4.4.1] of 3 more r5"),
        ],
    );
}

#[test]
fn an_unknown_sort_is_refused() {
    check(ABC, "range * sort=3", "InvalidSortOption");
    check(ABC, "range * sort=-1", "InvalidSortOption");
    check(ABC, "range * by=5", "InvalidSortOption");
    check(ABC, "range '' by=5", "EmptyKey");
}

#[test]
fn serializable_makes_no_difference_to_what_is_answered() {
    check(ABC, "range a serializable", "[a=1@2.2.1] of 1 r4");
}
