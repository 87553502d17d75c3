//! Metrics of a run in progress, over HTTP in Prometheus's text format.

use crate::run::{ActiveRun, OfEndpoint, RunProgress};
use crate::stats::histogram::StepCounts;
use crate::stats::progress::WaitingCalls;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Limit of a request, which has few headers and no body.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Timeout of a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Delay after a failed accept.
const REST: Duration = Duration::from_millis(20);

/// Serves the latest metrics until it is dropped.
pub struct Exporter {
    text: Arc<Mutex<String>>,
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Exporter {
    pub async fn listen(address: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let text = Arc::new(Mutex::new(text(&RunProgress::default(), &StepCounts::default(), &[])));
        let serving = tokio::spawn(serve(listener, text.clone()));
        Ok(Self { text, address, serving })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Updates the served metrics.
    pub fn show(&self, run: &ActiveRun) {
        let text = text(&run.progress(), &run.latencies(), &run.by_endpoint());
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, text: Arc<Mutex<String>>) {
    loop {
        // The connection was closed before it was accepted, or descriptors are exhausted.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(REST).await;
            continue;
        };
        let text = text.clone();
        tokio::spawn(async move {
            // Prometheus retries.
            let _ = tokio::time::timeout(PATIENCE, answer(stream, &text)).await;
        });
    }
}

async fn answer(mut stream: TcpStream, text: &Mutex<String>) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let line = String::from_utf8_lossy(request.split(|byte| *byte == b'\r').next().unwrap_or_default());
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_known = ["GET", "HEAD"].contains(&method) && target.split('?').next() == Some("/metrics");
    let (status, body) = if is_known {
        ("200 OK", text.lock().unwrap_or_else(PoisonError::into_inner).clone())
    } else {
        ("404 Not Found", "GET /metrics\n".to_owned())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let body = if method == "HEAD" { "" } else { &body };
    stream.write_all((head + body).as_bytes()).await?;
    stream.shutdown().await
}

/// Formats counters and a histogram with a bucket per doubling.
fn text(progress: &RunProgress, latencies: &StepCounts, endpoints: &[OfEndpoint]) -> String {
    let RunProgress { answered, failed, waiting, .. } = progress;
    let oldest = |waiting: &WaitingCalls| progress.oldest_wait(waiting).unwrap_or_default().as_secs_f64();
    let mut out = format!(
        "# HELP loadgen_requests_total Requests that were answered.\n\
         # TYPE loadgen_requests_total counter\nloadgen_requests_total {answered}\n\
         # HELP loadgen_failures_total Calls that failed.\n\
         # TYPE loadgen_failures_total counter\nloadgen_failures_total {failed}\n\
         # HELP loadgen_in_flight Requests that were sent and have no reply.\n\
         # TYPE loadgen_in_flight gauge\nloadgen_in_flight {}\n\
         # HELP loadgen_overdue Requests that are due and not sent.\n\
         # TYPE loadgen_overdue gauge\nloadgen_overdue {}\n\
         # HELP loadgen_oldest_wait_seconds How long the oldest request without a reply has waited.\n\
         # TYPE loadgen_oldest_wait_seconds gauge\nloadgen_oldest_wait_seconds {:.6}\n\
         # HELP loadgen_latency_seconds Latency of answered requests; an eighth too high at most.\n\
         # TYPE loadgen_latency_seconds histogram\n",
        waiting.in_flight,
        waiting.overdue,
        oldest(waiting)
    );
    let mut count = 0;
    for (limit, up_to) in latencies.doublings() {
        count = up_to;
        let _ = writeln!(out, "loadgen_latency_seconds_bucket{{le=\"{}\"}} {up_to}", limit.as_secs_f64());
    }
    let _ = writeln!(out, "loadgen_latency_seconds_bucket{{le=\"+Inf\"}} {count}");
    let _ = writeln!(out, "loadgen_latency_seconds_count {count}");
    let _ = writeln!(out, "loadgen_latency_seconds_sum {:.6}", latencies.sum().as_secs_f64());
    let mut each =
        |name: &str, kind: &str, about: &str, samples: &dyn Fn(&OfEndpoint) -> Vec<(String, f64)>| {
            let name = format!("loadgen_endpoint_{name}");
            let _ = writeln!(out, "# HELP {name} {about}, by endpoint.\n# TYPE {name} {kind}");
            for of in endpoints {
                for (label, value) in samples(of) {
                    let _ = writeln!(out, "{name}{{endpoint=\"{}\"{label}}} {value}", of.endpoint);
                }
            }
        };
    let one = |value: f64| vec![(String::new(), value)];
    each("requests_total", "counter", "Requests that were answered", &|of| one(of.answered as f64));
    each("failures_total", "counter", "Calls that failed", &|of| {
        of.failures.iter().map(|(code, count)| (format!(",code=\"{code}\""), *count as f64)).collect()
    });
    each("in_flight", "gauge", "Requests without a reply", &|of| one(of.waiting.in_flight as f64));
    each("oldest_wait_seconds", "gauge", "How long the oldest of them has waited", &|of| {
        one(oldest(&of.waiting))
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::failure::Code;
    use std::collections::BTreeMap;

    #[tokio::test]
    async fn metrics_are_served_and_nothing_else() {
        let exporter = Exporter::listen("127.0.0.1:0").await.unwrap();
        let mut latencies = StepCounts::default();
        for micros in [100, 100, 90_000] {
            latencies.add(micros * 1000);
        }
        let waiting = WaitingCalls { in_flight: 4, overdue: 5, oldest: Some(Duration::from_secs(2)) };
        let passed = Duration::from_secs(5);
        let progress = RunProgress { answered: 3, failed: 2, waiting, passed, ..RunProgress::default() };
        let endpoint = OfEndpoint {
            endpoint: "a:1".parse().unwrap(),
            answered: 3,
            failures: BTreeMap::from([(Code::UNAVAILABLE, 2)]),
            waiting,
            latencies: latencies.clone(),
        };
        *exporter.text.lock().unwrap() = text(&progress, &latencies, &[endpoint]);
        let ask = async |path: &str| {
            let mut stream = TcpStream::connect(exporter.address()).await.unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answer = ask("/metrics").await;
        for line in [
            "loadgen_requests_total 3",
            "loadgen_failures_total 2",
            "latency_seconds_count 3",
            "loadgen_in_flight 4",
            "loadgen_overdue 5",
            "loadgen_oldest_wait_seconds 3.000000",
            "loadgen_endpoint_requests_total{endpoint=\"a:1\"} 3",
            "loadgen_endpoint_failures_total{endpoint=\"a:1\",code=\"Unavailable\"} 2",
            "loadgen_endpoint_in_flight{endpoint=\"a:1\"} 4",
            "loadgen_endpoint_oldest_wait_seconds{endpoint=\"a:1\"} 3",
        ] {
            assert!(answer.contains(line), "{line}: {answer}");
        }
        let count = |le: f64| {
            let buckets = answer.lines().filter_map(|line| line.split_once("bucket{le=\""));
            let of = |(_, rest): (&str, &str)| {
                let (limit, count) = rest.split_once("\"} ")?;
                Some((limit.parse::<f64>().ok()?, count.parse::<u64>().ok()?))
            };
            buckets.filter_map(of).find(|(limit, _)| *limit >= le).map(|(_, count)| count)
        };
        assert_eq!((count(50e-6), count(100e-6), count(0.1)), (Some(0), Some(2), Some(3)));
        assert!(ask("/").await.starts_with("HTTP/1.1 404"));
        assert!(ask("/metricsx").await.starts_with("HTTP/1.1 404"));
        assert!(ask("/metrics?name[]=loadgen_in_flight").await.starts_with("HTTP/1.1 200"));
        // A probe, like a load balancer sends it.
        let mut stream = TcpStream::connect(exporter.address()).await.unwrap();
        stream.write_all(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut head = String::new();
        stream.read_to_string(&mut head).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    }
}
