//! Lost disks and first starts: when a member with an empty log votes.

use crate::common::{Cluster, agree};
use raft_node::{EmptyLog, Event, FirstState, Inquiry, Role, Term};

/// Returns a cluster led by member 1. It and member 2 have entries that member 3 lacks; then member 2 loses
/// its disk, and member 1 is down.
fn wiped() -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.write(1, 5);
    cluster.member(3).up = false;
    cluster.write(1, 5);
    assert_eq!(cluster.lines(1).len(), 10, "members 1 and 2 committed them");
    cluster.wipe(2);
    cluster.member(1).up = false;
    cluster.member(3).up = true;
    cluster
}

#[test]
fn a_wiped_member_elects_no_leader_without_the_entries_it_acknowledged() {
    let mut cluster = wiped();
    for _ in 0..20 {
        cluster.pass(5);
        cluster.inquire(2);
        assert_ne!(cluster.gauges(3).role, Role::Leader, "member 3 lacks committed entries");
    }
    assert!(cluster.members[&2].node.is_unconfirmed(), "one of two others is no majority of them");
    cluster.member(1).up = true;
    cluster.pass(60);
    assert!(cluster.inquire(2));
    cluster.pass(60);
    cluster.offer(1, "and on");
    cluster.pass(2);
    agree(&cluster, 11);
    assert!(!cluster.members[&2].node.is_held());
}

/// Like with an empty log: the imported state does not include the member's acknowledgements.
#[test]
fn a_member_that_is_imported_alone_asks_the_others_and_takes_their_state() {
    let mut cluster = wiped();
    cluster.import(2);
    for _ in 0..20 {
        cluster.pass(5);
        cluster.inquire(2);
        assert_ne!(cluster.gauges(3).role, Role::Leader, "member 3 lacks committed entries");
        assert_ne!(cluster.gauges(2).role, Role::Leader, "member 2 lacks all of them");
    }
    cluster.member(1).up = true;
    cluster.pass(60);
    assert!(cluster.inquire(2));
    cluster.offer(1, "and on");
    for _ in 0..10 {
        cluster.checkpoint(1);
        cluster.pass(10);
    }
    agree(&cluster, 11);
    assert_eq!(cluster.members[&2].applier.machine().installs, 1, "it takes the leader's state");
    assert!(!cluster.members[&2].node.is_held());
}

#[test]
fn members_that_are_all_imported_begin_with_what_they_have() {
    let mut cluster = Cluster::begin(3, EmptyLog::Unconfirmed);
    (1..=3).for_each(|id| cluster.import(id));
    cluster.member(3).up = false;
    cluster.pass(60);
    assert!((1..=3).all(|id| cluster.gauges(id).term == Term(1)), "none of them was asked yet");
    assert!(cluster.inquire(1) && cluster.inquire(2), "two of three have taken no part");
    let leader = cluster.elect();
    cluster.write(leader, 3);
    assert_eq!(cluster.lines(leader)[0], "imported");
    // After a restart, neither sends an inquiry.
    [1, 2].into_iter().for_each(|id| {
        let book = cluster.members[&id].applier.machine().clone();
        cluster.restart(id, book);
        assert!(!cluster.members[&id].node.is_unconfirmed());
    });
}

/// Its log starts at the index of the first entry of its peers, in the same term.
#[test]
fn a_member_that_is_imported_among_empty_ones_takes_their_state_or_keeps_them_waiting() {
    let mut cluster = Cluster::begin(3, EmptyLog::Unconfirmed);
    cluster.import(1);
    assert!((1..=3).all(|id| !cluster.inquire(id)), "the two have no store, and know of one");
    cluster.member(1).up = false;
    assert!(cluster.inquire(2) && cluster.inquire(3), "they do not know of it");
    let leader = cluster.elect();
    cluster.write(leader, 3);
    cluster.member(1).up = true;
    cluster.pass(60);
    assert!(cluster.inquire(1));
    cluster.offer(leader, "and on");
    for _ in 0..10 {
        cluster.checkpoint(leader);
        cluster.pass(10);
    }
    agree(&cluster, 4);
}

#[test]
fn a_wiped_member_that_is_confirmed_votes_when_it_has_caught_up() {
    let mut cluster = wiped();
    cluster.member(1).up = true;
    cluster.pass(60);
    assert_eq!(cluster.gauges(1).role, Role::Leader, "it has all entries");
    cluster.isolate(&[3]);
    cluster.write(1, 1); // Only the leader has it: a log that reaches it would get the vote.
    // The leader's entries do not arrive; member 3 responds, but cannot help the leader.
    cluster.cut.extend([(1, 2)]);
    cluster.cut.retain(|pair| !matches!(pair, (2, 3) | (3, 2)));
    let answers = [1, 3].map(|id| (id, cluster.member(id).node.answer_member(2).unwrap()));
    let mut inquiry = Inquiry::new(2, &[1, 2, 3], FirstState::Empty);
    answers.into_iter().for_each(|(id, answer)| inquiry.note(id, answer, 0));
    let confirmation = inquiry.confirmation().unwrap();
    cluster.member(2).node.handle(Event::Confirmed(confirmation)).unwrap();
    cluster.member(1).up = false;
    cluster.pass(100);
    assert!(cluster.members[&2].node.is_held());
    assert_ne!(cluster.gauges(3).role, Role::Leader, "it may still lack entries");
    cluster.heal();
    cluster.member(1).up = true;
    cluster.pass(60);
    assert!(!cluster.members[&2].node.is_held());
    cluster.member(1).up = false;
    cluster.pass(60);
    assert!((2..=3).any(|id| cluster.gauges(id).role == Role::Leader), "it votes again");
}

#[test]
fn a_wiped_member_follows_the_leader_that_it_followed_before() {
    let mut cluster = Cluster::new(3);
    cluster.elect();
    cluster.write(1, 5);
    cluster.wipe(2);
    assert!(cluster.inquire(2));
    cluster.pass(10);
    assert_eq!(cluster.gauges(1).role, Role::Leader, "no election was needed");
    agree(&cluster, 5);
}

#[test]
fn three_new_members_elect_as_soon_as_two_of_them_have_answered() {
    let mut cluster = Cluster::begin(3, EmptyLog::Unconfirmed);
    cluster.member(3).up = false;
    cluster.pass(60);
    assert!((1..=3).all(|id| cluster.gauges(id).term == Term(0)), "none of them was asked yet");
    assert!(cluster.inquire(1) && cluster.inquire(2), "two empty logs of three");
    let leader = cluster.elect();
    cluster.write(leader, 3);
    cluster.member(3).up = true;
    assert!(cluster.inquire(3), "the others know all that was committed");
    cluster.pass(10);
    assert_eq!(cluster.gauges(leader).role, Role::Leader, "a late member costs no election");
    agree(&cluster, 3);
}
