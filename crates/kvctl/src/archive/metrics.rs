//! Prometheus metrics of an archiver.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};

use axum::Router;
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use grpc_server::metrics_port::{self, Routers};
use process::shutdown::Stop;
use transport::wire::Listener;

type Seconds = Gauge<f64, AtomicU64>;

telemetry::declare_metrics! {
    /// Counters and gauges of an archiver.
    pub struct ArchiveMetrics {
        revision: Gauge<i64, AtomicI64> => "revision", "Latest archived revision";
        head: Gauge<i64, AtomicI64> => "head_revision", "Revision of the cluster at its last response";
        behind_revisions: Gauge<i64, AtomicI64>
            => "behind_revisions", "Revisions of the cluster that are not archived";
        behind_seconds: Seconds
            => "behind_seconds", "Seconds since the archive last had all revisions of the cluster";
        base_revision: Gauge<i64, AtomicI64> => "base_revision", "Revision of the latest base";
        base_time: Seconds => "base_time_seconds", "Unix time when it was taken";
        bases: Counter => "bases", "Bases written";
        segments: Counter => "segments", "Segments written";
        bytes: Counter => "bytes", "Bytes written in bases and segments";
        gaps: Counter => "gaps", "Times when revisions were compacted before they were archived";
        failures: Counter => "failures", "Failed requests to the cluster and failed archive writes";
    }
}

impl ArchiveMetrics {
    pub fn text(&self) -> String {
        let (mut registry, mut text) = (Registry::with_prefix("kv_archive"), String::new());
        self.register(&mut registry);
        let _strings_do_not_fail = encode(&mut text, &registry);
        text
    }
}

/// Serves `/metrics` until `stop`. Returns the bound address.
pub async fn serve(
    metrics: Arc<ArchiveMetrics>,
    address: SocketAddr,
    stop: &Stop,
) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let router = Router::new().route("/metrics", get(move || async move { metrics.text() }));
    let routers = Routers { plain: router.clone(), secure: router };
    metrics_port::serve(vec![(Listener::Tcp(listener), None)], &routers, stop);
    Ok(bound)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use process::shutdown;

    /// Every metric has a descriptor.
    #[tokio::test]
    async fn connections_that_say_nothing_are_closed_and_keep_no_scrape_out() {
        let (_stopper, stop) = shutdown::stop();
        let address = serve(Arc::default(), "127.0.0.1:0".parse().unwrap(), &stop).await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let closed = async {
            let mut scraper = TcpStream::connect(address).await.unwrap();
            scraper
                .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                .await
                .unwrap();
            let mut answer = String::new();
            scraper.read_to_string(&mut answer).await.unwrap();
            assert!(answer.contains("kv_archive_revision 0\n"), "{answer}");
            for mut stream in silent {
                let _closed = stream.read(&mut [0; 256]).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), closed).await.expect("all are closed");
    }
}
