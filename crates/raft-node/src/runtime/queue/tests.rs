use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake};

use super::*;

/// Counts its wake-ups.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn everything_is_taken_at_once_and_in_order() {
    let queue = InputQueue::new();
    queue.put_all(vec![0, 1]);
    queue.put(2).unwrap();
    let mut taken = Vec::new();
    assert_eq!(queue.take(&mut taken), QueueStatus::Open);
    assert_eq!(taken, [0, 1, 2]);
}

#[test]
fn a_closed_queue_gives_back_and_still_empties() {
    let queue = InputQueue::new();
    queue.put("kept").unwrap();
    queue.close();
    assert_eq!((queue.put("late"), queue.put_quietly("late")), (Err("late"), Err("late")));
    queue.put_all(vec!["late"]);
    let mut taken = Vec::new();
    assert_eq!(queue.wait_and_take(&mut taken), QueueStatus::Closed);
    assert_eq!(taken, ["kept"]);
}

/// Action of a sender, and whether the owner's wait returns.
type QueueCase = (fn(&InputQueue<u8>), bool);

#[test]
fn a_waiting_task_is_woken_once_and_only_for_cause() {
    let cases: [QueueCase; 8] = [
        (|queue| queue.put(1).unwrap(), true),
        (|queue| (1..9).for_each(|i| queue.put(i).unwrap()), true),
        (|queue| queue.put_all(vec![1, 2]), true),
        (|queue| queue.put_all(Vec::new()), false),
        (|queue| queue.put_quietly(1).unwrap(), false),
        (
            |queue| {
                queue.put_quietly(1).unwrap();
                queue.wake();
            },
            true,
        ),
        (|queue| queue.nudge(), true),
        (|queue| queue.close(), true),
    ];
    for (case, (sending, ends)) in cases.into_iter().enumerate() {
        let (queue, woken) = (InputQueue::new(), Arc::new(Woken::default()));
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        assert!(queue.poll_filled(&mut context).is_pending(), "{case}");
        sending(&queue);
        assert_eq!(woken.0.load(Ordering::Relaxed), usize::from(ends), "{case}");
        assert!(!ends || queue.poll_filled(&mut context).is_ready(), "{case}");
    }
}

#[test]
fn a_nudge_ends_one_wait() {
    let queue = InputQueue::<u8>::new();
    let mut context = Context::from_waker(Waker::noop());
    queue.nudge();
    assert!(queue.poll_filled(&mut context).is_ready());
    assert!(queue.poll_filled(&mut context).is_pending());
}

#[test]
fn a_sleeping_thread_is_woken_by_an_item_and_by_closing() {
    let queue = Arc::new(InputQueue::new());
    let owner = queue.clone();
    let thread = std::thread::spawn(move || {
        let (mut taken, mut total) = (Vec::new(), 0);
        while owner.wait_and_take(&mut taken) == QueueStatus::Open {
            total += taken.drain(..).sum::<i32>();
        }
        total + taken.drain(..).sum::<i32>()
    });
    (1..=100).for_each(|i| queue.put_all(vec![i]));
    queue.close();
    assert_eq!(thread.join().unwrap(), 5050);
}

#[test]
fn a_full_inbox_refuses_and_returns_the_command() {
    let occupancy = Arc::new(Occupancy::default());
    let big = occupancy.admit(5_000, 2, 100).expect("one alone is always admitted");
    assert!(occupancy.admit(1, 2, 100).is_none(), "too many bytes");
    drop(big);
    let kept: Vec<_> = (0..2).map(|_| occupancy.admit(1, 2, 100).unwrap()).collect();
    assert!(occupancy.admit(1, 2, 100).is_none(), "too many");
    assert_eq!(occupancy.count(), 2);
    drop(kept);
    assert_eq!((occupancy.count(), occupancy.bytes.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn a_member_is_let_in_while_its_clients_fill_their_bounds() {
    let limits =
        RaftLimits { proposals_max: 2, reads_max: 1, unapplied_entries_max: 10, ..RaftLimits::default() };
    let entrance = Entrance::new(&limits);
    let (client, member) = (RequestOrigin::Client, RequestOrigin::Member);
    let _proposed: Vec<_> = (0..2).map(|_| entrance.propose(client, 9, 0).unwrap()).collect();
    let _reading = entrance.read(client).unwrap();
    assert!(entrance.propose(client, 9, 0).is_err() && entrance.read(client).is_err());
    let own: Vec<_> = (0..2 * OWN_REQUESTS_MAX).map_while(|_| entrance.propose(member, 9, 20).ok()).collect();
    assert_eq!(own.len(), OWN_REQUESTS_MAX);
    assert!(entrance.read(member).is_ok());
    assert_eq!(entrance.proposals_pending(), 2 + own.len());
    drop(own);
    assert!(entrance.propose(member, 9, 21).is_err(), "too far from applied");
}

#[test]
fn small_messages_pass_a_full_inbox_up_to_twice_its_bound_and_those_of_snapshots_always() {
    let entrance = Entrance::new(&RaftLimits { inbox_bytes_max: 4096, ..RaftLimits::default() });
    let (large, small) = ([0; 3000], [0; 400]);
    assert!(entrance.receive(&large) && entrance.receive(&large), "the first one left room");
    assert!(!entrance.receive(&large));
    let passed = (0..100).take_while(|_| entrance.receive(&small)).count();
    assert!((1..=8).contains(&passed), "{passed} small ones");
    let snapshot = [1, 7];
    assert!(is_snapshot(&snapshot) && entrance.receive(&snapshot));
    (0..2).for_each(|_| entrance.took(&large));
    (0..passed).for_each(|_| entrance.took(&small));
    entrance.took(&snapshot);
    assert_eq!(entrance.inbox_bytes.load(Ordering::Relaxed), 0);
}

fn waiter(occupancy: &Arc<Occupancy>) -> (ProposeReply<u32>, oneshot::Receiver<Result<u32, ProposeError>>) {
    let (to, from) = oneshot::channel();
    (PendingReply { to, permit: occupancy.admit(10, 100, 1000).unwrap() }, from)
}

#[tokio::test]
async fn one_answer_goes_straight_and_many_through_the_pump() {
    let occupancy = Arc::new(Occupancy::default());
    let (replies, pump) = replies();
    let (first, told_first) = waiter(&occupancy);
    replies.complete(vec![Completion::Proposal(first, Ok(1))]);
    assert_eq!(told_first.await, Ok(Ok(1)));

    let (mut receivers, mut completions) = (Vec::new(), Vec::new());
    for i in 0..3 {
        let (reply, from) = waiter(&occupancy);
        completions.push(Completion::Proposal(reply, Ok(i)));
        receivers.push(from);
    }
    replies.complete(completions);
    assert_eq!(occupancy.count(), 3, "still waiting: the pump does not run yet");
    drop(replies);
    pump.run().await;
    for (i, from) in (0..).zip(receivers) {
        assert_eq!(from.await, Ok(Ok(i)));
    }
    assert_eq!(occupancy.count(), 0);
}

/// Records the number of permits when a waiter is woken.
struct CountAtWake {
    occupancy: Arc<Occupancy>,
    count: AtomicUsize,
}

impl Wake for CountAtWake {
    fn wake(self: Arc<Self>) {
        self.count.store(self.occupancy.count(), Ordering::Relaxed);
    }
}

#[test]
fn a_waiter_that_is_woken_finds_its_permit_given_back() {
    let finish: [fn(ProposeReply<u32>); 2] = [|reply| reply.complete(Ok(1)), drop];
    for finish in finish {
        let occupancy = Arc::new(Occupancy::default());
        let (reply, answer) = waiter(&occupancy);
        let at_wake =
            Arc::new(CountAtWake { occupancy: occupancy.clone(), count: AtomicUsize::new(usize::MAX) });
        let mut answer = pin!(answer);
        assert!(answer.as_mut().poll(&mut Context::from_waker(&at_wake.clone().into())).is_pending());
        finish(reply);
        assert_eq!(at_wake.count.load(Ordering::Relaxed), 0);
    }
}

#[tokio::test]
async fn answers_are_given_even_when_the_pump_is_gone() {
    let occupancy = Arc::new(Occupancy::default());
    let (replies, pump) = replies();
    drop(pump);
    let ((a, told_a), (b, told_b)) = (waiter(&occupancy), waiter(&occupancy));
    drop(told_a);
    replies
        .complete(vec![Completion::Proposal(a, Ok(1)), Completion::Proposal(b, Err(ProposeError::Stopped))]);
    assert_eq!(told_b.await, Ok(Err(ProposeError::Stopped)));
    assert_eq!(occupancy.count(), 0);
}
