//! The times of requests: assigns send slots until the total is reached.
//!
//! * Closed loop: a caller takes its next slot when its previous request is complete; with a rate, slots are
//!   spaced by a shared token bucket of size one, and waiting for it is not part of the measured time.
//! * Open loop: slot i is due at `start + i / rate` even if the server stalls, and its latency counts from
//!   then.
//!
//! Independent of requests, connections and results. Time is an argument.

use crate::stats::progress::WaitingCalls;
use bench_report::model::Pace;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Send slots of a run, shared by all workers.
#[derive(Debug)]
pub struct Schedule {
    total: u64,
    taken: AtomicU64,
    pace: Pace,
    start: Instant,
    /// Time limit, after which no slots are assigned.
    until: Option<Instant>,
    /// Nanoseconds after `start` at which the bucket contains a token again.
    token_at: AtomicU64,
}

/// The right to send a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SendSlot {
    /// 0, 1, 2, … without gaps over all workers.
    pub position: u64,
    /// Earliest send time; `None` means immediately.
    pub due: Option<Instant>,
    /// Latency counts from `due` instead of the send time.
    pub from_due: bool,
}

/// Returns the due time of a position in an open loop, since the start.
fn when(pace: Pace, position: u64) -> Duration {
    match pace {
        Pace::Open(per_second) => Duration::from_secs_f64(position as f64 / per_second),
        Pace::Unlimited | Pace::AtMost(_) => Duration::ZERO,
    }
}

impl SendSlot {
    /// Returns the start of the latency, for a caller that could send at `since`.
    pub fn counts_from(&self, since: Instant) -> Instant {
        self.due.filter(|_| self.from_due).unwrap_or(since)
    }
}

impl Schedule {
    /// Creates a schedule; an open loop counts from `start`.
    pub fn new(total: u64, pace: Pace, start: Instant) -> Self {
        Self { total, taken: AtomicU64::new(0), pace, start, until: None, token_at: AtomicU64::new(0) }
    }

    /// Sets a time limit.
    pub fn until(self, until: Option<Instant>) -> Self {
        Self { until, ..self }
    }

    /// Assigns no more turns.
    pub fn close(&self) {
        self.taken.store(self.total, Relaxed);
    }

    /// Reports whether the time limit has passed.
    pub fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// Takes the next slot; `None` when all were taken.
    pub fn take(&self, now: Instant) -> Option<SendSlot> {
        // Checked first, so that idle callers do not increment the counter.
        if self.taken.load(Relaxed) >= self.total || self.is_over(now) {
            return None;
        }
        let position = self.taken.fetch_add(1, Relaxed);
        if position >= self.total {
            return None;
        }
        let (due, from_due) = match self.pace {
            Pace::Unlimited => (None, false),
            Pace::AtMost(per_second) => (self.reserve_token(per_second, now), false),
            Pace::Open(_) => (Some(self.start + when(self.pace, position)), true),
        };
        // A slot after the time limit would delay its caller, and the run.
        let in_time = due.zip(self.until).is_none_or(|(due, until)| due < until);
        in_time.then_some(SendSlot { position, due, from_due })
    }

    /// Reports whether the time limit passed at least `patience` ago.
    pub fn is_over_since(&self, now: Instant, patience: Duration) -> bool {
        self.until.is_some_and(|until| now >= until + patience)
    }

    /// Iterates over the due positions of an open loop that were not taken when the run stopped: position,
    /// due time since the start, and wait. No slots become due after the time limit, but earlier ones
    /// continue to wait while the run awaits replies.
    pub fn unsent(&self, ended: Instant) -> impl Iterator<Item = (u64, Duration, Duration)> {
        let end = self.until.map_or(ended, |until| until.min(ended));
        let passed = end.saturating_duration_since(self.start);
        let ended = ended.saturating_duration_since(self.start);
        let due = match self.pace {
            Pace::Open(per_second) => (passed.as_secs_f64() * per_second).ceil() as u64,
            Pace::Unlimited | Pace::AtMost(_) => 0,
        };
        let (from, to) = (self.taken.load(Relaxed), due.min(self.total));
        let pace = self.pace;
        (from..to).map(move |position| {
            let due = when(pace, position);
            (position, due, ended.saturating_sub(due))
        })
    }

    /// Returns the due requests of an open loop that no caller has taken.
    pub fn overdue(&self, now: Instant) -> WaitingCalls {
        let mut unsent = self.unsent(now);
        let overdue = unsent.size_hint().0 as u64;
        WaitingCalls { overdue, oldest: unsent.next().map(|(_, due, _)| due), ..WaitingCalls::default() }
    }

    /// Takes the current token, or the next one that is not reserved.
    fn reserve_token(&self, per_second: f64, now: Instant) -> Option<Instant> {
        let interval_ns = (1e9 / per_second) as u64;
        let now_ns = now.saturating_duration_since(self.start).as_nanos() as u64;
        // Unused tokens beyond the first are lost: the bucket size is one.
        let next = |token_at: u64| Some(token_at.max(now_ns) + interval_ns);
        let token_at = self.token_at.fetch_update(Relaxed, Relaxed, next).expect("next is never None");
        (token_at > now_ns).then(|| self.start + Duration::from_nanos(token_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(start: Instant, turn: SendSlot) -> Option<u128> {
        turn.due.map(|due| (due - start).as_millis())
    }

    #[test]
    fn turns_are_numbered_without_gaps_and_end_at_the_total() {
        let start = Instant::now();
        let schedule = Schedule::new(3, Pace::Unlimited, start);
        let positions: Vec<_> =
            std::iter::from_fn(|| schedule.take(start)).map(|turn| turn.position).collect();
        assert_eq!(positions, [0, 1, 2]);
        assert_eq!(schedule.take(start), None);
    }

    #[test]
    fn a_limited_rate_spaces_turns_evenly_and_starts_at_once() {
        let start = Instant::now();
        let schedule = Schedule::new(4, Pace::AtMost(100.0), start);
        let dues: Vec<_> =
            std::iter::from_fn(|| schedule.take(start)).map(|turn| millis(start, turn)).collect();
        assert_eq!(dues, [None, Some(10), Some(20), Some(30)]);
    }

    #[test]
    fn unused_tokens_do_not_accumulate() {
        let start = Instant::now();
        let schedule = Schedule::new(10, Pace::AtMost(100.0), start);
        let late = start + Duration::from_secs(5);
        let dues: Vec<_> = (0..3).map(|_| millis(start, schedule.take(late).expect("ten turns"))).collect();
        assert_eq!(dues, [None, Some(5010), Some(5020)]);
    }

    #[test]
    fn turns_of_an_open_loop_are_due_by_the_clock_and_not_by_replies() {
        let start = Instant::now();
        let schedule = Schedule::new(10, Pace::Open(1000.0), start);
        let late = start + Duration::from_secs(5);
        for position in 0..5 {
            let turn = schedule.take(late).expect("ten turns");
            assert_eq!(turn.due, Some(start + Duration::from_millis(position)));
            assert!(turn.from_due);
        }
    }

    #[test]
    fn a_schedule_ends_at_its_time_limit_even_if_turns_are_left() {
        let start = Instant::now();
        let until = start + Duration::from_secs(1);
        let schedule = Schedule::new(10, Pace::Unlimited, start).until(Some(until));
        assert!(schedule.take(start).is_some());
        assert_eq!(schedule.take(until), None);
    }

    #[test]
    fn no_turn_is_due_after_the_time_limit() {
        let start = Instant::now();
        for pace in [Pace::Open(10.0), Pace::AtMost(10.0)] {
            let schedule = Schedule::new(10, pace, start).until(Some(start + Duration::from_millis(250)));
            let taken = std::iter::from_fn(|| schedule.take(start)).count();
            assert_eq!(taken, 3, "{pace:?}");
        }
    }

    #[test]
    fn turns_that_were_due_and_not_taken_have_waited_until_the_end() {
        let start = Instant::now();
        let waits = |pace, until: Option<u64>, taken| {
            let until = until.map(|millis| start + Duration::from_millis(millis));
            let schedule = Schedule::new(10, pace, start).until(until);
            (0..taken).for_each(|_| assert!(schedule.take(start).is_some()));
            let unsent = schedule.unsent(start + Duration::from_millis(450));
            unsent.map(|(_, _, wait)| wait.as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(waits(Pace::Open(10.0), None, 2), [250, 150, 50]);
        // No further slots are due after the time limit, but waits grow while replies are missing.
        assert_eq!(waits(Pace::Open(10.0), Some(250), 1), [350, 250]);
        assert_eq!(waits(Pace::Open(10.0), None, 7), [0; 0]);
        assert_eq!(waits(Pace::Open(1000.0), None, 9), [441]);
        assert_eq!(waits(Pace::AtMost(10.0), None, 2), [0; 0]);
    }

    #[test]
    fn threads_share_one_rate() {
        let start = Instant::now();
        let schedule = Schedule::new(400, Pace::AtMost(1000.0), start);
        let mut dues: Vec<u128> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let turns = std::iter::from_fn(|| schedule.take(start));
                        turns.map(|turn| millis(start, turn).unwrap_or(0)).collect::<Vec<_>>()
                    })
                })
                .collect();
            workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
        });
        dues.sort_unstable();
        assert_eq!(dues, (0..400).collect::<Vec<_>>());
    }
}
