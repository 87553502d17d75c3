//! How far the archive is, for Prometheus.

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

type Seconds = Gauge<f64, AtomicU64>;

/// Counters and gauges of one archiver.
pub struct Metrics {
    registry: Registry,
    /// Durable at the place.
    pub revision: Gauge<i64, AtomicI64>,
    /// Of the cluster, when it last answered.
    pub head: Gauge<i64, AtomicI64>,
    pub behind_revisions: Gauge<i64, AtomicI64>,
    /// Since the archive last had all that the cluster had.
    pub behind_seconds: Seconds,
    pub base_revision: Gauge<i64, AtomicI64>,
    pub base_time: Seconds,
    pub bases: Counter,
    pub segments: Counter,
    pub bytes: Counter,
    pub gaps: Counter,
    pub failures: Counter,
}

impl Metrics {
    pub fn new() -> Arc<Metrics> {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("kv_archive"),
            revision: Gauge::default(),
            head: Gauge::default(),
            behind_revisions: Gauge::default(),
            behind_seconds: Gauge::default(),
            base_revision: Gauge::default(),
            base_time: Gauge::default(),
            bases: Counter::default(),
            segments: Counter::default(),
            bytes: Counter::default(),
            gaps: Counter::default(),
            failures: Counter::default(),
        };
        metrics.register();
        Arc::new(metrics)
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("revision", "Newest archived revision", self.revision.clone());
        registry.register(
            "head_revision",
            "Revision of the cluster when it last answered",
            self.head.clone(),
        );
        registry.register(
            "behind_revisions",
            "Revisions of the cluster that are not archived",
            self.behind_revisions.clone(),
        );
        registry.register(
            "behind_seconds",
            "Seconds since the archive last had all revisions of the cluster",
            self.behind_seconds.clone(),
        );
        registry.register("base_revision", "Revision of the newest base", self.base_revision.clone());
        registry.register("base_time_seconds", "When it was taken, since 1970", self.base_time.clone());
        registry.register("bases", "Bases that were written", self.bases.clone());
        registry.register("segments", "Segments that were written", self.segments.clone());
        registry.register("bytes", "Bytes of bases and segments that were written", self.bytes.clone());
        registry.register(
            "gaps",
            "Times when revisions were compacted before they were archived",
            self.gaps.clone(),
        );
        registry.register(
            "failures",
            "Failed calls of the cluster and writes to the archive",
            self.failures.clone(),
        );
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        let _strings_do_not_fail = encode(&mut text, &self.registry);
        text
    }
}

/// Serves `/metrics` at the address, as long as the runtime runs. Returns where.
pub async fn serve(metrics: Arc<Metrics>, address: SocketAddr) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let router = Router::new().route("/metrics", get(move || async move { metrics.text() }));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(bound)
}
