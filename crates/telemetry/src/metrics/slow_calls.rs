//! Unary calls that take long: one warning each, with the stage that took the time.
//!
//! ```text
//!   SlowCalls::watch ── future of the call ── timed(Stage, …) adds to the call that is polled
//!          └── at its end, however it ends: a line, if it took longer than --warning-unary-request-duration
//! ```
//!
//! * A call that its client gives up is reported as well, with the stage that it was in.
//! * At most [`LINES_PER_SECOND_MAX`] lines are written in a second: a member that is overloaded must not
//!   spend its time on saying so. The next line counts those that were left out.
//!
//! Costs a call two readings of the clock, and two for each stage. Knows nothing of what a stage does.

use std::cell::Cell;
use std::fmt::Write;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::Method;
use parking_lot::Mutex;

use super::calls::SlowCall;
use super::counters::Metrics;
use crate::traces::CallSpan;

/// A line is some 300 bytes and one write to stderr.
const LINES_PER_SECOND_MAX: u32 = 10;

/// What a call waits for, or does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Memory or a turn, which other calls hold.
    Admission,
    /// The leader's confirmation that it leads, and this member's apply.
    ReadIndex,
    /// The log of a majority, and this member's apply.
    Replication,
    /// The store, on a thread for long reads.
    Read,
}

impl Stage {
    const ALL: [Stage; 4] = [Stage::Admission, Stage::ReadIndex, Stage::Replication, Stage::Read];

    fn name(self) -> &'static str {
        match self {
            Stage::Admission => "admission",
            Stage::ReadIndex => "read index",
            Stage::Replication => "replication",
            Stage::Read => "read",
        }
    }
}

tokio::task_local! {
    /// Of the call that is polled.
    static SPENT: CallTimes;
}

/// Where the time of one call went.
#[derive(Default)]
struct CallTimes {
    /// By stage.
    times: [Cell<Duration>; Stage::ALL.len()],
    /// If the call is traced.
    span: Option<Arc<CallSpan>>,
}

/// Counts the time of `work` for the call that is polled, if one is watched.
pub async fn timed<T>(stage: Stage, work: impl Future<Output = T>) -> T {
    let _counted_at_the_end = InStage { stage, began: Instant::now() };
    work.await
}

struct InStage {
    stage: Stage,
    began: Instant,
}

impl Drop for InStage {
    fn drop(&mut self) {
        // A call that is not watched, such as one of this process, is not timed.
        let _is_watched = SPENT.try_with(|spent| {
            let (stage, took) = (&spent.times[self.stage as usize], self.began.elapsed());
            stage.set(stage.get() + took);
            if let Some(span) = &spent.span {
                span.stage(self.stage.name(), took);
            }
        });
    }
}

/// Watches calls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SlowCalls {
    /// What is longer is reported.
    limit: Duration,
    said: Arc<Mutex<LoggedLines>>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct LoggedLines {
    /// When the running second began, and its lines.
    second: Option<Instant>,
    lines: u32,
    unlogged: u64,
}

impl SlowCalls {
    /// How long calls take is counted in `metrics`.
    pub fn new(limit: Duration, metrics: Arc<Metrics>) -> SlowCalls {
        SlowCalls { limit, said: Arc::default(), metrics }
    }

    /// The same future; a warning follows if it takes long. `request_bytes` where they are known, and
    /// `span` if the call is traced: its stages become spans.
    pub fn watch<F: Future>(
        &self,
        method: Method,
        request_bytes: Option<usize>,
        span: Option<Arc<CallSpan>>,
        call: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let watched = TimedCall { slow: self.clone(), method, request_bytes, began: Instant::now() };
        SPENT.scope(CallTimes { span, ..CallTimes::default() }, async move {
            // Dropped inside the scope, also when the call is not polled to its end.
            let _reported_at_the_end = watched;
            call.await
        })
    }

    /// A call has ended, watched or not. A warning follows if it took long.
    pub fn ended(&self, method: Method, request_bytes: Option<usize>, took: Duration) {
        self.metrics.calls.took(method, took);
        if took > self.limit {
            let spent = SPENT.try_with(|spent| spent.times.each_ref().map(Cell::get)).unwrap_or_default();
            self.report(method, request_bytes, took, &spent);
        }
    }

    fn report(
        &self,
        method: Method,
        request_bytes: Option<usize>,
        took: Duration,
        spent: &[Duration; Stage::ALL.len()],
    ) {
        let (stage, stages) = in_words(took, spent);
        let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.metrics.calls.was_slow(SlowCall {
            at_ms: microseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()) / 1000,
            method: method.path()[1..].to_owned(),
            took_us: microseconds(took),
            stage: stage.to_owned(),
        });
        let Some(unlogged) = self.said.lock().note(Instant::now()) else { return };
        tracing::warn!(
            time_spent = ?took,
            response_type = format!("/{}/{}", method.service(), method.name()),
            request_size = request_bytes,
            stage,
            stages,
            unlogged,
            "request stats"
        );
    }
}

/// A call under way.
struct TimedCall {
    slow: SlowCalls,
    method: Method,
    request_bytes: Option<usize>,
    began: Instant,
}

impl Drop for TimedCall {
    fn drop(&mut self) {
        self.slow.ended(self.method, self.request_bytes, self.began.elapsed());
    }
}

/// The stage that took most, and all that took any time. What is in no stage is `other`: to decode, to check,
/// to answer, and to wait for a thread.
fn in_words(took: Duration, spent: &[Duration; Stage::ALL.len()]) -> (&'static str, String) {
    let other = took.saturating_sub(spent.iter().sum());
    let named = Stage::ALL.into_iter().map(Stage::name).zip(*spent).chain([("other", other)]);
    let (mut longest, mut all) = (("other", Duration::ZERO), String::new());
    for (name, time) in named.filter(|(_, time)| !time.is_zero()) {
        if time > longest.1 {
            longest = (name, time);
        }
        let comma = if all.is_empty() { "" } else { ", " };
        let _never_fails = write!(all, "{comma}{name} {time:?}");
    }
    (longest.0, all)
}

impl LoggedLines {
    /// Whether to log, and how many others were not.
    fn note(&mut self, now: Instant) -> Option<u64> {
        if self.second.is_none_or(|second| now >= second + Duration::from_secs(1)) {
            (self.second, self.lines) = (Some(now), 0);
        }
        if self.lines == LINES_PER_SECOND_MAX {
            self.unlogged += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stage_is_named() {
        let ms = Duration::from_millis;
        let spent = [ms(5), ms(0), ms(300), ms(0)];
        let wanted = ("replication", "admission 5ms, replication 300ms, other 15ms".to_owned());
        assert_eq!(in_words(ms(320), &spent), wanted);
        assert_eq!(in_words(ms(7), &[ms(0); 4]), ("other", "other 7ms".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stage_counts_for_the_call_that_is_polled_also_if_it_is_given_up() {
        let slow = SlowCalls::new(Duration::MAX, Arc::default());
        let read = |stage: Stage| SPENT.try_with(|spent| spent.times[stage as usize].get()).unwrap();
        slow.watch(Method::KvPut, None, None, async {
            timed(Stage::Replication, async { std::thread::sleep(Duration::from_millis(2)) }).await;
            assert!(read(Stage::Replication) >= Duration::from_millis(2));
            let waits = timed(Stage::ReadIndex, std::future::pending::<()>());
            drop(tokio::time::timeout(Duration::from_secs(1), waits).await);
            assert!(!read(Stage::ReadIndex).is_zero());
            // A call within a call is another call.
            slow.watch(Method::KvRange, None, None, async { assert!(read(Stage::Replication).is_zero()) })
                .await;
        })
        .await;
        timed(Stage::Read, async {}).await;
    }

    #[test]
    fn lines_are_bounded_and_those_left_out_are_counted() {
        let (mut said, now) = (LoggedLines::default(), Instant::now());
        let logged = (0..LINES_PER_SECOND_MAX + 5).filter_map(|_| said.note(now)).count();
        assert_eq!(logged, LINES_PER_SECOND_MAX as usize);
        assert_eq!(said.note(now + Duration::from_secs(1)), Some(5));
        assert_eq!(said.note(now + Duration::from_secs(1)), Some(0));
    }
}
