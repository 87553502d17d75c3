//! Transactions: branches, order, atomicity, revisions, and the headers of their parts.

use super::{check, check_all};

#[test]
fn compares_choose_the_branch() {
    check_all(
        "put a=1",
        &[
            ("txn if value(a)=1 then { put b=1 } else { put c=1 }", "yes r3 { put r3 }"),
            ("txn if value(a)=2 then { put b=2 } else { put c=2 }", "no r4 { put r4 }"),
            ("txn if value(a)=1 version(a)=2 then { put b=3 } else { put c=3 }", "no r5 { put r5 }"),
            ("txn if value(a)=1 version(a)=1 then { put b=4 } else { put c=4 }", "yes r6 { put r6 }"),
            ("range *", "[a=1@2.2.1 b=4@3.6.2 c=3@4.5.2] of 3 r6"),
        ],
    );
}

#[test]
fn without_compares_the_first_branch_is_taken() {
    check("", "txn then { put a=1 } else { put b=1 }", "yes r2 { put r2 }");
    check("", "txn", "yes r1 {  }");
    check("put a=1", "txn else { put b=1 }", "yes r2 {  }");
}

#[test]
fn all_changes_share_one_revision() {
    check_all(
        "put x=1; put y=1",
        &[
            (
                "txn then { put a=1; put b=2; del x; del y; put c=3 }",
                "yes r4 { put r4; put r4; del 1 r4; del 1 r4; put r4 }",
            ),
            ("range *", "[a=1@4.4.1 b=2@4.4.1 c=3@4.4.1] of 3 r4"),
            ("put a=2", "put r5"),
        ],
    );
}

#[test]
fn a_branch_that_changes_nothing_moves_no_revision() {
    check_all(
        "put a=1",
        &[
            ("txn then { del x; range a }", "yes r2 { del 0 r2; [a=1@2.2.1] of 1 r2 }"),
            ("txn then { range a } else { put a=2 }", "yes r2 { [a=1@2.2.1] of 1 r2 }"),
            ("put a=2", "put r3"),
        ],
    );
}

#[test]
fn later_operations_see_earlier_ones() {
    check(
        "put a=1",
        "txn then { range *; put b=2 prev; range *; del a prev; range *; del a }",
        "yes r3 { [a=1@2.2.1] of 1 r2; put r3; [a=1@2.2.1 b=2@3.3.1] of 2 r3; del 1 r3 was a=1@2.2.1; \
         [b=2@3.3.1] of 1 r3; del 0 r3 }",
    );
}

#[test]
fn headers_of_operations_move_with_the_first_change() {
    check_all(
        "put a=1",
        &[
            (
                "txn then { range a; del x; put b=1; del x; range x }",
                "yes r3 { [a=1@2.2.1] of 1 r2; del 0 r2; put r3; del 0 r3; [] of 0 r3 }",
            ),
            ("txn then { del a; range a }", "yes r4 { del 1 r4; [] of 0 r4 }"),
        ],
    );
}

#[test]
fn a_range_in_a_transaction_may_read_the_past() {
    check_all(
        "put a=1; put a=2; put a=3; compact 3",
        &[
            (
                "txn then { put b=1; range a rev=3; range * rev=4 }",
                "yes r5 { put r5; [a=2@2.3.2] of 1 r5; [a=3@2.4.3] of 1 r5 }",
            ),
            ("txn then { put c=1; range a rev=2 }", "Compacted"),
            ("txn then { put c=1; range a rev=6 }", "FutureRev"),
            ("txn then { put c=1; range a rev=-1 }", "Compacted"),
            ("txn then { range a rev=2 }", "Compacted"),
            ("txn then { range a rev=6 }", "FutureRev"),
            ("txn then { range a rev=-1 }", "Compacted"),
            ("range *", "[a=3@2.4.3 b=1@5.5.1] of 2 r5"),
        ],
    );
}

#[test]
fn a_negative_revision_means_newest_only_while_nothing_was_compacted() {
    check_all(
        "put a=1",
        &[
            ("txn then { put b=1; range * rev=-1 }", "yes r3 { put r3; [a=1@2.2.1 b=1@3.3.1] of 2 r3 }"),
            ("txn then { put b=1; range * rev=-2 }", "Compacted"),
        ],
    );
}

#[test]
fn a_refused_operation_undoes_the_whole_branch() {
    check_all(
        "put a=1",
        &[
            ("txn then { put b=1; put c=1 lease=7 }", "LeaseNotFound"),
            ("txn then { put b=1; put c ignore_value }", "KeyNotFound"),
            ("txn then { put b=1; put c=1 ignore_lease }", "KeyNotFound"),
            ("txn then { put b=1; txn then { put c=1 lease=7 } }", "LeaseNotFound"),
            ("txn then { put b=1 } else { put c=1 lease=7 }", "yes r3 { put r3 }"),
            ("range *", "[a=1@2.2.1 b=1@3.3.1] of 2 r3"),
        ],
    );
}

#[test]
fn checks_look_at_the_state_before_the_transaction() {
    // The key to keep is created by the parent, too late for the check of the child.
    check(
        "",
        "txn then { txn then { put b=1 }; put a=1 }; txn then { put c=1; put d ignore_value }",
        "KeyNotFound",
    );
    check(
        "put a=1",
        "txn then { put a ignore_value prev; range a }",
        "yes r3 { put r3 was a=1@2.2.1; [a=1@2.3.2] of 1 r3 }",
    );
}

#[test]
fn nested_transactions_compare_before_anything_changed() {
    check_all(
        "put a=1",
        &[
            (
                "txn then { put b=2; txn if version(b)>0 then { put c=1 } else { put d=1 } }",
                "yes r3 { put r3; no r0 { put r3 } }",
            ),
            (
                "txn then { txn if value(a)=1 then { txn if value(b)=2 then { range b } else { nothing } } }",
                "KeyNotFound",
            ),
            (
                "txn then { txn if value(a)=1 then { txn if value(b)=2 then { range b } else { del b } }; put e=1 }",
                "yes r4 { yes r0 { yes r0 { [b=2@3.3.1] of 1 r3 } }; put r4 }",
            ),
        ],
    );
}

#[test]
fn nested_transactions_that_only_read_move_no_revision() {
    check("put a=1", "txn then { txn then { range a } }", "yes r2 { yes r0 { [a=1@2.2.1] of 1 r2 } }");
    check("put a=1", "txn then { txn }", "yes r2 { yes r0 {  } }");
}

#[test]
fn siblings_take_their_own_branches() {
    check_all(
        "put a=1",
        &[
            (
                "txn then { txn if value(a)=1 then { put b=1 } else { put b=2 }; \
                 txn if value(a)=2 then { put c=1 } else { put c=2; txn if version(x)=0 then { put d=3 } }; put e=5 }",
                "yes r3 { yes r0 { put r3 }; no r0 { put r3; yes r0 { put r3 } }; put r3 }",
            ),
            ("range *", "[a=1@2.2.1 b=1@3.3.1 c=2@3.3.1 d=3@3.3.1 e=5@3.3.1] of 5 r3"),
        ],
    );
}

#[test]
fn a_delete_to_the_end_may_meet_a_put_in_either_order() {
    check_all(
        "put a=1; put b=1",
        &[
            ("txn then { del a..; put b=2 }", "yes r4 { del 2 r4; put r4 }"),
            ("range *", "[b=2@4.4.1] of 1 r4"),
            ("txn then { put b=3; del a.. }", "yes r5 { put r5; del 1 r5 }"),
            ("range *", "[] of 0 r5"),
        ],
    );
}

#[test]
fn a_put_that_keeps_what_the_same_transaction_deleted_keeps_nothing() {
    check_all(
        "put b=1",
        &[
            ("txn then { del a..; put b ignore_value }", "yes r3 { del 1 r3; put r3 }"),
            ("range b", "[b=@3.3.1] of 1 r3"),
        ],
    );
}

#[test]
fn one_child_may_put_what_a_later_child_deletes() {
    check_all(
        "",
        &[
            (
                "txn then { txn then { put k=1 }; txn then { del k } }",
                "yes r2 { yes r0 { put r2 }; yes r0 { del 1 r2 } }",
            ),
            ("range *", "[] of 0 r2"),
            ("put k=2", "put r3"),
            ("range k", "[k=2@3.3.1] of 1 r3"),
        ],
    );
}

#[test]
fn a_read_only_transaction_sees_one_revision() {
    check_all(
        "put a=1; put b=2",
        &[
            (
                "txn if version(a)=1 then { range a; range * limit=1; range * count }",
                "yes r3 { [a=1@2.2.1] of 1 r3; [a=1@2.2.1] of 2 more r3; [] of 2 r3 }",
            ),
            (
                "txn if version(a)=0 then { range a } else { range b serializable }",
                "no r3 { [b=2@3.3.1] of 1 r3 }",
            ),
            ("txn then { range * rev=2 }", "yes r3 { [a=1@2.2.1] of 1 r3 }"),
        ],
    );
}
