//! State shared by the handlers, query parameters, and responses.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};

use super::gateway::Gateway;
use crate::member::Member;
use crate::shared_evaluation::SharedEvaluation;
use crate::status::StatusSource;
use telemetry::metrics::Exposition;

/// State shared by the handlers.
#[derive(Clone)]
pub struct Http {
    pub member: Arc<Member>,
    pub linearizable: Arc<LinearizableRead>,
    pub metrics: Arc<MetricsPage>,
    pub status: StatusSource,
    /// Set on client ports, with `--enable-grpc-gateway`.
    pub gateway: Option<Gateway>,
    /// True if `/debug/pprof/` is served.
    pub enable_pprof: bool,
}

/// The linearizable read of health checks. Without a quorum it takes seconds while probes keep arriving;
/// waiting probes share one read.
pub struct LinearizableRead {
    member: Arc<Member>,
    running: SharedEvaluation<Result<(), String>>,
}

impl LinearizableRead {
    pub fn new(member: Arc<Member>) -> LinearizableRead {
        LinearizableRead { member, running: SharedEvaluation::default() }
    }

    /// Reports whether this member can perform a linearizable read, with the reason if it cannot.
    pub(super) async fn check(&self) -> Result<(), String> {
        let start = || {
            let member = Arc::clone(&self.member);
            async move { member.read_point().await.map_err(|error| error.to_string()) }.boxed()
        };
        self.running.join(start).await
    }
}

/// The metrics as text. Concurrent requests share one rendering, which runs on a blocking thread: a client
/// may send thousands of requests, and disconnect.
pub struct MetricsPage {
    exposition: Arc<Exposition>,
    /// The latest rendering and its start.
    last: Arc<tokio::sync::Mutex<Option<(Instant, Bytes)>>>,
}

impl MetricsPage {
    pub fn new(exposition: Exposition) -> MetricsPage {
        MetricsPage { exposition: Arc::new(exposition), last: Arc::default() }
    }

    /// Returns metrics rendered after the call. None while the process stops.
    pub(super) async fn text(&self) -> Option<Bytes> {
        let asked = Instant::now();
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some((began, text)) = &*last
            && *began > asked
        {
            return Some(text.clone());
        }
        let exposition = Arc::clone(&self.exposition);
        // Holds the lock until it finishes, even if its request is cancelled, so that the next request does
        // not start a second rendering.
        let rendering = move || {
            let (began, text) = (Instant::now(), Bytes::from(exposition.text()));
            *last = Some((began, text.clone()));
            text
        };
        tokio::task::spawn_blocking(rendering).await.ok()
    }
}

pub(super) fn not_found() -> Response {
    plain(StatusCode::NOT_FOUND, "404 page not found")
}

/// Returns plain text without content sniffing, like Go's error responses.
pub(super) fn plain(status: StatusCode, text: &str) -> Response {
    let mut answer = response(status, "text/plain; charset=utf-8", format!("{text}\n"));
    answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

pub(super) fn response(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Returns the values of a parameter that may be repeated, without their escapes.
pub(super) fn query_values<'a>(query: Option<&'a str>, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    pairs.filter_map(move |(key, value)| (key == name).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::DescriptorEncoder;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use telemetry::metrics::Metrics;

    /// Counts renderings, which wait for the lock.
    #[derive(Clone, Debug, Default)]
    struct CountedRenderings(Arc<AtomicUsize>, Arc<Mutex<()>>);

    impl Collector for CountedRenderings {
        fn encode(&self, _: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            drop(self.1.lock());
            Ok(())
        }
    }

    #[tokio::test]
    async fn those_who_ask_for_metrics_at_once_share_a_rendering_made_after_they_asked() {
        let renderings = CountedRenderings::default();
        let parts = Box::new(renderings.clone());
        let page = MetricsPage::new(Exposition::new(&Arc::new(Metrics::default()), parts));
        let count = || renderings.0.load(Ordering::Relaxed);
        for wanted in 1..=3 {
            page.text().await.unwrap();
            assert_eq!(count(), wanted, "one that was made before is not shown");
        }
        let under_way = renderings.1.lock();
        let asking = (0..1000).map(|_| page.text());
        let mut asking = Box::pin(tokio::task::unconstrained(futures_util::future::join_all(asking)));
        assert!((&mut asking).now_or_never().is_none());
        drop(under_way);
        let texts: Vec<Bytes> = asking.await.into_iter().flatten().collect();
        let places: BTreeSet<_> = texts.iter().map(|text| text.as_ptr()).collect();
        // Some requests may have arrived after the first rendering started.
        assert!(texts.len() == 1000 && places.len() <= 2 && count() <= 5, "no copies");

        // Cancelled requests share one rendering, too.
        let (before, under_way) = (count(), renderings.1.lock());
        for _ in 0..1000 {
            assert!(page.text().now_or_never().is_none());
        }
        drop(under_way);
        page.text().await.unwrap();
        assert!(count() <= before + 2);
    }

    #[test]
    fn a_parameter_may_come_more_than_once_or_without_a_value() {
        let values = |query| query_values(query, "x").collect::<Vec<_>>();
        assert_eq!(values(Some("x=1&y=2&x=3")), ["1", "3"]);
        assert_eq!(values(Some("x")), [""]);
        assert_eq!(values(Some("%78=a%5Fb+c")), ["a_b c"]);
        assert_eq!(values(Some("xx=1")), [""; 0]);
        assert_eq!(values(None), [""; 0]);
    }
}
