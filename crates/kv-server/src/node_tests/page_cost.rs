//! CPU cost of the status page and its history: CPU time of each part, times its rate.
//!
//! All parts run on one thread, and its CPU time is measured, so other load on the machine does not matter.

use rustix::time::{ClockId, clock_gettime};

use super::*;
use telemetry::history;
use telemetry::status::Document;

const ROUNDS: u32 = 250;
/// Limit as a fraction of a core: 0.2 %.
const CORE_MAX: f64 = 0.002;
const BYTES_MAX: usize = 4 << 20;

fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Mean CPU seconds of `part`. The runtime's clock advances by `pause` between rounds.
async fn seconds_of(pause: Duration, mut part: impl AsyncFnMut()) -> f64 {
    let began = thread_seconds();
    for _ in 0..ROUNDS {
        tokio::time::advance(pause).await;
        part().await;
    }
    (thread_seconds() - began) / f64::from(ROUNDS)
}

#[test]
fn the_page_and_its_history_cost_less_than_two_thousandths_of_a_core_and_4_mib() {
    let directory = tempfile::tempdir().unwrap();
    let alone = start(directory.path(), &["--metrics-top=20"]);
    let Running { member, leases, settings, .. } = &alone.running;
    // Ten methods with latencies in all buckets.
    for (at, method) in api::Method::ALL.iter().enumerate().take(10) {
        member.metrics.calls.started(*method);
        for bucket in 0..16 {
            member.metrics.calls.took(*method, Duration::from_micros((17 + at as u64) << bucket));
        }
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (seconds, bytes) = runtime.block_on(async {
        let status = listeners::http(member, leases, settings, ShownAddress::default()).status;
        // Advancing the clock triggers a sample.
        let sample = seconds_of(Duration::from_secs(history::EVERY_S), async || {
            tokio::task::yield_now().await;
        });
        let sample = sample.await;
        let second = Duration::from_millis(1001);
        let document = seconds_of(second, async || drop(status.json().await)).await;
        let history = seconds_of(second, async || drop(status.history(status.own_id()).await)).await;
        let kept = status.history(status.own_id()).await.unwrap();
        assert!(kept.len() > 10_000, "{}", String::from_utf8_lossy(&kept));
        // Cost per peer: its document is parsed and encoded again.
        let json = status.json().await;
        let other = seconds_of(Duration::ZERO, async || {
            let document: Document = serde_json::from_slice(&json).unwrap();
            drop(serde_json::to_vec(&document).unwrap());
        });
        ([sample, document, history, other.await], 20 * 1024 + 3 * (kept.len() + json.len()))
    });
    let [sample, document, history, other] = seconds;
    // Samples are taken every 5 s. The page polls documents every 2 s, and the history with every third poll.
    let alone_cost = sample / 5.0;
    let polled = alone_cost + (document + 2.0 * other) / 2.0 + history / 6.0;
    assert!(polled < CORE_MAX && bytes < BYTES_MAX, "{polled} of a core ({alone_cost} alone), {bytes} bytes");
    alone.stop();
}
