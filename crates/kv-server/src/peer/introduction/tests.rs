use super::*;
use data_dir::FORMAT;

fn member(id: u64, url: &str) -> FirstMember {
    FirstMember { id, name: String::new(), peer_urls: vec![url.to_owned()], is_learner: false }
}

fn urls(url: &str) -> Vec<String> {
    vec![url.to_owned()]
}

#[test]
fn a_list_vouches_for_a_member_of_this_cluster_wherever_it_has_it() {
    let identity = Identity { format: FORMAT, cluster_id: 7, member_id: 1, ..Identity::default() };
    let cases = [
        (7, vec![member(1, "a"), member(9, "x")], true),
        (8, vec![member(1, "a"), member(9, "x")], false),
        (7, vec![member(2, "a"), member(9, "x")], false),
        (7, vec![member(1, "a"), member(8, "x")], false),
        (7, vec![member(1, "a"), member(9, "y")], true),
        (7, vec![], false),
    ];
    for (cluster_id, members, wanted) in cases {
        let running = RunningCluster { cluster_id, members, level: state_machine::CommandLevel(0) };
        assert_eq!(vouches(&running, &identity, 9), wanted, "{running:?}");
    }
}

#[test]
fn an_introduction_ends_when_the_list_has_the_address_or_no_longer_the_member() {
    // Configuration at the introduction, later configuration, whether the introduction remains.
    let cases = [
        (vec![], vec![], true),
        (vec![], vec![member(3, "c")], true),
        (vec![], vec![member(9, "x")], false),
        (vec![], vec![member(9, "y")], true),
        (vec![member(9, "old")], vec![member(9, "old"), member(3, "c")], true),
        (vec![member(9, "old")], vec![member(9, "new")], true),
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
fn introductions_are_bounded() {
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
}

#[test]
fn a_claim_is_asked_only_within_its_bounds_and_only_inside_tls_if_this_member_is() {
    let long = format!("https://{}", "a".repeat(URLS_BYTES_MAX));
    let many = |count| vec!["https://a"; count].join(",");
    // Claim, whether this member uses TLS, the number of URLs to dial.
    let cases = [
        ("http://a:1".to_owned(), false, Some(1)),
        ("http://a:1,https://b:1".to_owned(), false, Some(2)),
        ("https://a:1".to_owned(), true, Some(1)),
        ("http://a:1".to_owned(), true, None),
        ("https://a:1,http://b:1".to_owned(), true, None),
        ("unix:///a".to_owned(), false, None),
        ("a:1".to_owned(), false, None),
        (String::new(), false, None),
        ("http://a:1,".to_owned(), false, None),
        (many(URLS_MAX), true, Some(URLS_MAX)),
        (many(URLS_MAX + 1), true, None),
        (long[..URLS_BYTES_MAX].to_owned(), true, Some(1)),
        (long[..=URLS_BYTES_MAX].to_owned(), true, None),
        (",".repeat(1 << 20), false, None),
    ];
    for (claim, is_inside, wanted) in cases {
        let own = urls(if is_inside { "https://own:1" } else { "http://own:1" });
        let urls = claimed(&claim, &own);
        assert_eq!(urls.as_ref().map(Vec::len), wanted, "{urls:?}");
        assert!(urls.is_none_or(|urls| urls.join(",") == claim));
    }
}

#[test]
fn a_hello_says_where_a_member_listens_by_its_list_and_by_its_flags() {
    let text = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>();
    let many: Vec<String> = (0..URLS_MAX).map(|port| format!("http://a:{port}")).collect();
    for (own, advertised, wanted) in [
        (text(&["http://a:1"]), text(&["http://a:1"]), "http://a:1".to_owned()),
        (text(&["http://new:1"]), text(&["http://a:1"]), "http://new:1,http://a:1".to_owned()),
        (text(&["https://new:1"]), text(&["http://a:1"]), "https://new:1".to_owned()),
        (text(&["http://new:1"]), text(&["unix://a:1"]), "http://new:1".to_owned()),
        (many.clone(), text(&["http://b:1"]), many.join(",")),
    ] {
        let said = claim(&own, &advertised);
        assert_eq!(said, wanted);
        assert!(claimed(&said, &own).is_some());
    }
}
