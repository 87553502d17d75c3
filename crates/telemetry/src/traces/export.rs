//! Export of span batches to the collector.
//!
//! A task takes spans from the queue. It sends a batch when it has [`BATCH_SPANS_MAX`], or [`BATCH_INTERVAL`]
//! after the first. A batch that is not accepted within [`EXPORT_TIMEOUT`] is lost, even if a response has
//! started.

use std::future::Future;
use std::sync::mpsc as blocking;
use std::time::Duration;

use http::uri::PathAndQuery;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::otlp::{self, ExportRequest, ExportResponse, KeyValue, Resource, Scope, Span};

/// Capacity of the queue, usually less than 1 MiB. Excess spans are dropped.
const QUEUE_SPANS_MAX: usize = 2048;
const BATCH_SPANS_MAX: usize = 512;
const BATCH_INTERVAL: Duration = Duration::from_secs(5);
/// The default timeout of OTLP clients. Includes connecting.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The scope of the spans.
const SCOPE: &str = "kv-server";

/// Receives whether the last batches were accepted.
type Closed = blocking::Sender<bool>;

/// The queue of spans, and the task that sends them.
#[derive(Debug)]
pub struct Exporter {
    queue: mpsc::Sender<Span>,
    close: Mutex<Option<oneshot::Sender<Closed>>>,
}

impl Exporter {
    /// Starts the task in the current runtime, for a resource with these attributes. It connects when it has
    /// spans.
    pub fn start(address: &str, attributes: Vec<KeyValue>) -> Result<Exporter, tonic::transport::Error> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
        let collector = Collector { channel, resource: Resource { attributes }, is_failing: false };
        let (queue, spans) = mpsc::channel(QUEUE_SPANS_MAX);
        let (close, closing) = oneshot::channel();
        tokio::spawn(run(collector, spans, closing));
        Ok(Exporter { queue, close: Mutex::new(Some(close)) })
    }

    /// Queues a completed span, unless the queue is full.
    pub fn send(&self, span: Span) {
        let _dropped = self.queue.try_send(span);
    }

    /// Sends the queued spans and stops. Reports whether all were accepted within `limit`.
    pub fn close(&self, limit: Duration) -> bool {
        let Some(close) = self.close.lock().take() else { return true };
        let (closed, result) = blocking::channel();
        close.send(closed).is_ok() && result.recv_timeout(limit).unwrap_or(false)
    }
}

async fn run(
    mut collector: Collector,
    mut spans: mpsc::Receiver<Span>,
    mut closing: oneshot::Receiver<Closed>,
) {
    let mut batch = Vec::new();
    let closed = loop {
        tokio::select! {
            biased;
            closed = &mut closing => break closed,
            () = fill(&mut spans, &mut batch) => {
                collector.export(std::mem::take(&mut batch)).await;
            }
        }
    };
    let Ok(closed) = closed else { return };
    spans.close();
    let mut is_accepted = true;
    while spans.recv_many(&mut batch, BATCH_SPANS_MAX).await > 0 || !batch.is_empty() {
        is_accepted &= collector.export(std::mem::take(&mut batch)).await;
    }
    let _gone = closed.send(is_accepted);
}

/// Waits for a batch. Spans are in `batch` also if the future is dropped.
async fn fill(spans: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
    spans.recv_many(batch, BATCH_SPANS_MAX).await;
    let deadline = Instant::now() + BATCH_INTERVAL;
    while batch.len() < BATCH_SPANS_MAX {
        let free = BATCH_SPANS_MAX - batch.len();
        if timeout_at(deadline, spans.recv_many(batch, free)).await.unwrap_or(0) == 0 {
            return;
        }
    }
}

/// Connection to the collector. Logs when the collector starts and stops failing.
struct Collector {
    channel: Channel,
    resource: Resource,
    is_failing: bool,
}

impl Collector {
    /// Sends a batch. Reports whether it was accepted.
    async fn export(&mut self, spans: Vec<Span>) -> bool {
        let mut client = Grpc::new(self.channel.clone());
        let scope = Some(Scope { name: SCOPE.to_owned() });
        let scope_spans = vec![otlp::ScopeSpans { scope, spans }];
        let resource = Some(self.resource.clone());
        let resource_spans = vec![otlp::ResourceSpans { resource, scope_spans }];
        let sending = async {
            client.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let request = Request::new(ExportRequest { resource_spans });
            let codec = ProstCodec::<ExportRequest, ExportResponse>::default();
            client.unary(request, PathAndQuery::from_static(otlp::PATH), codec).await.map(drop)
        };
        let result = within_timeout(sending).await;
        self.note(&result);
        result.is_ok()
    }

    fn note(&mut self, result: &Result<(), Status>) {
        match result {
            Ok(()) if self.is_failing => tracing::info!("the collector takes traces again"),
            Err(error) if !self.is_failing => {
                tracing::warn!(%error, "the collector takes no traces; those that are due are lost");
            }
            Ok(()) | Err(_) => {}
        }
        self.is_failing = result.is_err();
    }
}

async fn within_timeout(sending: impl Future<Output = Result<(), Status>>) -> Result<(), Status> {
    let late = |_| Err(Status::deadline_exceeded(format!("no response within {EXPORT_TIMEOUT:?}")));
    timeout(EXPORT_TIMEOUT, sending).await.unwrap_or_else(late)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_export_without_a_complete_response_times_out() {
        let start = Instant::now();
        let result = within_timeout(std::future::pending()).await;
        assert_eq!(result.unwrap_err().code(), tonic::Code::DeadlineExceeded);
        assert_eq!(start.elapsed(), EXPORT_TIMEOUT);
        within_timeout(std::future::ready(Ok(()))).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_full_or_as_old_as_its_interval() {
        let (queue, mut spans) = mpsc::channel(QUEUE_SPANS_MAX);
        for _ in 0..=BATCH_SPANS_MAX {
            queue.try_send(Span::default()).unwrap();
        }
        let (start, mut batch) = (Instant::now(), Vec::new());
        fill(&mut spans, &mut batch).await;
        assert_eq!((batch.len(), start.elapsed()), (BATCH_SPANS_MAX, Duration::ZERO));
        batch.clear();
        fill(&mut spans, &mut batch).await;
        assert_eq!((batch.len(), start.elapsed()), (1, BATCH_INTERVAL));
    }
}
