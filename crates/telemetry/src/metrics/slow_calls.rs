//! Slow unary calls: one warning each, with the stage that took most of the time.
//!
//! ```text
//!   SlowCalls::watch ── future of the call ── timed(Stage, …) adds to the call that is polled
//!          └── at its end, however it ends: a line, if it took longer than --warning-unary-request-duration
//! ```
//!
//! * A call cancelled by its client is reported as well, with its current stage.
//! * At most [`LINES_PER_SECOND_MAX`] lines are written per second, so that an overloaded member does not
//!   spend its time on logging. The next line includes the number of suppressed ones.
//!
//! Costs two clock reads per call, and two per stage. This module does not interpret stages.

use std::cell::Cell;
use std::fmt::Write;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::Method;
use parking_lot::Mutex;
use pin_project_lite::pin_project;

use super::calls::SlowCall;
use super::counters::Metrics;
use crate::traces::CallSpan;

/// A line is about 300 bytes and one write to stderr.
const LINES_PER_SECOND_MAX: u32 = 10;

/// Activity, or reason to wait, of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Memory or a permit held by other calls.
    Admission,
    /// The leader's confirmation of its leadership, and this member's apply.
    ReadIndex,
    /// The logs of a majority, and this member's apply.
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
    /// Times of the call being polled.
    static SPENT: CallTimes;
}

#[derive(Default)]
struct CallTimes {
    /// Durations by stage.
    times: [Cell<Duration>; Stage::ALL.len()],
    /// Set if the call is traced.
    span: Option<Arc<CallSpan>>,
}

/// Adds the time of `work` to the call being polled, if it is watched.
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
        // Internal calls, for example, are not watched and not timed.
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
    /// Duration above which a call is reported.
    limit: Duration,
    said: Arc<Mutex<LoggedLines>>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct LoggedLines {
    /// Start of the current second, and its number of lines.
    second: Option<Instant>,
    lines: u32,
    unlogged: u64,
}

impl SlowCalls {
    /// Returns a watcher that records call durations in `metrics`.
    pub fn new(limit: Duration, metrics: Arc<Metrics>) -> SlowCalls {
        SlowCalls { limit, said: Arc::default(), metrics }
    }

    /// Wraps a call, to log a warning if it is slow. `request_bytes` is None if unknown. `span` is set if
    /// the call is traced: its stages become spans.
    pub fn watch<F: Future>(
        &self,
        method: Method,
        request_bytes: Option<usize>,
        span: Option<Arc<CallSpan>>,
        call: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let watched = TimedCall { slow: self.clone(), method, request_bytes, began: Instant::now() };
        SPENT.scope(CallTimes { span, ..CallTimes::default() }, WatchedCall { call, watched })
    }

    /// Records a completed call, watched or not, and logs a warning if it was slow.
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

pin_project! {
    /// A call and its report, dropped in this order inside the scope of the call's stages, even if the call
    /// is cancelled. An async block would store the call twice.
    struct WatchedCall<F> {
        #[pin]
        call: F,
        watched: TimedCall,
    }
}

impl<F: Future> Future for WatchedCall<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.project().call.poll(context)
    }
}

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

/// Returns the longest stage, and the times of all stages. Time outside the stages is `other`: decoding,
/// checks, encoding, and waiting for a thread.
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
    /// Returns the number of suppressed lines, or None if this line has to be suppressed too.
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
            // A nested call is timed separately.
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
