//! The text format for Prometheus.
//!
//! The library writes OpenMetrics. Prometheus' older text format, which every tool understands and which is
//! etcd's default, differs in two respects: a counter's suffix belongs to its name, and there is no end
//! mark. Labels are sorted and bounds of buckets are spelled as Go's library does it, because scripts and
//! queries match on their text: `le="1"`, never `le="1.0"`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use super::counters::Metrics;
use super::process::ProcessMetrics;

/// All registered metrics.
#[derive(Debug)]
pub struct Exposition {
    registry: Registry,
}

/// Counters without the suffix `_total` in etcd.
const BARE_COUNTERS: [&str; 8] = [
    "etcd_server_learner_promote_successes",
    "etcd_server_learner_promote_failures",
    "etcd_server_health_success",
    "etcd_server_health_failures",
    "etcd_network_snapshot_send_success",
    "etcd_network_snapshot_send_failures",
    "etcd_network_snapshot_receive_success",
    "etcd_network_snapshot_receive_failures",
];

/// Encodes the metrics of calls.
#[derive(Debug)]
struct CallCollector(Arc<Metrics>);

impl Collector for CallCollector {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        self.0.calls.encode(encoder)
    }
}

impl Exposition {
    /// Returns the exposition. `parts` evaluates other parts' metrics per scrape.
    pub fn new(metrics: &Arc<Metrics>, parts: Box<dyn Collector>) -> Exposition {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        registry.register_collector(Box::new(CallCollector(Arc::clone(metrics))));
        registry.register_collector(parts);
        registry.register_collector(Box::new(ProcessMetrics::new()));
        Exposition { registry }
    }

    /// Returns the text format, version 0.0.4.
    pub fn text(&self) -> String {
        let mut open_metrics = String::new();
        prometheus_client::encoding::text::encode(&mut open_metrics, &self.registry)
            .expect("writing to a string cannot fail");
        to_text_format(&open_metrics)
    }
}

/// Converts OpenMetrics: help and type of a metric are two lines, in this order, followed by its samples.
fn to_text_format(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 4096);
    let mut help = "";
    let mut bare = None;
    for line in open_metrics.lines() {
        if line == "# EOF" {
            break;
        }
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest;
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
            bare = BARE_COUNTERS.into_iter().find(|bare| *bare == name);
            let suffix = if kind == "counter" && bare.is_none() { "_total" } else { "" };
            let help = help.split_once(' ').map_or("", |(_, help)| help);
            text.push_str(&format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n"));
            continue;
        }
        let line = &*with_sorted_labels(line);
        let line = &*with_go_bound(line);
        match bare.and_then(|name| Some((name, line.strip_prefix(name)?.strip_prefix("_total")?))) {
            Some((name, rest)) => text.push_str(&format!("{name}{rest}\n")),
            None => text.push_str(&format!("{line}\n")),
        }
    }
    text
}

/// Sorts labels by name, `le` last, like Go's library: scripts search for parts of a line.
fn with_sorted_labels(line: &str) -> Cow<'_, str> {
    let parts = line.split_once('{').and_then(|(name, rest)| Some((name, rest.rsplit_once('}')?)));
    let Some((name, (labels, value))) = parts else { return line.into() };
    let (mut all, mut begin) = (Vec::new(), 0);
    for (end, _) in labels.match_indices("\",").filter(|(end, _)| !labels[..*end].ends_with('\\')) {
        all.push(&labels[begin..=end]);
        begin = end + 2;
    }
    all.push(&labels[begin..]);
    let order = |a: &&str, b: &&str| a.starts_with("le=").cmp(&b.starts_with("le=")).then(a.cmp(b));
    if all.is_sorted_by(|a, b| order(a, b).is_le()) {
        return line.into();
    }
    all.sort_by(order);
    format!("{name}{{{}}}{value}", all.join(",")).into()
}

/// Spells the bound of a bucket, which is the last label, as Go does.
fn with_go_bound(line: &str) -> Cow<'_, str> {
    let parts = line.rsplit_once("le=\"").and_then(|(name, rest)| Some((name, rest.split_once('"')?)));
    let Some((name, (bound, value))) = parts.filter(|(name, _)| name.ends_with(['{', ','])) else {
        return line.into();
    };
    match bound.parse::<f64>() {
        Ok(number) if number.is_finite() => format!("{name}le=\"{}\"{value}", GoFloat(number)).into(),
        _ => line.into(),
    }
}

/// A finite number in the shortest form, as Go's `strconv` writes it with the format `g`.
struct GoFloat(f64);

impl fmt::Display for GoFloat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scientific = format!("{:e}", self.0);
        let (digits, exponent) = scientific.split_once('e').expect("the format writes an exponent");
        let exponent: i32 = exponent.parse().expect("an exponent is an integer");
        match exponent {
            -4..6 => write!(formatter, "{}", self.0),
            _ => {
                let sign = if exponent < 0 { '-' } else { '+' };
                write!(formatter, "{digits}e{sign}{:02}", exponent.abs())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use api::Method;
    use testkit::exposition::{histograms, quantile};

    use super::*;

    /// Returns all metrics as text.
    fn text_of(metrics: &Arc<Metrics>) -> String {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        registry.register_collector(Box::new(CallCollector(Arc::clone(metrics))));
        Exposition { registry }.text()
    }

    #[test]
    fn prometheus_computes_a_finite_quantile_of_each_histogram() {
        let metrics = Arc::new(Metrics::default());
        metrics.calls.be_extensive();
        for millis in 1..=100 {
            let took = Duration::from_millis(millis);
            metrics.calls.started(Method::KvPut);
            metrics.calls.took(Method::KvPut, took);
            metrics.calls.handled_within(Method::KvPut, took, true);
            metrics.calls.ranged(took, true);
        }
        metrics.calls.took(Method::KvPut, Duration::from_secs(1000));
        metrics.calls.handled_within(Method::KvPut, Duration::from_secs(1000), true);
        metrics.leases.ttl_seconds.observe(3e6);
        let (mut observed, text) = (Vec::new(), text_of(&metrics));
        for ((name, labels), buckets) in histograms(&text) {
            let (bound, _, count) = buckets.last().unwrap();
            assert_eq!(bound, "+Inf", "the last bucket of {name} {labels:?}");
            let ascends = |pair: &[(String, f64, f64)]| pair[0].1 < pair[1].1 && pair[0].2 <= pair[1].2;
            assert!(buckets.windows(2).all(ascends), "{name} {labels:?}: {buckets:?}");
            if *count > 0.0 {
                let quantiles = [0.5, 0.99, 1.0].map(|at| quantile(at, &buckets));
                assert!(quantiles.iter().all(|value| value.is_finite()), "{name}: {quantiles:?}");
                if name != "etcd_debugging_lease_ttl_total" {
                    assert!((0.04..0.07).contains(&quantiles[0]), "{name}: the median is {quantiles:?}");
                    assert!((0.09..0.14).contains(&quantiles[1]), "{name}: the 99th is {quantiles:?}");
                }
                observed.push(name);
            }
        }
        let wanted = [
            "etcd_debugging_lease_ttl_total",
            "etcd_server_range_duration_seconds",
            "etcd_server_request_duration_seconds",
            "grpc_server_handling_seconds",
            "kv_server_call_seconds",
        ];
        assert_eq!(observed, wanted);
    }

    #[test]
    fn bounds_are_spelled_as_go_spells_them() {
        let metrics = Arc::new(Metrics::default());
        metrics.calls.be_extensive();
        metrics.calls.started(Method::KvPut);
        metrics.calls.took(Method::KvPut, Duration::from_millis(1));
        let all = histograms(&text_of(&metrics));
        let bounds = |wanted: &str| {
            let (_, buckets) = all.iter().find(|((name, _), _)| name == wanted).unwrap();
            buckets.iter().map(|(bound, ..)| bound.as_str()).collect::<Vec<_>>()
        };
        let wanted = "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 +Inf";
        assert_eq!(bounds("grpc_server_handling_seconds").join(" "), wanted);
        let ttls = bounds("etcd_debugging_lease_ttl_total");
        assert_eq!((ttls[0], ttls[16], ttls[20], ttls[23]), ("1", "65536", "1.048576e+06", "8.388608e+06"));
        let network = GoFloat(0.0001).to_string();
        assert_eq!((network.as_str(), GoFloat(1.6e-5).to_string().as_str()), ("0.0001", "1.6e-05"));
        assert_eq!((GoFloat(0.0).to_string(), GoFloat(999_999.0).to_string()), ("0".into(), "999999".into()));
        // A label that ends with the same letters, and a value that looks like a bound.
        for line in ["a{role=\"1.0\"} 1.0", "a{a=\"{le=\\\"1.0\\\"\"} 1"] {
            assert_eq!(with_go_bound(line), line);
        }
    }

    #[test]
    fn labels_stand_as_go_sorts_them() {
        for (line, wanted) in [
            ("a 1", "a 1"),
            ("a{b=\"1\"} 2", "a{b=\"1\"} 2"),
            ("a{type=\"x}\",name=\"\\\",z\"} 2", "a{name=\"\\\",z\",type=\"x}\"} 2"),
            ("a_bucket{le=\"1\",m=\"x\",a=\"y\"} 2", "a_bucket{a=\"y\",m=\"x\",le=\"1\"} 2"),
        ] {
            assert_eq!(with_sorted_labels(line), wanted, "{line}");
        }
    }

    #[test]
    fn a_counter_is_named_with_its_suffix_and_the_end_mark_is_gone() {
        let open_metrics = "# HELP a_b Things.\n# TYPE a_b counter\na_b_total 3\n\
                            # HELP g G.\n# TYPE g gauge\ng 1\n\
                            # HELP etcd_server_health_success S.\n# TYPE etcd_server_health_success counter\n\
                            etcd_server_health_success_total 2\n# EOF\n";
        let wanted = "# HELP a_b_total Things.\n# TYPE a_b_total counter\na_b_total 3\n\
                      # HELP g G.\n# TYPE g gauge\ng 1\n\
                      # HELP etcd_server_health_success S.\n# TYPE etcd_server_health_success counter\n\
                      etcd_server_health_success 2\n";
        assert_eq!(to_text_format(open_metrics), wanted);
    }

    #[test]
    fn every_counted_metric_has_etcds_name() {
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::default());
        metrics.register(&mut registry);
        registry.register_collector(Box::new(CallCollector(Arc::clone(&metrics))));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let text = to_text_format(&text);
        for wanted in [
            "etcd_mvcc_put_total 0",
            "etcd_server_leader_changes_seen_total 0",
            "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.001\"} 0",
            "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"8.192\"} 0",
            "etcd_disk_wal_write_bytes_total 0",
            "etcd_network_client_grpc_received_bytes_total 0",
            "grpc_server_started_total{grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 0",
            "grpc_server_handled_total{grpc_code=\"Unauthenticated\",grpc_method=\"Watch\",",
            "# TYPE grpc_server_handled_total counter",
        ] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
    }
}
