//! Counters of a server's `/metrics` endpoint on its client port, in Prometheus's text format.

use super::counters::{Error, ServerCounters};
use crate::client::dial;
use crate::client::dial::Http1;
use crate::client::endpoint::Endpoint;
use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::Full;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerMetrics {
    /// Durations of log syncs, in seconds.
    pub syncs: Buckets,
    /// Durations of peer probes, in seconds.
    pub round_trips: Buckets,
    pub peer_sent_bytes: Option<f64>,
}

/// A Prometheus histogram.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    /// Upper bound and cumulative count, ascending.
    at_most: Vec<(f64, f64)>,
    count: f64,
    sum: f64,
}

/// Reads the counters of the server at `endpoint`.
pub(super) async fn counters(endpoint: &Endpoint) -> Result<ServerCounters, Error> {
    let page = fetch(endpoint).await?;
    let reason = "no process_cpu_seconds_total there".into();
    parse(&page).ok_or_else(|| Error::Metrics { endpoint: endpoint.clone(), reason })
}

/// Returns the build information of the server at `endpoint` in the format of Go programs, such as etcd.
pub async fn built_with(endpoint: &Endpoint) -> Option<String> {
    let page = fetch(endpoint).await.ok()?;
    samples(&page, "go_info").next().map(|(labels, _)| labels.to_owned())
}

/// Reads the disk and peer metrics of the server at `endpoint`.
pub async fn server_metrics(endpoint: &Endpoint) -> Result<ServerMetrics, Error> {
    fetch(endpoint).await.map(|page| ServerMetrics::parse(&page))
}

async fn fetch(endpoint: &Endpoint) -> Result<String, Error> {
    let fail = |reason: String| Error::Metrics { endpoint: endpoint.clone(), reason };
    let request = Request::get("/metrics").header(HOST, endpoint.authority()).body(Full::default());
    let request = request.expect("an authority is a valid header");
    let reply = async { Http1::open(dial::connect(endpoint, dial::HTTP1).await?).await?.call(request).await };
    match tokio::time::timeout(TIMEOUT, reply).await {
        Err(_) => Err(fail(format!("no answer within {TIMEOUT:?}"))),
        Ok(Err(error)) => Err(fail(error.to_string())),
        Ok(Ok(reply)) if reply.status != StatusCode::OK => Err(fail(reply.status.to_string())),
        Ok(Ok(reply)) => Ok(String::from_utf8_lossy(&reply.body).into_owned()),
    }
}

fn parse(page: &str) -> Option<ServerCounters> {
    Some(ServerCounters {
        began: value(page, "process_start_time_seconds"),
        cpu_seconds: value(page, "process_cpu_seconds_total")?,
        user_seconds: None,
        resident_bytes: value(page, "process_resident_memory_bytes").unwrap_or(0.0) as u64,
        resident_peak_bytes: None,
        bytes_written: None,
    })
}

/// Returns the value of a sample without labels.
fn value(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Iterates over labels (may be empty) and value of every sample with this name.
fn samples<'a>(page: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    page.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(labelled) => labelled.rsplit_once("} ")?,
            None => ("", rest.strip_prefix(' ')?),
        };
        Some((labels, value.split_whitespace().next()?.parse().ok()?))
    })
}

impl ServerMetrics {
    fn parse(page: &str) -> Self {
        let sent: Vec<f64> =
            samples(page, "etcd_network_peer_sent_bytes_total").map(|(_, value)| value).collect();
        Self {
            syncs: Buckets::parse(page, "etcd_disk_wal_fsync_duration_seconds"),
            round_trips: Buckets::parse(page, "etcd_network_peer_round_trip_time_seconds"),
            peer_sent_bytes: (!sent.is_empty()).then(|| sent.iter().sum()),
        }
    }

    /// Returns the difference to an earlier reading of the same server.
    pub fn since(&self, earlier: &ServerMetrics) -> ServerMetrics {
        let sent = self.peer_sent_bytes.zip(earlier.peer_sent_bytes);
        ServerMetrics {
            syncs: self.syncs.since(&earlier.syncs),
            round_trips: self.round_trips.since(&earlier.round_trips),
            peer_sent_bytes: sent.map(|(later, earlier)| later - earlier).or(self.peer_sent_bytes),
        }
    }
}

impl Buckets {
    /// Parses the histogram with this name, summed over all its labels.
    fn parse(page: &str, name: &str) -> Self {
        let mut buckets = Self::default();
        for (labels, count) in samples(page, &format!("{name}_bucket")) {
            let edge = labels.split(',').find_map(|label| label.strip_prefix("le=\"")?.strip_suffix('"'));
            let Some(edge) = edge.and_then(|edge| edge.parse::<f64>().ok()) else { continue };
            buckets.add(edge, count);
        }
        buckets.count = samples(page, &format!("{name}_count")).map(|(_, value)| value).sum();
        buckets.sum = samples(page, &format!("{name}_sum")).map(|(_, value)| value).sum();
        buckets
    }

    fn add(&mut self, edge: f64, count: f64) {
        match self.at_most.iter_mut().find(|(known, _)| *known == edge) {
            Some((_, known)) => *known += count,
            None => {
                let index = self.at_most.partition_point(|(known, _)| *known < edge);
                self.at_most.insert(index, (edge, count));
            }
        }
    }

    pub fn merge(&mut self, other: &Buckets) {
        other.at_most.iter().for_each(|&(edge, count)| self.add(edge, count));
        self.count += other.count;
        self.sum += other.sum;
    }

    pub fn since(&self, earlier: &Buckets) -> Buckets {
        let mut buckets = self.clone();
        earlier.at_most.iter().for_each(|&(edge, count)| buckets.add(edge, -count));
        buckets.count -= earlier.count;
        buckets.sum -= earlier.sum;
        buckets
    }

    pub fn count(&self) -> f64 {
        self.count
    }

    pub fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }

    /// Returns the upper bound of the bucket with the value at `percent`. `None` without values, or if the
    /// value is above every bound.
    pub fn at_most(&self, percent: f64) -> Option<f64> {
        let wanted = self.count * percent / 100.0;
        let edge = self.at_most.iter().find(|(_, count)| self.count > 0.0 && *count >= wanted);
        edge.map(|(edge, _)| *edge).filter(|edge| edge.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn the_two_counters_are_found_among_the_others() {
        let page = "# TYPE process_cpu_seconds_total counter\n\
                    process_cpu_seconds_total_other 9\nprocess_cpu_seconds_total 12.75\n\
                    process_resident_memory_bytes 4.2090496e+07\n";
        let counters = parse(page).unwrap();
        assert_eq!((counters.cpu_seconds, counters.resident_bytes), (12.75, 42_090_496));
        assert_eq!(parse("go_goroutines 5\n"), None);
    }

    const PAGE: &str = "\
        x_seconds_bucket{le=\"0.001\"} 90\nx_seconds_bucket{le=\"0.002\"} 99\nx_seconds_bucket{le=\"+Inf\"} 100\n\
        x_seconds_sum 0.2\nx_seconds_count 100\n\
        y_seconds_bucket{To=\"a\",le=\"0.1\"} 2\ny_seconds_bucket{To=\"b\",le=\"0.1\"} 1\n\
        y_seconds_bucket{To=\"b\",le=\"+Inf\"} 2\n\
        y_seconds_sum{To=\"a\"} 0.25\ny_seconds_sum{To=\"b\"} 0.75\n\
        y_seconds_count{To=\"a\"} 2\ny_seconds_count{To=\"b\"} 2\n\
        etcd_network_peer_sent_bytes_total{To=\"a\"} 5e+06\netcd_network_peer_sent_bytes_total{To=\"b\"} 7\n";

    #[test]
    fn histograms_are_added_up_over_their_labels() {
        let plain = Buckets::parse(PAGE, "x_seconds");
        assert_eq!((plain.mean(), plain.count()), (Some(0.002), 100.0));
        assert_eq!(
            (plain.at_most(50.0), plain.at_most(99.0), plain.at_most(99.9)),
            (Some(0.001), Some(0.002), None)
        );
        let labelled = Buckets::parse(PAGE, "y_seconds");
        assert_eq!((labelled.count(), labelled.mean(), labelled.at_most(75.0)), (4.0, Some(0.25), Some(0.1)));
        assert_eq!(ServerMetrics::parse(PAGE).peer_sent_bytes, Some(5_000_007.0));
        assert_eq!((Buckets::parse(PAGE, "z").mean(), Buckets::parse(PAGE, "z").at_most(99.0)), (None, None));
    }

    #[test]
    fn the_difference_of_two_readings_is_a_histogram() {
        let earlier = Buckets::parse(PAGE, "x_seconds");
        let mut later = earlier.clone();
        later.merge(&Buckets {
            at_most: vec![(0.001, 0.0), (0.002, 1.0), (f64::INFINITY, 1.0)],
            count: 1.0,
            sum: 0.0015,
        });
        let between = later.since(&earlier);
        assert!((between.mean().unwrap() - 0.0015).abs() < 1e-9);
        assert_eq!(between.at_most(99.0), Some(0.002));
    }

    #[tokio::test]
    async fn an_endpoint_without_metrics_is_named() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // Closing with unread bytes would reset the connection before the response is read.
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        });
        let error = counters(&endpoint).await.unwrap_err();
        assert_eq!(error.to_string(), format!("read http://{endpoint}/metrics: 404 Not Found"));
    }
}
