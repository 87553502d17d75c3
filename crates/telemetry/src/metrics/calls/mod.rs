//! gRPC calls, counted by method and status.
//!
//! A method has all its series from the start, as in etcd: a rate over a series that appears with its first
//! error would miss that error. Series of locks and elections appear with the first call, as in etcd.

mod times; // a histogram without a lock

mod handling; // etcd's histograms of all calls
mod requests; // etcd's metrics of requests

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::{CODE_NAMES, CallKind, Method};
use parking_lot::Mutex;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use serde::{Deserialize, Serialize};
use tonic::Code;

use handling::Handling;
use requests::RequestMetrics;

use super::declare::show;

/// One row of counters per method.
#[derive(Debug)]
pub struct CallMetrics {
    pub(super) rows: Vec<CallCounters>,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    /// Set with `--metrics=extensive`.
    handling: OnceLock<Handling>,
    requests: RequestMetrics,
    /// The latest slow calls, latest first, at most [`SLOW_MAX`].
    slow: Mutex<VecDeque<SlowCall>>,
}

/// Slow calls retained for the status page, in about 5 KiB.
const SLOW_MAX: usize = 50;

/// A call slower than `--warning-unary-request-duration`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowCall {
    /// Milliseconds since the epoch.
    pub at_ms: u64,
    pub method: String,
    pub took_us: u64,
    /// The longest stage.
    pub stage: String,
}

#[derive(Debug, Default)]
pub(super) struct CallCounters {
    pub(super) started: AtomicU64,
    pub(super) handled: [AtomicU64; CODE_NAMES.len()],
    received: AtomicU64,
    sent: AtomicU64,
    latency: Latency,
}

impl CallCounters {
    /// Returns the number of completed calls, for any status.
    fn ended(&self) -> u64 {
        self.handled.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

/// Steps per octave of latency: percentiles have an error of about 10 %.
const STEPS: u64 = 4;
/// The upper bound of the first bucket is 16 µs, that of the second to last 16 µs * 2^23 = 134 s. The last
/// one has the rest.
const OCTAVES: u64 = 23;
const FIRST_US: u64 = 16;
const LATENCIES: usize = (OCTAVES * STEPS) as usize + 2;

/// Latencies of unary calls.
#[derive(Debug)]
struct Latency {
    buckets: [AtomicU64; LATENCIES],
    microseconds: AtomicU64,
}

impl Default for Latency {
    fn default() -> Self {
        Latency { buckets: std::array::from_fn(|_| AtomicU64::new(0)), microseconds: AtomicU64::new(0) }
    }
}

/// Returns the bucket of a time in microseconds.
fn bucket(time: u64) -> usize {
    if time < FIRST_US {
        return 0;
    }
    let octave = time.ilog2() - FIRST_US.ilog2();
    let step = (time >> (octave + FIRST_US.ilog2() - STEPS.ilog2())) & (STEPS - 1);
    let bucket = u64::from(octave) * STEPS + step + 1;
    usize::try_from(bucket).unwrap_or(usize::MAX).min(LATENCIES - 1)
}

/// Returns the upper bound of a bucket, in microseconds. The last one has none.
fn bucket_end(bucket: usize) -> u64 {
    let (octave, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    (FIRST_US << octave) + (FIRST_US << octave) / STEPS * step
}

impl Latency {
    fn count(&self, bucket: usize) -> u64 {
        self.buckets[bucket].load(Ordering::Relaxed)
    }

    /// Returns upper bounds in seconds and counts, per octave.
    fn octaves(&self) -> Vec<(f64, u64)> {
        let mut octaves = vec![(FIRST_US as f64 / 1e6, self.count(0))];
        for octave in 1..=OCTAVES as usize {
            let end = octave * STEPS as usize;
            let count = (end + 1 - STEPS as usize..=end).map(|bucket| self.count(bucket)).sum();
            octaves.push((bucket_end(end) as f64 / 1e6, count));
        }
        octaves.push((f64::INFINITY, self.count(LATENCIES - 1)));
        octaves
    }
}

/// Statistics of a method in the status document, in addition to its metrics. All since the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallCounts {
    /// Full name, such as `etcdserverpb.KV/Put`.
    pub method: String,
    pub ended: u64,
    pub failed: u64,
    /// Upper bounds of buckets in microseconds and their counts, without empty ones. The unbounded bucket
    /// repeats the bound of the last bounded one.
    pub latency: Vec<(u64, u64)>,
}

impl Default for CallMetrics {
    fn default() -> Self {
        let rows = Method::ALL.iter().map(|_| CallCounters::default()).collect();
        let [received_bytes, sent_bytes] = [0, 0].map(AtomicU64::new);
        let (handling, requests, slow) = Default::default();
        CallMetrics { rows, received_bytes, sent_bytes, handling, requests, slow }
    }
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl CallMetrics {
    /// Enables timing of all calls.
    pub fn be_extensive(&self) {
        self.handling.get_or_init(Handling::default);
    }

    /// Counts the API version that the client names in a call.
    pub fn named_version(&self, method: Method, version: Option<&[u8]>) {
        self.requests.named(method, version);
    }

    /// Counts a read of a range from the store.
    pub fn ranged(&self, time: Duration, succeeded: bool) {
        self.requests.ranged(time, succeeded);
    }

    /// Counts the time of a completed call.
    pub(super) fn handled_within(&self, method: Method, time: Duration, succeeded: bool) {
        self.requests.handled(method, time, succeeded);
        if let Some(handling) = self.handling.get() {
            handling.add(method, time);
        }
    }

    pub fn started(&self, method: Method) {
        add(&self.rows[method.number()].started, 1);
    }

    pub fn handled(&self, method: Method, code: Code) {
        add(&self.rows[method.number()].handled[code as usize], 1);
    }

    /// Counts a received message of `bytes`.
    pub fn received(&self, method: Method, bytes: usize) {
        add(&self.rows[method.number()].received, 1);
        add(&self.received_bytes, bytes);
    }

    /// Counts a sent message of `bytes`.
    pub fn sent(&self, method: Method, bytes: usize) {
        add(&self.rows[method.number()].sent, 1);
        add(&self.sent_bytes, bytes);
    }

    /// Counts a successful unary call, with the sizes of its request and response and its duration.
    pub fn answered(&self, method: Method, bytes: [usize; 2], time: Duration) {
        self.started(method);
        self.received(method, bytes[0]);
        self.sent(method, bytes[1]);
        self.handled(method, Code::Ok);
        self.handled_within(method, time, true);
    }

    /// Counts sent bytes, and the messages that started in them.
    pub fn sent_many(&self, method: Method, messages: usize, bytes: usize) {
        add(&self.rows[method.number()].sent, messages);
        add(&self.sent_bytes, bytes);
    }

    /// Records the duration of a unary call, for any status.
    pub fn took(&self, method: Method, time: Duration) {
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let latency = &self.rows[method.number()].latency;
        latency.buckets[bucket(time)].fetch_add(1, Ordering::Relaxed);
        latency.microseconds.fetch_add(time, Ordering::Relaxed);
    }

    /// Retains a slow call.
    pub fn was_slow(&self, call: SlowCall) {
        let mut slow = self.slow.lock();
        slow.truncate(SLOW_MAX - 1);
        slow.push_front(call);
    }

    /// Returns the latest slow calls, latest first.
    pub fn slow_calls(&self) -> Vec<SlowCall> {
        self.slow.lock().iter().cloned().collect()
    }

    /// Returns the methods that were called.
    pub fn counts(&self) -> Vec<CallCounts> {
        let all = Method::ALL.iter().copied().zip(&self.rows);
        let called = all.filter(|(_, row)| row.started.load(Ordering::Relaxed) > 0);
        called
            .map(|(method, row)| {
                let handled = row.handled.each_ref().map(|count| count.load(Ordering::Relaxed));
                let ended = handled.iter().sum();
                let latency =
                    (0..LATENCIES).map(|at| (bucket_end(at.min(LATENCIES - 2)), row.latency.count(at)));
                let latency = latency.filter(|(_, count)| *count > 0).collect();
                CallCounts {
                    method: method.path()[1..].to_owned(),
                    ended,
                    failed: ended - handled[Code::Ok as usize],
                    latency,
                }
            })
            .collect()
    }

    /// Returns the bytes of messages from clients and to clients.
    pub fn bytes(&self) -> (u64, u64) {
        (self.received_bytes.load(Ordering::Relaxed), self.sent_bytes.load(Ordering::Relaxed))
    }

    /// Returns the methods with exposed series.
    fn shown(&self) -> impl Iterator<Item = (Method, &CallCounters)> {
        let all = Method::ALL.iter().copied().zip(&self.rows);
        all.filter(|(method, row)| is_shown_unused(*method) || row.started.load(Ordering::Relaxed) > 0)
    }

    /// Encodes the rows.
    pub(super) fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let totals = [
            (
                "etcd_network_client_grpc_received_bytes",
                "Bytes of gRPC messages from clients",
                &self.received_bytes,
            ),
            ("etcd_network_client_grpc_sent_bytes", "Bytes of gRPC messages to clients", &self.sent_bytes),
        ];
        for (name, help, counter) in totals {
            show(&mut encoder, name, help, &ConstCounter::new(counter.load(Ordering::Relaxed)))?;
        }
        type Pick = fn(Method, &CallCounters) -> u64;
        // As counted by etcd: closing a client's stream, and an error in place of a response, are messages.
        let families: [(&str, &str, Pick); 3] = [
            ("grpc_server_started", "Calls begun", |_, row| row.started.load(Ordering::Relaxed)),
            ("grpc_server_msg_received", "Messages received", |method, row| {
                let ends = matches!(method.kind(), CallKind::ClientStream | CallKind::BidiStream);
                row.received.load(Ordering::Relaxed) + if ends { row.ended() } else { 0 }
            }),
            ("grpc_server_msg_sent", "Messages sent", |method, row| match method.kind() {
                CallKind::Unary => row.ended(),
                _ => row.sent.load(Ordering::Relaxed),
            }),
        ];
        for (name, help, pick) in families {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (method, row) in self.shown() {
                let counter = ConstCounter::new(pick(method, row));
                counter.encode(family.encode_family(&labels(method))?)?;
            }
        }
        let (name, help) =
            ("kv_server_call_seconds", "How long unary calls took, of methods that were called");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (method, row) in self.shown() {
            let octaves = row.latency.octaves();
            let count = octaves.iter().map(|(_, count)| count).sum();
            if count > 0 {
                let sum = row.latency.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
                let labels = labels(method);
                let mut metric = family.encode_family(&labels)?;
                metric.encode_histogram::<NoLabelSet>(sum, count, &octaves, None)?;
            }
        }
        if let Some(handling) = self.handling.get() {
            let (name, help) = ("grpc_server_handling_seconds", "How long calls took");
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            for (method, _) in self.shown() {
                handling.of(method).encode(family.encode_family(&labels(method))?)?;
            }
        }
        self.requests.encode(&mut encoder)?;
        let mut family =
            encoder.encode_descriptor("grpc_server_handled", "Calls ended", None, MetricType::Counter)?;
        for (method, row) in self.shown() {
            for (code, counter) in CODE_NAMES.iter().zip(&row.handled) {
                let counter = ConstCounter::new(counter.load(Ordering::Relaxed));
                counter.encode(family.encode_family(&labels_with(method, code))?)?;
            }
        }
        Ok(())
    }
}

/// Reports whether etcd exposes the series of a method that was never called.
fn is_shown_unused(method: Method) -> bool {
    !matches!(method.service(), "v3lockpb.Lock" | "v3electionpb.Election" | "kvserver.Repair")
}

fn labels(method: Method) -> [(&'static str, &'static str); 3] {
    let kind = match method.kind() {
        CallKind::Unary => "unary",
        CallKind::ClientStream => "client_stream",
        CallKind::ServerStream => "server_stream",
        CallKind::BidiStream => "bidi_stream",
    };
    [("grpc_method", method.name()), ("grpc_service", method.service()), ("grpc_type", kind)]
}

fn labels_with(method: Method, code: &'static str) -> [(&'static str, &'static str); 4] {
    let [name, service, kind] = labels(method);
    [("grpc_code", code), name, service, kind]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_that_ends_after_it() {
        let mut last = 0;
        for at in 0..LATENCIES - 1 {
            let end = bucket_end(at);
            assert!(end > last, "{at}");
            assert_eq!((bucket(last), bucket(end - 1), bucket(end)), (at, at, at + 1), "{end}");
            last = end;
        }
        assert_eq!((last, bucket(u64::MAX)), (134_217_728, LATENCIES - 1));
    }

    #[test]
    fn latencies_are_shown_of_methods_that_were_called() {
        let metrics = CallMetrics::default();
        for milliseconds in [1, 3, 3, 500_000] {
            metrics.started(Method::KvPut);
            metrics.took(Method::KvPut, Duration::from_millis(milliseconds));
        }
        let counts = metrics.counts();
        assert_eq!((counts.len(), counts[0].method.as_str()), (1, "etcdserverpb.KV/Put"));
        assert_eq!(counts[0].latency, [(1024, 1), (3072, 2), (134_217_728, 1)]);
        let octaves = metrics.rows[Method::KvPut.number()].latency.octaves();
        assert_eq!(octaves.iter().map(|(_, count)| count).sum::<u64>(), 4);
    }

    #[test]
    fn the_last_slow_calls_are_kept() {
        let metrics = CallMetrics::default();
        for at_ms in 0..120 {
            metrics.was_slow(SlowCall { at_ms, ..SlowCall::default() });
        }
        let kept: Vec<u64> = metrics.slow_calls().iter().map(|call| call.at_ms).collect();
        assert_eq!(kept, (70..120).rev().collect::<Vec<_>>());
    }

    #[test]
    fn locks_and_elections_are_shown_once_they_were_called() {
        let metrics = CallMetrics::default();
        let shown = |metrics: &CallMetrics| metrics.shown().count();
        assert_eq!(shown(&metrics), 45);
        metrics.started(Method::Lock);
        metrics.started(Method::KvPut);
        assert_eq!(shown(&metrics), 46);
    }
}
