//! Counts hot calls.

use std::sync::Arc;

use api::Method;
use api::grpc::PREFIX_BYTES;
use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;
use tonic::{Code, Status};

use auth::Origin;
use grpc_server::client_port::PerConnection;
use grpc_server::http2::{HotAnswer, HotMethods, LongAnswer, Part, Room, SendNow};
use telemetry::metrics::{CallInProgress, Metrics, SlowCalls};
use telemetry::traces::CallSpan;

/// Hot methods with their calls counted.
#[derive(Clone)]
pub struct CountedHot<H> {
    inner: H,
    metrics: Arc<Metrics>,
    slow: SlowCalls,
}

impl<H> CountedHot<H> {
    pub fn new(inner: H, metrics: Arc<Metrics>, slow: SlowCalls) -> Self {
        CountedHot { inner, metrics, slow }
    }
}

impl<H: PerConnection> PerConnection for CountedHot<H> {
    fn of(&self, origin: &Origin) -> Self {
        CountedHot {
            inner: self.inner.of(origin),
            metrics: Arc::clone(&self.metrics),
            slow: self.slow.clone(),
        }
    }
}

/// A hot call of the inner service and where its counters are.
#[derive(Debug)]
pub struct CountedCall<C> {
    inner: C,
    method: Method,
    span: Option<Arc<CallSpan>>,
}

impl<H: HotMethods + Sync> HotMethods for CountedHot<H> {
    type Call = CountedCall<H::Call>;
    type Long = CountedLong<H::Long>;

    fn find(&self, path: &str, headers: &HeaderMap, timeout: Option<&[u8]>) -> Option<Self::Call> {
        let inner = self.inner.find(path, headers, timeout)?;
        let method = Method::of_path(path)?;
        Some(CountedCall { inner, method, span: self.metrics.traces.begin(method, headers) })
    }

    fn deadline(call: &Self::Call) -> Option<Instant> {
        H::deadline(&call.inner)
    }

    fn user(call: &Self::Call) -> Option<u64> {
        H::user(&call.inner)
    }

    fn answer_now(&self, call: &Self::Call, message: &Bytes, send: &mut SendNow<'_>) -> bool {
        if call.span.is_some() {
            return false;
        }
        let (began, mut answer_bytes) = (Instant::now(), 0);
        let is_answered = self.inner.answer_now(&call.inner, message, &mut |answer| {
            answer_bytes = answer.len().saturating_sub(PREFIX_BYTES);
            send(answer)
        });
        if is_answered {
            let took = began.elapsed();
            self.metrics.calls.answered(call.method, [message.len(), answer_bytes], took);
            self.slow.ended(call.method, Some(message.len()), took);
        }
        is_answered
    }

    async fn call(
        &self,
        CountedCall { inner, method, span }: Self::Call,
        message: Bytes,
        room: Room<'_>,
    ) -> Result<HotAnswer<Self::Long>, Status> {
        let mut call = CallInProgress::begin(&self.metrics, method, span.clone());
        self.metrics.calls.received(method, message.len());
        let request_bytes = Some(message.len());
        let answering = self.slow.watch(method, request_bytes, span, self.inner.call(inner, message, room));
        match answering.await {
            Ok(HotAnswer::Whole(bytes)) => {
                self.metrics.calls.sent(method, bytes.len().saturating_sub(PREFIX_BYTES));
                call.end(Code::Ok);
                Ok(HotAnswer::Whole(bytes))
            }
            Ok(HotAnswer::Long(inner)) => {
                Ok(HotAnswer::Long(Box::new(CountedLong { inner: *inner, call, bytes: 0 })))
            }
            Err(status) => {
                call.end(status.code());
                Err(status)
            }
        }
    }
}

/// A long answer whose call ends when its last bytes are made.
pub struct CountedLong<L> {
    inner: L,
    call: CallInProgress,
    /// Of the whole message, prefix included; 0 before it has begun.
    bytes: u64,
}

impl<L: LongAnswer> LongAnswer for CountedLong<L> {
    async fn begin(&mut self) -> Result<u64, Status> {
        let begun = self.inner.begin().await;
        match &begun {
            Ok(bytes) => self.bytes = *bytes,
            Err(status) => self.call.end(status.code()),
        }
        begun
    }

    async fn part(&mut self, position: u64) -> Result<Part, Status> {
        let part = self.inner.part(position).await;
        match &part {
            Ok(part) if position + part.len() as u64 == self.bytes => {
                let bytes = usize::try_from(self.bytes).expect("a message is at most 4 GiB");
                self.call.sent(bytes.saturating_sub(PREFIX_BYTES));
                self.call.end(Code::Ok);
            }
            Ok(_) => {}
            Err(status) => self.call.end(status.code()),
        }
        part
    }

    fn unread(&mut self) {
        self.call.end(Code::Cancelled);
        self.inner.unread();
    }
}
