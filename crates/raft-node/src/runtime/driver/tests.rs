use super::*;

const TICK: Duration = Duration::from_millis(100);

/// Returns the ticks delivered at each of these times, in tenths of a tick after the start.
fn ticks_at(tenths: &[u32]) -> Vec<u32> {
    let start = Instant::now();
    let mut clock = TickClock::new(TICK, start);
    tenths.iter().map(|tenth| clock.due(start + TICK * *tenth / 10, false).0).collect()
}

#[test]
fn ticks_come_when_they_are_due() {
    assert_eq!(ticks_at(&[0, 9, 10, 11, 19, 20]), [0, 0, 1, 0, 0, 1]);
}

#[test]
fn a_late_turn_does_not_shift_the_rhythm() {
    assert_eq!(ticks_at(&[14, 20, 30]), [1, 1, 1]);
}

#[test]
fn a_long_pause_is_not_held_against_the_leader() {
    assert_eq!(ticks_at(&[25]), [2]);
    // A hundred ticks were missed: two are delivered, and the next comes a whole tick later.
    assert_eq!(ticks_at(&[1000, 1005, 1010]), [2, 0, 1]);
}

#[test]
fn a_follower_is_woken_for_a_tick_after_the_heartbeat_that_comes_with_it() {
    let start = Instant::now();
    let mut clock = TickClock::new(TICK, start);
    assert_eq!(clock.wake_at(false) - start, TICK);
    assert_eq!(clock.wake_at(true) - start, TICK * 3 / 2);
    // Ticks that come this late keep their schedule.
    assert_eq!([1, 2, 3].map(|ticks| clock.due(start + TICK * ticks + TICK / 2, false).0), [1, 1, 1]);
    assert_eq!(clock.wake_at(false) - start, TICK * 4);
}

/// Phase of the heartbeats between two ticks of the follower, in tenths.
#[test]
fn each_heartbeat_brings_a_tick_and_no_alarm_rings_between_two() {
    for phase in 0..10 {
        let start = Instant::now();
        let mut clock = TickClock::new(TICK, start);
        let heartbeat = |count: u32| start + TICK * count + TICK * phase / 10;
        clock.due(heartbeat(1), true);
        for count in 2..20 {
            assert!(clock.wake_at(true) >= heartbeat(count), "phase {phase}: woken before heartbeat {count}");
            assert_eq!(clock.due(heartbeat(count), true).0, 1, "phase {phase}");
        }
        // When the leader is silent, ticks come as if none had been early.
        let next = clock.next;
        assert_eq!((next - start).as_nanos() % TICK.as_nanos(), 0);
        assert_eq!(clock.wake_at(true), next + TICK / 2);
    }
}

#[test]
fn lateness_is_told() {
    let start = Instant::now();
    let mut clock = TickClock::new(TICK, start);
    assert_eq!(clock.due(start + TICK, false).1, Duration::ZERO);
    assert_eq!(clock.due(start + TICK * 5, false).1, TICK * 3);
}

#[test]
fn others_go_first_while_they_bring_something() {
    let mut deferral = Deferral::default();
    let due: Vec<bool> = (0..20)
        .map(|_| {
            let is_due = deferral.is_due(1);
            deferral.note(false);
            is_due
        })
        .collect();
    let tried: Vec<usize> = (0..20).filter(|turn| due[*turn]).collect();
    assert_eq!(tried, [0, 1, 2, 3, 4, 5, 6, 7, 8, 16], "seldom, where it brings nothing");
    assert!(!deferral.is_due(1) && deferral.is_due(2), "several inputs at once are a sign of more");
    deferral.note(true);
    assert!(deferral.is_due(1));
}
