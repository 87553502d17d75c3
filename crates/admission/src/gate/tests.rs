//! Admission order, limits and rejections.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio::time::timeout;

use super::*;

const FIRST: ClientId = ClientId::alone(1);
const SECOND: ClientId = ClientId::alone(2);

fn bounds() -> Bounds {
    Bounds {
        capacity: 10,
        reserve: 0,
        light_max: 10,
        waiting_max: 4,
        waiting_weight_max: 30,
        wait_max: Duration::from_secs(3600),
    }
}

type Entering<'a> = Pin<Box<dyn Future<Output = Result<Pass, GateFull>> + 'a>>;

fn enter(gate: &Arc<Gate>, client: ClientId, weight: u64) -> Entering<'_> {
    Box::pin(gate.enter(client, weight))
}

fn poll(entering: &mut Entering<'_>) -> Poll<Result<Pass, GateFull>> {
    pin!(entering).poll(&mut Context::from_waker(Waker::noop()))
}

#[track_caller]
fn passed(entering: &mut Entering<'_>) -> Pass {
    match poll(entering) {
        Poll::Ready(Ok(pass)) => pass,
        other => panic!("no pass: {other:?}"),
    }
}

/// Polls once, which queues the call.
#[track_caller]
fn waits(entering: &mut Entering<'_>) {
    assert!(poll(entering).is_pending(), "it has to wait");
}

#[tokio::test]
async fn a_client_leaves_room_for_others() {
    let gate = Gate::new(bounds());
    let held = passed(&mut enter(&gate, FIRST, 5));
    let mut more = enter(&gate, FIRST, 5);
    waits(&mut more);
    let other = passed(&mut enter(&gate, SECOND, 5));
    drop(other);
    waits(&mut more);
    drop(held);
    drop(passed(&mut more));
    assert_eq!(gate.gauges(), (0, 0));
}

#[tokio::test]
async fn clients_that_wait_are_served_in_turn() {
    let gate = Gate::new(bounds());
    let held = passed(&mut enter(&gate, ClientId::alone(3), 10));
    let mut of_first: Vec<_> = (0..3).map(|_| enter(&gate, FIRST, 6)).collect();
    of_first.iter_mut().for_each(waits);
    let mut of_second = enter(&gate, SECOND, 6);
    waits(&mut of_second);
    drop(held);
    let one = passed(&mut of_first[0]);
    waits(&mut of_first[1]);
    waits(&mut of_second);
    drop(one);
    let other = passed(&mut of_second);
    waits(&mut of_first[1]);
    drop(other);
    drop(passed(&mut of_first[1]));
    drop(passed(&mut of_first[2]));
    assert_eq!(gate.gauges(), (0, 0));
}

#[tokio::test]
async fn a_pass_that_does_not_fit_is_not_overtaken_and_one_beyond_the_capacity_is_held_alone() {
    let gate = Gate::new(bounds());
    let held = passed(&mut enter(&gate, FIRST, 1));
    let mut heavy = enter(&gate, SECOND, 99);
    waits(&mut heavy);
    let mut light = enter(&gate, ClientId::alone(3), 1);
    waits(&mut light);
    drop(held);
    let alone = passed(&mut heavy);
    assert_eq!(alone.weight(), 10);
    waits(&mut light);
    drop(alone);
    drop(passed(&mut light));
}

#[tokio::test]
async fn waiting_is_bounded_in_number_and_weight() {
    let gate = Gate::new(bounds());
    let held = passed(&mut enter(&gate, FIRST, 10));
    let mut heavy: Vec<_> = (2..5).map(|client| enter(&gate, ClientId::alone(client), 10)).collect();
    heavy.iter_mut().for_each(waits);
    assert!(matches!(poll(&mut enter(&gate, FIRST, 10)), Poll::Ready(Err(GateFull))), "too heavy together");
    drop(heavy);
    let mut light: Vec<_> = (2..6).map(|client| enter(&gate, ClientId::alone(client), 1)).collect();
    light.iter_mut().for_each(waits);
    assert!(matches!(poll(&mut enter(&gate, FIRST, 1)), Poll::Ready(Err(GateFull))), "too many");
    drop(held);
    light.iter_mut().for_each(|light| drop(passed(light)));
    assert_eq!(gate.gauges(), (0, 0));
}

#[tokio::test]
async fn a_caller_that_goes_away_makes_room_at_once() {
    let gate = Gate::new(bounds());
    let held = passed(&mut enter(&gate, FIRST, 6));
    let mut heavy = enter(&gate, SECOND, 10);
    waits(&mut heavy);
    let mut light = enter(&gate, ClientId::alone(3), 1);
    waits(&mut light);
    drop(heavy);
    let light = passed(&mut light);
    // A call that was granted a pass, but never polled again.
    let mut unseen = enter(&gate, SECOND, 10);
    waits(&mut unseen);
    drop((held, light));
    assert_eq!(gate.gauges(), (10, 0));
    drop(unseen);
    assert_eq!(gate.gauges(), (0, 0));
}

#[tokio::test]
async fn waiting_is_bounded_in_time() {
    let gate = Gate::new(Bounds { wait_max: Duration::from_millis(1), ..bounds() });
    let _held = passed(&mut enter(&gate, FIRST, 10));
    assert_eq!(gate.enter(SECOND, 1).await.err(), Some(GateFull));
    assert_eq!(gate.gauges(), (10, 0));
}

#[tokio::test]
async fn a_pass_grows_while_there_is_room_and_shrinks() {
    let gate = Gate::new(bounds());
    let mut one = passed(&mut enter(&gate, FIRST, 1));
    assert!(one.try_grow(8), "alone in its share");
    assert!(!one.try_grow(2), "beyond the capacity");
    let mut heavy = enter(&gate, SECOND, 5);
    waits(&mut heavy);
    one.shrink_to(5);
    let mut other = passed(&mut heavy);
    assert!(!other.try_grow(1), "nothing is left");
    drop(one);
    assert!(other.try_grow(5));
    drop(other);
    assert_eq!(gate.gauges(), (0, 0));
}

#[tokio::test]
async fn a_pass_of_more_than_all_is_a_pass_of_all_whatever_it_is_resized_to() {
    let gate = Gate::new(bounds());
    let mut one = passed(&mut enter(&gate, FIRST, 1000));
    for (weight, counted) in [(2000, 10), (7, 7), (0, 1), (1000, 10)] {
        assert!(one.try_resize(weight));
        assert_eq!(gate.gauges(), (counted, 0), "{weight}");
    }
    one.shrink_to(4);
    let other = passed(&mut enter(&gate, SECOND, 1));
    assert!(!one.try_resize(1000), "the other holds some");
    assert_eq!(one.weight(), 4);
    drop((one, other));
    assert_eq!(gate.gauges(), (0, 0));
}

/// A capacity of 20, with a reserve of 4 for passes of at most 2.
fn with_reserve() -> Bounds {
    Bounds { capacity: 20, reserve: 4, light_max: 2, waiting_weight_max: u64::MAX, ..bounds() }
}

#[tokio::test(start_paused = true)]
async fn light_passes_go_on_while_a_heavy_one_waits() {
    let gate = Gate::new(with_reserve());
    let _unread = passed(&mut enter(&gate, FIRST, 3));
    let mut everything = enter(&gate, SECOND, 99);
    waits(&mut everything);
    for client in 3..9 {
        drop(passed(&mut enter(&gate, ClientId::alone(client), 2)));
    }
    assert_eq!(gate.gauges(), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn a_heavy_pass_that_cannot_be_served_delays_other_heavy_ones_for_a_fifth_of_the_time() {
    let gate = Gate::new(with_reserve());
    let _unread = passed(&mut enter(&gate, FIRST, 3));
    let mut everything = enter(&gate, SECOND, 99);
    waits(&mut everything);
    let began = Instant::now();
    let mut served = 0;
    while began.elapsed() < Duration::from_secs(100) {
        tokio::select! {
            pass = gate.enter(ClientId::alone(3), 5) => drop(pass.unwrap()),
            _ = &mut everything => panic!("there is no room for it"),
        }
        served += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(served > 600, "served {served} of 1000 times");
}

#[tokio::test(start_paused = true)]
async fn a_heavy_pass_is_served_although_lighter_ones_never_cease() {
    let gate = Gate::new(with_reserve());
    // At least one of these six passes is always held; each is held for a second.
    for client in 1..=6 {
        let gate = Arc::clone(&gate);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(client * 150)).await;
            while let Ok(pass) = gate.enter(ClientId::alone(client), 1 + 3 * (client % 2)).await {
                tokio::time::sleep(Duration::from_secs(1)).await;
                drop(pass);
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let served = timeout(Duration::from_secs(15), gate.enter(ClientId::alone(7), 99)).await;
    assert!(matches!(served, Ok(Ok(_))), "a drain leaves no other heavy pass");
}

#[tokio::test(start_paused = true)]
async fn heavy_passes_are_served_in_turn_although_one_of_them_cannot_be() {
    let gate = Gate::new(with_reserve());
    let _unread = passed(&mut enter(&gate, FIRST, 3));
    let mut everything = enter(&gate, SECOND, 99);
    waits(&mut everything);
    // At least one of these two is always held, so a third fits only if the gate is drained for it.
    for client in 3..5 {
        let gate = Arc::clone(&gate);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(client * 400)).await;
            while let Ok(pass) = gate.enter(ClientId::alone(client), 4).await {
                tokio::time::sleep(Duration::from_secs(1)).await;
                drop(pass);
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let mut third = pin!(timeout(Duration::from_secs(25), gate.enter(ClientId::alone(5), 13)));
    tokio::select! {
        _ = &mut everything => panic!("there is no room for it"),
        served = &mut third => assert!(matches!(served, Ok(Ok(_))), "it fits next to what is not read"),
    }
}

#[tokio::test]
async fn who_can_be_served_at_once_is_not_refused_because_others_wait_for_their_share() {
    let gate = Gate::new(bounds());
    let _held = passed(&mut enter(&gate, FIRST, 6));
    let mut greedy: Vec<_> = (0..3).map(|_| enter(&gate, FIRST, 4)).collect();
    greedy.iter_mut().for_each(waits);
    // Two clients together reach the global bound.
    let held = passed(&mut enter(&gate, SECOND, 3));
    let mut fourth = enter(&gate, SECOND, 4);
    waits(&mut fourth);
    drop(passed(&mut enter(&gate, ClientId::alone(3), 1)));
    drop(held);
}

#[tokio::test]
async fn when_too_many_wait_the_client_with_the_most_is_refused() {
    let gate = Gate::new(bounds());
    let held = passed(&mut enter(&gate, ClientId::alone(9), 10));
    let mut greedy: Vec<_> = (0..3).map(|_| enter(&gate, FIRST, 1)).collect();
    greedy.iter_mut().for_each(waits);
    let mut second = enter(&gate, SECOND, 1);
    waits(&mut second);
    let mut third = enter(&gate, ClientId::alone(3), 1);
    waits(&mut third);
    assert!(
        matches!(poll(&mut greedy[2]), Poll::Ready(Err(GateFull))),
        "the newest of the client with the most"
    );
    waits(&mut greedy[0]);
    waits(&mut greedy[1]);
    // Now all clients have about the same, so the new caller is rejected.
    assert!(matches!(poll(&mut enter(&gate, SECOND, 1)), Poll::Ready(Err(GateFull))));
    drop(held);
    drop((passed(&mut greedy[0]), passed(&mut greedy[1]), passed(&mut second), passed(&mut third)));
}

#[tokio::test]
async fn when_too_much_weight_waits_the_client_with_the_most_is_refused() {
    let gate = Gate::new(Bounds { waiting_max: 40, ..bounds() });
    let _held = passed(&mut enter(&gate, ClientId::alone(9), 10));
    let mut greedy: Vec<_> = (0..5).map(|_| enter(&gate, FIRST, 4)).collect();
    greedy.iter_mut().for_each(waits);
    let mut second = enter(&gate, SECOND, 10);
    waits(&mut second);
    let mut third = enter(&gate, ClientId::alone(3), 6);
    waits(&mut third);
    let refused = greedy.iter_mut().filter_map(|entering| match poll(entering) {
        Poll::Ready(Err(GateFull)) => Some(()),
        _ => None,
    });
    assert_eq!(refused.count(), 2, "room for six is made by two of four");
    waits(&mut second);
}

#[tokio::test]
async fn one_client_cannot_use_up_what_may_wait() {
    let gate = Gate::new(bounds());
    let _held = passed(&mut enter(&gate, ClientId::alone(9), 10));
    let mut greedy: Vec<_> = (0..3).map(|_| enter(&gate, FIRST, 1)).collect();
    greedy.iter_mut().for_each(waits);
    assert!(matches!(poll(&mut enter(&gate, FIRST, 1)), Poll::Ready(Err(GateFull))), "three quarters");
    waits(&mut enter(&gate, SECOND, 1));
}

#[tokio::test]
async fn what_memory_does_not_allow_waits_and_a_client_that_has_something_is_refused() {
    const MIB: u64 = 1 << 20;
    let limit = Arc::new(MemoryLimit::new(Some(160 * MIB)));
    limit.note(100 * MIB);
    let gate = Gate::of_memory(
        Bounds { capacity: 1 << 30, light_max: 1 << 30, waiting_weight_max: 1 << 40, ..bounds() },
        &limit,
    );
    let mut held = passed(&mut enter(&gate, FIRST, 36 * MIB));
    assert!(limit.is_short() && !held.try_grow(8 * MIB) && held.try_grow(MIB));
    assert!(matches!(poll(&mut enter(&gate, FIRST, 4 * MIB)), Poll::Ready(Err(GateFull))), "it has some");
    let mut other = enter(&gate, SECOND, 8 * MIB);
    waits(&mut other);
    assert!(matches!(poll(&mut enter(&gate, SECOND, MIB)), Poll::Ready(Err(GateFull))), "it waits already");
    limit.note(136 * MIB);
    gate.look_again();
    waits(&mut other);
    drop(held);
    waits(&mut other); // released memory is noticed with the next sample
    limit.note(110 * MIB);
    limit.note(110 * MIB);
    gate.look_again();
    drop(passed(&mut other));
    assert_eq!(limit.refused(), 3);
}

#[tokio::test]
async fn a_caller_with_many_connections_delays_another_by_one_pass_and_its_waiters_are_refused_first() {
    let gate = Gate::new(Bounds {
        capacity: 8,
        light_max: 8,
        waiting_max: 100,
        waiting_weight_max: 1000,
        ..bounds()
    });
    let of = |caller, connection| ClientId { caller, connection };
    let mut held: Vec<Pass> = (0..7).filter_map(|connection| gate.try_enter(of(1, connection), 1)).collect();
    assert_eq!(held.len(), 6, "three quarters");
    held.extend((2..4).map(|caller| gate.try_enter(ClientId::alone(caller), 1).unwrap()));
    let mut hoard: Vec<_> = (100..200).map(|connection| enter(&gate, of(1, connection), 1)).collect();
    hoard.iter_mut().for_each(waits);
    let mut other = enter(&gate, ClientId::alone(9), 1);
    waits(&mut other);
    assert!(matches!(poll(&mut enter(&gate, of(1, 300), 1)), Poll::Ready(Err(GateFull))));
    let refused = hoard.iter_mut().filter_map(|entering| match poll(entering) {
        Poll::Ready(outcome) => Some(outcome.is_err()),
        Poll::Pending => None,
    });
    assert_eq!(refused.collect::<Vec<_>>(), [true]);
    held.drain(..2);
    drop(passed(&mut other));
}

#[tokio::test(start_paused = true)]
async fn a_caller_leaves_heavy_and_light_passes_to_others_on_any_number_of_connections() {
    let gate =
        Gate::new(Bounds { capacity: 40, reserve: 8, light_max: 2, waiting_max: 4000, ..with_reserve() });
    let of = |caller, connection| ClientId { caller, connection };
    let take = |caller, connection, weight| gate.try_enter(of(caller, connection), weight);
    let mut heavy: Vec<Pass> = (0..1000).filter_map(|connection| take(1, connection, 4)).collect();
    let light: Vec<Pass> = (0..1000).filter_map(|connection| take(1, connection, 1)).collect();
    assert_eq!((heavy.len(), light.len()), (6, 6), "three quarters");
    assert!(take(1, 2000, 8).is_none(), "a large one has no share in addition");
    let other = (take(2, 3000, 8), take(2, 3001, 2));
    assert!(other.0.is_some() && other.1.is_some());
    drop((other, light));
    // It waits for capacity, but not until its caller holds none.
    let mut large = enter(&gate, of(1, 2000), 16);
    waits(&mut large);
    heavy.truncate(4);
    waits(&mut large);
    heavy.truncate(2);
    drop(passed(&mut large));
}

#[tokio::test(start_paused = true)]
async fn a_caller_reads_everything_on_one_connection_and_little_on_others() {
    let gate = Gate::new(Bounds { reserve: 8, ..with_reserve() });
    let of = |caller, connection| ClientId { caller, connection };
    let mut light: Vec<Pass> = (0..5).map(|number| gate.try_enter(of(1, number), 2).unwrap()).collect();
    let mut everything = enter(&gate, of(1, 10), 99);
    waits(&mut everything);
    light.truncate(4);
    waits(&mut everything);
    assert!(gate.try_enter(of(1, 11), 2).is_none(), "of the reserve some is left to others");
    light.truncate(3);
    let everything = passed(&mut everything);
    assert!(gate.try_enter(of(1, 11), 2).is_none());
    light.truncate(2);
    assert!(gate.try_enter(of(1, 11), 2).is_some());
    assert!(gate.try_enter(of(2, 12), 2).is_some());
    drop(everything);
}

#[tokio::test]
async fn a_release_looks_at_few_of_many_that_wait_for_their_share() {
    let many = Bounds { waiting_max: usize::MAX, waiting_weight_max: u64::MAX, ..bounds() };
    let with_reserve = Bounds { reserve: 2, light_max: 1, ..many };
    for (bounds, weight) in [(many, 1), (with_reserve, 1), (with_reserve, 2)] {
        // One connection; connections of one caller; many callers, one of which holds a lot.
        for of in [
            |number| ClientId { caller: 1, connection: number % 8 },
            |number| ClientId { caller: 1, connection: number },
            |number| ClientId { caller: number % 100, connection: number },
        ] {
            let gate = Gate::new(Bounds { capacity: 100, ..bounds });
            let mut held: Vec<_> = (0..100).filter_map(|number| gate.try_enter(of(number), weight)).collect();
            let mut waiting: Vec<_> = (0..10_000).map(|number| enter(&gate, of(number), weight)).collect();
            used::LOOKS.set(0);
            waiting.iter_mut().for_each(|entering| drop(poll(entering)));
            let (queued, releases) = (used::LOOKS.replace(0), held.len() as u64);
            held.clear();
            let released = used::LOOKS.get();
            assert!(queued <= 6 * 10_000 && released <= 6 * releases, "{queued}, {released} for {releases}");
        }
    }
}
