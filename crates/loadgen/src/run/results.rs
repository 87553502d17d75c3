//! Results of a run: results of its threads, merged by role and kind.

use crate::run::recorder::{Tally, UnansweredCalls};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// A shorter wait is a slow request.
const STALL_MIN: Duration = Duration::from_millis(500);
/// Minimum share of waiting callers; a stall of fewer concerns single requests.
const STALLED_MIN: f64 = 0.1;
/// Minimum ratio of the time share of slow requests to their share of all requests; below it, percentiles
/// show them.
const UNDERSTATED_MIN: f64 = 10.0;
/// Multiple of the median latency from which a call is slow.
const SLOW_FACTOR: u64 = 10;
/// Title of the puts whose events are measured.
pub const PUTS: &str = "Put summary:";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Loads,
    Watches,
}

/// Tallies of a thread by kind, and the time of its last result.
pub type ThreadTallies = (Vec<Tally>, Instant);

/// Result of a thread, and its CPU share while it ran.
pub type ThreadEnded = (ThreadTallies, f64);

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Measurement {
    pub tally: Tally,
    /// Time from the common start to the last response.
    pub wall: Duration,
    /// CPU time of this process during the run, user and kernel.
    pub client_cpu: Duration,
    pub threads: usize,
    /// CPU share of the busiest worker thread: at 1 it was the bottleneck, even if the remaining ones were
    /// idle.
    pub busiest_thread: f64,
    /// Intended requests per second, if the run had a pace.
    pub intended_per_second: Option<f64>,
    pub clients: usize,
    pub conns: usize,
    /// True if callers waited for a reply before the next request.
    pub closed_loop: bool,
    /// Bytes of all connections, including HTTP/2 framing.
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub planned: u64,
    /// True if [`super::Run::seconds_max`] stopped it before its total.
    pub capped: bool,
    /// Reason if the run stopped before its total.
    pub partial: Option<String>,
    /// True if events were measured instead of requests.
    pub events: bool,
    pub parts: Vec<KindResults>,
}

#[derive(Clone, Debug)]
pub struct KindResults {
    /// Heading of its report.
    pub title: String,
    pub tally: Tally,
    pub wall: Duration,
}

impl KindResults {
    /// Returns the measured kind, without its count.
    pub fn kind(&self) -> &str {
        let title = self.title.lines().next().unwrap_or_default().trim_end_matches(':');
        title.strip_prefix("Total ").and_then(|kind| kind.split(" Ops").next()).unwrap_or(title)
    }
}

pub struct MergedResults {
    pub tallies: Vec<Tally>,
    pub end: Instant,
}

impl MergedResults {
    pub fn new(start: Instant) -> Self {
        Self { tallies: Vec::new(), end: start }
    }

    pub fn add(&mut self, (tallies, end): ThreadTallies) {
        self.tallies.resize_with(self.tallies.len().max(tallies.len()), Tally::new);
        self.tallies.iter_mut().zip(&tallies).for_each(|(whole, part)| whole.merge(part));
        // When the last thread finished, not when this function is called.
        self.end = self.end.max(end);
    }

    pub fn part(&self, title: impl Into<String>, kind: usize, start: Instant) -> KindResults {
        let tally = self.tallies.get(kind).cloned().unwrap_or_default();
        KindResults { title: title.into(), tally, wall: self.end - start }
    }

    /// Merges all kinds.
    pub fn whole(mut self) -> Tally {
        let mut whole = if self.tallies.is_empty() { Tally::new() } else { self.tallies.remove(0) };
        self.tallies.iter().for_each(|part| whole.merge(part));
        whole
    }
}

/// A time without replies that a closed loop reports as few slow requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HiddenStall {
    pub longest: Duration,
    /// Requests that were slow because of it.
    pub requests: u64,
    /// Number of all counted requests.
    pub counted: u64,
    pub time_share: f64,
}

impl Measurement {
    /// Returns the hidden stall, if any; see [`HiddenStall`].
    pub fn hidden_stall(&self) -> Option<HiddenStall> {
        let is_hidden = |stall: &HiddenStall| {
            stall.time_share >= stall.requests as f64 / stall.counted as f64 * UNDERSTATED_MIN
        };
        self.stall().filter(is_hidden)
    }

    /// Returns the stall, even if percentiles show it.
    pub fn stall(&self) -> Option<HiddenStall> {
        // Events follow puts, so none is due while the puts wait.
        let puts = || self.parts.iter().find(|part| part.title == PUTS).map(|part| &part.tally);
        let tally = if self.events { puts()? } else { &self.tally };
        let longest = Duration::from_nanos(tally.slowest_ns);
        if !self.closed_loop || longest < STALL_MIN || self.clients == 0 {
            return None;
        }
        let (requests, time_share) = self.slow(&tally.latencies_ns, STALL_MIN.as_nanos() as u64);
        let is_of_many = requests as f64 >= self.clients as f64 * STALLED_MIN;
        let stall = HiddenStall { longest, requests, counted: tally.counted_len(), time_share };
        is_of_many.then_some(stall)
    }

    /// Returns the latencies of a closed loop with those of the requests that its clients did not send while
    /// they waited: HdrHistogram's correction by the interval at which a client sends while no call is slow.
    /// For events, returns the latencies of their puts.
    pub fn corrected(&self) -> Option<Histogram<u64>> {
        let puts = || self.parts.iter().find(|part| part.title == PUTS).map(|part| &part.tally);
        let tally = if self.events { puts()? } else { &self.tally };
        if !self.closed_loop || self.clients == 0 || tally.counted_len() == 0 {
            return None;
        }
        let slow_ns = tally.percentile_ns(50.0).saturating_mul(SLOW_FACTOR);
        let (slow, share) = self.slow(&tally.latencies_ns, slow_ns.max(1));
        let others = (tally.counted_len() - slow).max(1) as f64;
        let clients_ns = self.wall.as_nanos() as f64 * self.clients as f64;
        let interval_ns = clients_ns * (1.0 - share).max(0.0) / others;
        Some(tally.latencies_ns.clone_correct((interval_ns as u64).max(tally.percentile_ns(50.0)).max(1)))
    }

    /// Returns the number of calls that took at least `least` nanoseconds, and their share of the time of
    /// all callers.
    pub fn slow(&self, times: &Histogram<u64>, least: u64) -> (u64, f64) {
        let steps = times.iter_recorded().filter(|step| step.value_iterated_to() >= least);
        let (calls, waited_ns) = steps.fold((0, 0.0), |(calls, waited_ns), step| {
            let count = step.count_at_value();
            (calls + count, waited_ns + step.value_iterated_to() as f64 * count as f64)
        });
        (calls, waited_ns / (self.wall.as_nanos() as f64 * self.clients as f64))
    }

    /// Returns the successful requests per second. With an intended rate, the time ends a typical latency
    /// after the last request was sent: the wait for a single lost reply is not part of the rate.
    pub fn per_second(&self) -> f64 {
        let sending = self.tally.last_sent + Duration::from_nanos(self.tally.percentile_ns(50.0));
        let is_paced = self.intended_per_second.is_some() && !self.events && !self.tally.last_sent.is_zero();
        let seconds = if is_paced { sending.min(self.wall) } else { self.wall };
        self.tally.succeeded_len() as f64 / seconds.as_secs_f64()
    }

    /// Returns the number of failures of all kinds.
    pub fn failed_len(&self) -> u64 {
        self.tallies().map(Tally::failed_len).sum()
    }

    /// Counts failed calls, and due requests and events without a reply at the end of the run.
    pub fn errors(&self) -> u64 {
        self.failed_len() + self.unanswered().count
    }

    /// Returns the due requests and events of all kinds without a reply at the end of the run.
    pub fn unanswered(&self) -> UnansweredCalls {
        let mut all = UnansweredCalls::default();
        self.tallies().for_each(|tally| all.merge(tally.unanswered));
        all
    }

    /// Returns the results, by kind if there are several.
    pub fn tallies(&self) -> impl Iterator<Item = &Tally> {
        let whole = self.parts.is_empty().then_some(&self.tally);
        whole.into_iter().chain(self.parts.iter().map(|part| &part.tally))
    }

    /// Returns the processor time of this process per successful request.
    pub fn client_cpu_micros(&self) -> f64 {
        self.client_cpu.as_secs_f64() * 1e6 / self.tally.succeeded_len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lost_reply_does_not_lower_the_rate() {
        let start = Instant::now();
        let began = crate::run::recorder::Start::new(start);
        let mut tally = Tally::new();
        for position in 0..800 {
            let sent = start + Duration::from_millis(5 * position);
            let took = Duration::from_millis(if position == 400 { 12_000 } else { 2 });
            tally.record(&began.sample(sent, sent, sent + took, 0));
        }
        let wall = Duration::from_secs(14);
        let run = |intended_per_second| Measurement {
            tally: tally.clone(),
            wall,
            clients: 10,
            intended_per_second,
            ..Measurement::default()
        };
        assert!((run(Some(200.0)).per_second() - 200.0).abs() < 0.5, "{}", run(Some(200.0)).per_second());
        assert!(
            (run(None).per_second() - 57.1).abs() < 0.1,
            "a closed loop without a rate has no other time"
        );
    }
}
