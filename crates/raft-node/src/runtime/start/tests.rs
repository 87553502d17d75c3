use super::*;
use crate::{ChangeCheck, EmptyLog, StoreState};

#[test]
fn times_become_ticks_rounded_up() {
    let tick = Duration::from_millis(100);
    let cases = [(0, 1), (1, 1), (100, 1), (101, 2), (7000, 70)];
    for (milliseconds, expected) in cases {
        assert_eq!(ticks(Duration::from_millis(milliseconds), tick), expected, "{milliseconds} ms");
    }
}

#[test]
fn a_panic_is_reported_in_its_own_words() {
    let words = |f: fn()| Fatal::panicked("it", &*catch_unwind(f).unwrap_err()).what;
    assert_eq!(words(|| panic!("plain")), "it panicked: plain");
    assert_eq!(words(|| panic!("number {}", 7)), "it panicked: number 7");
    assert_eq!(words(|| std::panic::panic_any(7)), "it panicked: without words");
}

#[test]
fn no_two_voters_draw_their_election_timeouts_from_the_same_ticks() {
    let config = |id, voters: &[u64], election_ticks| Config {
        id,
        voters: voters.to_vec(),
        membership: None,
        boot_nonce: 1,
        tick: Duration::from_millis(1),
        heartbeat_ticks: 1,
        election_ticks,
        catch_up_entries: 0,
        store: StoreState::Whole,
        empty_log: EmptyLog::New,
        removed_by: |_| None,
        keeps_voters: |_, _| false,
        change_check: ChangeCheck::default(),
        limits: crate::RaftLimits::default(),
    };
    for (voters, ticks) in [(&[7, 3, 5][..], 10), (&[1], 10), (&[1, 2, 3, 4, 5], 10), (&[1, 2, 3], 50_000)] {
        let mut shares: Vec<_> = voters.iter().map(|id| own_share(&config(*id, voters, ticks))).collect();
        shares.sort_by_key(|share| share.start);
        assert_eq!((shares[0].start, shares[shares.len() - 1].end), (ticks, 2 * ticks));
        assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start), "{shares:?}");
        assert!(shares.iter().all(|share| !share.is_empty()), "{shares:?}");
    }
    // Five voters cannot share three ticks.
    assert_eq!(own_share(&config(1, &[1, 2, 3, 4, 5], 3)), 3..6);
}
