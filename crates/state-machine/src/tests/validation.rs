//! Checks before consensus: shapes, numbers of operations, the duplicate rule. Also the cost of
//! requests.

use api::Error;
use api::etcdserverpb::{RangeRequest, TxnRequest};

use super::script::{ScriptStep, read};
use crate::command::Kind;
use crate::validate::{self, StreamRefusal};

fn txn(script: &str) -> TxnRequest {
    match read(script).pop() {
        Some(ScriptStep::Command(Kind::Txn(request))) => request,
        other => panic!("not a transaction: {other:?}"),
    }
}

fn range(script: &str) -> RangeRequest {
    match read(script).pop() {
        Some(ScriptStep::Range(request)) => request,
        other => panic!("not a range: {other:?}"),
    }
}

fn check(ops_max: usize, script: &str, wanted: Result<(), Error>) {
    assert_eq!(validate::txn(&txn(script), ops_max), wanted, "{script}");
}

/// `count` puts of different keys.
fn puts(prefix: &str, count: usize) -> String {
    (0..count).map(|number| format!("put {prefix}{number}=1; ")).collect()
}

#[test]
fn the_longest_list_of_a_transaction_is_bounded() {
    let (fitting, too_many) = (puts("a", 128), puts("a", 129));
    for (script, fits) in [
        (format!("txn then {{ {fitting} }}"), true),
        (format!("txn then {{ {too_many} }}"), false),
        (format!("txn else {{ {too_many} }}"), false),
        (format!("txn then {{ {fitting} }} else {{ {fitting} }}"), true),
        (format!("txn if {}", "version(a)=0 ".repeat(128)), true),
        (format!("txn if {}", "version(a)=0 ".repeat(129)), false),
    ] {
        let wanted = if fits { Ok(()) } else { Err(Error::TooManyOps) };
        check(128, &script, wanted);
    }
}

#[test]
fn a_nested_transaction_has_what_its_parent_left() {
    // The parent's operations with the nested transaction, and the child's.
    let nested = |parents: usize, children: usize| {
        format!("txn then {{ {} txn then {{ {} }} }}", puts("p", parents - 1), puts("c", children))
    };
    check(8, &nested(3, 5), Ok(()));
    check(8, &nested(3, 6), Err(Error::TooManyOps));
    check(8, &nested(8, 1), Err(Error::TooManyOps));
    check(8, &nested(8, 0), Ok(()));
    // Siblings do not share: each may use all of the rest.
    let siblings = format!("txn then {{ txn then {{ {} }}; txn then {{ {} }} }}", puts("a", 6), puts("b", 6));
    check(8, &siblings, Ok(()));
    check(7, &siblings, Err(Error::TooManyOps));
}

#[test]
fn every_operation_is_held_to_its_own_rules() {
    for (script, wanted) in [
        ("txn if version('')=0", Error::EmptyKey),
        ("txn then { range '' }", Error::EmptyKey),
        ("txn then { range a sort=7 }", Error::InvalidSortOption),
        ("txn then { put =1 }", Error::EmptyKey),
        ("txn then { put a=1 ignore_value }", Error::ValueProvided),
        ("txn then { put a=1 ignore_lease lease=1 }", Error::LeaseProvided),
        ("txn then { del '' }", Error::EmptyKey),
        ("txn then { nothing }", Error::KeyNotFound),
        ("txn else { nothing }", Error::KeyNotFound),
        ("txn then { txn then { nothing } }", Error::KeyNotFound),
        ("txn then { txn if mod('')=0 }", Error::EmptyKey),
    ] {
        check(128, script, Err(wanted));
    }
}

#[test]
fn the_first_complaint_is_compares_then_success_then_failure_depth_first() {
    for (script, wanted) in [
        ("txn if version('')=0 then { nothing }", Error::EmptyKey),
        ("txn then { nothing } else { put =1 }", Error::KeyNotFound),
        ("txn then { range a sort=7; put =1 }", Error::InvalidSortOption),
        ("txn then { txn then { put a=1 ignore_value }; put =1 }", Error::ValueProvided),
        ("txn then { put a=1; put a=2; put =1 }", Error::EmptyKey),
        ("txn then { put a=1; put a=2 } else { nothing }", Error::KeyNotFound),
    ] {
        check(128, script, Err(wanted));
    }
    check(1, "txn if version('')=0 version(b)=0", Err(Error::TooManyOps));
}

#[test]
fn a_branch_changes_a_key_once() {
    for (branch, fits) in [
        ("put a=1; put b=1", true),
        ("put a=1; put a=1", false),
        ("put a=1; del a", false),
        ("del a; put a=1", false),
        ("put b=1; del a..c", false),
        ("del a..c; put b=1", false),
        ("del a..c; put c=1", true),
        ("del a..c; put a=1", false),
        ("del a; del a; del a..c; del b..d", true),
        ("del a..c; del c..e; put d=1", false),
        ("del a..c; del e..g; put d=1", true),
        ("del e..g; del a..c; del b..f; put d=1", false),
        ("del c..a; put b=1", true),
        ("del b..b; put b=1", true),
        ("del a..; put b=1", true),
        ("put b=1; del a..", true),
        ("del *; put b=1", true),
        ("range a; put a=1; range a..c", true),
    ] {
        let wanted = if fits { Ok(()) } else { Err(Error::DuplicateKey) };
        check(128, &format!("txn then {{ {branch} }}"), wanted);
        check(128, &format!("txn else {{ {branch} }}"), wanted);
        check(128, &format!("txn then {{ txn else {{ {branch} }} }}"), wanted);
    }
    check(128, "txn then { put a=1 } else { put a=1 }", Ok(()));
}

#[test]
fn levels_and_siblings_share_the_rule_with_etcds_holes() {
    for (branch, fits) in [
        ("put a=1; txn then { put a=1 }", false),
        ("txn then { put a=1 }; put a=1", false),
        ("del a; txn then { put a=1 }", false),
        ("txn then { put a=1 }; del a..c", false),
        ("put a=1; txn then { del a }", false),
        ("put a=1; txn else { del a..c }", false),
        ("txn then { put a=1 } else { put a=2 }", true),
        ("txn then { put a=1 } else { put a=2; put b=1 }; put b=1", false),
        ("txn then { put a=1 }; txn then { put a=1 }", false),
        ("txn then { put a=1 }; txn else { put a=1 }", false),
        ("txn else { put a=1 }; txn else { put a=1 }", false),
        ("txn then { put k=1 }; txn then { del k }", true),
        ("txn then { del k }; txn then { put k=1 }", false),
        ("txn then { del j..l }; txn else { put k=1 }", false),
        ("txn then { put k=1 } else { del k }", true),
        ("txn then { del k } else { put k=1 }", true),
        ("txn then { del k }; txn then { del k }; del k", true),
        ("txn then { del j.. }; put k=1", true),
        ("txn then { txn then { put k=1 } }; put k=1", false),
        ("txn then { txn then { del a..z } }; put k=1", false),
    ] {
        let wanted = if fits { Ok(()) } else { Err(Error::DuplicateKey) };
        check(128, &format!("txn then {{ {branch} }}"), wanted);
    }
}

#[test]
fn the_duplicate_rule_stays_quick_on_a_hostile_request() {
    // 40,000 deletes and as many puts in nested transactions. Comparing all pairs would take minutes.
    let deletes = |from: usize| {
        (from..from + 100).map(|n| format!("del d{n:06}..d{n:06}x")).collect::<Vec<_>>().join("; ")
    };
    let puts =
        |from: usize| (from..from + 100).map(|n| format!("put p{n:06}=1")).collect::<Vec<_>>().join("; ");
    let children: Vec<_> = (0..100)
        .map(|n| format!("txn then {{ {} }} else {{ {} }}", deletes(n * 100), puts(n * 100)))
        .collect();
    let half = format!("txn then {{ {} }}", children.join("; "));
    check(300, &format!("txn then {{ {half} }}"), Ok(()));
    check(300, &format!("txn then {{ {half}; put p009999=1 }}"), Err(Error::DuplicateKey));
    check(300, &format!("txn then {{ {half}; put d000000a=1 }}"), Err(Error::DuplicateKey));
}

#[test]
fn only_ranges_in_both_branches_make_a_read() {
    for (script, read_only, serializable) in [
        ("txn", true, true),
        ("txn if version(a)=0", true, true),
        ("txn then { range a }", true, false),
        ("txn then { range a serializable }", true, true),
        ("txn then { range a serializable } else { range b }", true, false),
        ("txn then { range a serializable } else { range b serializable }", true, true),
        ("txn then { put a=1 }", false, false),
        ("txn else { del a }", false, false),
        ("txn then { txn then { range a serializable } }", false, false),
        ("txn then { nothing }", false, false),
    ] {
        let request = txn(script);
        assert_eq!(validate::is_read_only(&request), read_only, "{script}");
        assert_eq!(validate::is_serializable(&request), serializable, "{script}");
    }
}

#[test]
fn a_transaction_costs_its_dearer_branch() {
    for (script, cost) in [
        ("txn", 0),
        ("txn then { range a; del a }", 0),
        ("txn then { put ab=cde }", 256 + 5),
        ("txn then { put a=1; put b=2 } else { put c=345 }", 2 * 258),
        ("txn then { put a=1 } else { put c=345 }", 260),
        ("txn then { put a=1; txn then { put b=2 } else { put b=222 } }", 258 + 260),
        ("txn else { txn else { put b=2 } }", 258),
    ] {
        assert_eq!(validate::txn_cost(&txn(script)), cost, "{script}");
    }
}

#[test]
fn a_streamed_range_has_etcds_orders_and_no_filters() {
    for (script, wanted) in [
        ("range a", Ok(())),
        ("range * limit=3 rev=2 keys", Ok(())),
        ("range * sort=asc", Ok(())),
        ("range * sort=none by=mod", Ok(())),
        ("range ''", Err(StreamRefusal::Refused(Error::EmptyKey))),
        ("range a sort=9", Err(StreamRefusal::Refused(Error::InvalidSortOption))),
        ("range a sort=desc", Err(StreamRefusal::CustomSort)),
        ("range a sort=asc by=mod", Err(StreamRefusal::CustomSort)),
        ("range a sort=desc min_mod=2", Err(StreamRefusal::CustomSort)),
        ("range a min_mod=2", Err(StreamRefusal::RevisionFilter)),
        ("range a max_create=2", Err(StreamRefusal::RevisionFilter)),
    ] {
        assert_eq!(validate::range_stream(&range(script)), wanted, "{script}");
    }
}
