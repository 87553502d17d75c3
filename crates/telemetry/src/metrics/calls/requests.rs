//! Requests as etcd counts them: durations by type and result, and the API versions that clients name.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use api::{CallKind, Method};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::times::{Times, doubling};

/// etcd's buckets of requests: 1 ms to 8 s.
static REQUEST_ENDS_US: [u64; 14] = doubling(1_000);
/// etcd's buckets of ranges: 0.1 ms to 52 s.
static RANGE_ENDS_US: [u64; 20] = doubling(100);

/// Minor versions of the API that have a counter each: clients choose the text, not the number of series.
const MINORS: usize = 32;
/// Counters after those of minor versions.
const UNKNOWN: usize = MINORS;
const OTHER: usize = MINORS + 1;

#[derive(Debug)]
pub(super) struct RequestMetrics {
    /// Failed and succeeded calls of each method.
    requests: Vec<[Times; 2]>,
    ranges: [Times; 2],
    /// Unary calls and streams, by version.
    versions: [[AtomicU64; OTHER + 1]; 2],
}

impl Default for RequestMetrics {
    fn default() -> Self {
        let pair = |ends| [Times::new(ends), Times::new(ends)];
        RequestMetrics {
            requests: Method::ALL.iter().map(|_| pair(&REQUEST_ENDS_US)).collect(),
            ranges: pair(&RANGE_ENDS_US),
            versions: [const { [const { AtomicU64::new(0) }; OTHER + 1] }; 2],
        }
    }
}

/// The type of a unary request in etcd's label. None if etcd does not time the method.
fn type_of(method: Method) -> Option<String> {
    let name = method.name();
    match method.service() {
        "etcdserverpb.KV" if name == "Compact" => Some("Compaction".to_owned()),
        "etcdserverpb.KV" | "etcdserverpb.Lease" => Some(name.to_owned()),
        "etcdserverpb.Auth" if name.starts_with("Auth") => Some(name.to_owned()),
        "etcdserverpb.Auth" => Some(format!("Auth{name}")),
        "etcdserverpb.Maintenance" if name == "Alarm" => Some(name.to_owned()),
        _ => None,
    }
}

fn result(succeeded: usize) -> &'static str {
    if succeeded == 1 { "true" } else { "false" }
}

impl RequestMetrics {
    pub fn handled(&self, method: Method, took: Duration, succeeded: bool) {
        self.requests[method.number()][usize::from(succeeded)].add(took);
    }

    pub fn ranged(&self, took: Duration, succeeded: bool) {
        self.ranges[usize::from(succeeded)].add(took);
    }

    /// Counts a call by its field `client-api-version`.
    pub fn named(&self, method: Method, version: Option<&[u8]>) {
        let number = |version: &[u8]| {
            let minor = std::str::from_utf8(version.strip_prefix(b"3.")?).ok()?;
            minor.parse().ok().filter(|minor| *minor < MINORS)
        };
        let at = version.map_or(UNKNOWN, |version| number(version).unwrap_or(OTHER));
        self.versions[usize::from(method.kind() != CallKind::Unary)][at].fetch_add(1, Relaxed);
    }

    pub fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = ("etcd_server_request_duration_seconds", "Time of requests by type, to their end");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (method, pair) in Method::ALL.iter().zip(&self.requests) {
            let Some(kind) = type_of(*method).filter(|_| method.kind() == CallKind::Unary) else { continue };
            for (succeeded, times) in
                pair.iter().enumerate().filter(|(_, times)| times.counts().any(|n| n > 0))
            {
                let labels = [("success", result(succeeded)), ("type", kind.as_str())];
                times.encode(family.encode_family(&labels)?)?;
            }
        }
        let (name, help) = ("etcd_server_range_duration_seconds", "Time to read a range from the store");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (succeeded, times) in self.ranges.iter().enumerate() {
            times.encode(family.encode_family(&[("success", result(succeeded))])?)?;
        }
        let (name, help) = ("etcd_server_client_requests", "Calls by the API version that the client names");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (kind, counts) in ["unary", "stream"].into_iter().zip(&self.versions) {
            let counts = counts.iter().map(|count| count.load(Relaxed)).enumerate();
            for (at, count) in counts.filter(|(_, count)| *count > 0) {
                let version = match at {
                    UNKNOWN => "unknown".to_owned(),
                    OTHER => "other".to_owned(),
                    minor => format!("3.{minor}"),
                };
                let labels = [("client_api_version", version.as_str()), ("type", kind)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_those_of_etcds_log_entries() {
        for (method, wanted) in [
            (Method::KvPut, Some("Put")),
            (Method::KvCompact, Some("Compaction")),
            (Method::LeaseGrant, Some("LeaseGrant")),
            (Method::AuthUserAdd, Some("AuthUserAdd")),
            (Method::AuthEnable, Some("AuthEnable")),
            (Method::Authenticate, Some("Authenticate")),
            (Method::MaintenanceAlarm, Some("Alarm")),
            (Method::MaintenanceStatus, None),
            (Method::Lock, None),
        ] {
            assert_eq!(type_of(method).as_deref(), wanted, "{}", method.path());
        }
    }

    #[test]
    fn clients_do_not_choose_the_number_of_series() {
        let requests = RequestMetrics::default();
        let mut versions: Vec<String> = (0..1000).map(|at| format!("3.{at}")).collect();
        versions.extend(["", "3.", "4.0", "x", "3.-1", "\u{7f}"].map(str::to_owned));
        for version in &versions {
            requests.named(Method::KvPut, Some(version.as_bytes()));
        }
        requests.named(Method::Watch, None);
        let counts = |kind: usize| requests.versions[kind].each_ref().map(|count| count.load(Relaxed));
        let (unary, stream) = (counts(0), counts(1));
        assert_eq!((unary[7], unary[UNKNOWN], unary[OTHER]), (1, 0, versions.len() as u64 - 32));
        assert_eq!((stream[UNKNOWN], stream.iter().sum::<u64>()), (1, 1));
    }
}
