//! Counts calls that are streams both ways.

use std::sync::Arc;

use api::Method;
use http::HeaderMap;
use tonic::Status;

use auth::Origin;
use grpc_server::client_port::PerConnection;
use grpc_server::http2::{MessageObserver, Replies, Requests, StreamMethods};
use telemetry::metrics::{CallInProgress, Metrics};
use telemetry::traces::CallSpan;

/// Streams with their calls and messages counted.
#[derive(Clone)]
pub struct CountedStreams<T> {
    inner: T,
    metrics: Arc<Metrics>,
}

impl<T> CountedStreams<T> {
    pub fn new(inner: T, metrics: Arc<Metrics>) -> Self {
        CountedStreams { inner, metrics }
    }
}

impl<T: PerConnection> PerConnection for CountedStreams<T> {
    fn of(&self, origin: &Origin) -> Self {
        CountedStreams { inner: self.inner.of(origin), metrics: Arc::clone(&self.metrics) }
    }
}

/// A call of the inner methods and where its counters are.
#[derive(Debug)]
pub struct CountedCall<C> {
    inner: C,
    method: Method,
    span: Option<Arc<CallSpan>>,
}

impl<T: StreamMethods + Sync> StreamMethods for CountedStreams<T> {
    type Call = CountedCall<T::Call>;

    fn find(&self, path: &str, headers: &HeaderMap) -> Option<Self::Call> {
        let inner = self.inner.find(path, headers)?;
        let method = Method::of_path(path)?;
        Some(CountedCall { inner, method, span: self.metrics.traces.begin(method, headers) })
    }

    async fn serve(
        &self,
        CountedCall { inner, method, span }: Self::Call,
        mut requests: Requests,
        mut replies: Replies,
    ) -> Status {
        let mut call = CallInProgress::begin(&self.metrics, method, span);
        let messages = Arc::new(Messages { metrics: Arc::clone(&self.metrics), method });
        requests.observed_by(Arc::clone(&messages) as Arc<dyn MessageObserver>);
        replies.observed_by(messages);
        let status = self.inner.serve(inner, requests, replies).await;
        call.end(status.code());
        status
    }
}

/// The messages of one call.
struct Messages {
    metrics: Arc<Metrics>,
    method: Method,
}

impl MessageObserver for Messages {
    fn received(&self, bytes: usize) {
        self.metrics.calls.received(self.method, bytes);
    }

    fn sent(&self, messages: usize, bytes: usize) {
        self.metrics.calls.sent_many(self.method, messages, bytes);
    }
}
