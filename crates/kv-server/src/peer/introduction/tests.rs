use super::*;
use crate::data_dir::FORMAT;

fn member(id: u64, url: &str) -> FirstMember {
    FirstMember { id, name: String::new(), peer_urls: vec![url.to_owned()], is_learner: false }
}

fn urls(url: &str) -> Vec<String> {
    vec![url.to_owned()]
}

#[test]
fn a_list_vouches_for_a_member_of_this_cluster_at_its_url_only() {
    let identity = Identity {
        format: FORMAT,
        cluster_id: 7,
        member_id: 1,
        name: String::new(),
        members: Vec::new(),
        joined: false,
        forced: None,
    };
    let cases = [
        (7, vec![member(1, "a"), member(9, "x")], true),
        (8, vec![member(1, "a"), member(9, "x")], false),
        (7, vec![member(2, "a"), member(9, "x")], false),
        (7, vec![member(1, "a"), member(8, "x")], false),
        (7, vec![member(1, "a"), member(9, "y")], false),
        (7, vec![], false),
    ];
    for (cluster_id, members, wanted) in cases {
        let running = RunningCluster { cluster_id, members };
        assert_eq!(vouches(&running, &identity, 9, &urls("x")), wanted, "{running:?}");
    }
}

#[test]
fn an_introduction_ends_when_the_list_says_something_new_of_the_member() {
    // The list at the introduction, the list later, whether the member is introduced still.
    let cases = [
        (vec![], vec![], true),
        (vec![], vec![member(3, "c")], true),
        (vec![], vec![member(9, "x")], false),
        (vec![], vec![member(9, "y")], false),
        (vec![member(9, "old")], vec![member(9, "old"), member(3, "c")], true),
        (vec![member(9, "old")], vec![member(9, "x")], false),
        (vec![member(9, "old")], vec![], false),
    ];
    for (then, later, wanted) in cases {
        let mut introductions = Introductions::default();
        introductions.hold(9, urls("x"), listed(&then, 9));
        assert_eq!(introductions.urls().collect::<Vec<_>>(), [(9, urls("x"))]);
        introductions.follow(&later, |_| false);
        assert_eq!(introductions.holds(9), wanted, "{then:?} {later:?}");
        introductions.follow(&then, |id| id == 9);
        assert!(!introductions.holds(9), "a removed member");
    }
}

#[test]
fn introductions_and_questions_are_bounded() {
    let mut introductions = Introductions::default();
    let most = INTRODUCED_MAX as u64;
    (0..most).for_each(|id| introductions.hold(id, urls("x"), Vec::new()));
    introductions.hold(0, urls("y"), Vec::new());
    assert_eq!(introductions.urls().count(), INTRODUCED_MAX, "held again, not in addition");
    introductions.hold(most, urls("x"), Vec::new());
    assert_eq!(introductions.urls().count(), INTRODUCED_MAX);
    assert_eq!(
        [0, 1, 2, most].map(|id| introductions.holds(id)),
        [true, false, true, true],
        "the oldest goes"
    );
    assert!(introductions.begin(1) && !introductions.begin(1), "one question at a time");
    let others = (2..100).filter(|id| introductions.begin(*id)).count();
    assert_eq!(others + 1, ASKED_MAX);
    introductions.end(1);
    assert!(introductions.begin(1));
}
