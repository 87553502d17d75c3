//! gRPC calls, counted by method and by how they ended, wrapped around whatever answers them.
//!
//! * Every method has all its series from the start, as etcd's have: a rate over a series that appears with its
//!   first error would miss that error.
//! * A call whose client went away before its end counts as `Canceled`.

mod methods; // the table of methods
mod streams; // calls that tonic answers

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use tonic::{Code, Status};

use crate::front::{Answer, HotMethods, LongAnswer, PREFIX_BYTES, Part};
use crate::metrics::Metrics;
use api::CODE_NAMES;
use methods::METHODS;
use std::sync::Arc;
pub use streams::CountedServices;

/// One row of counters per method.
#[derive(Debug)]
pub struct CallMetrics {
    rows: Vec<Row>,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Row {
    started: AtomicU64,
    handled: [AtomicU64; CODE_NAMES.len()],
    received: AtomicU64,
    sent: AtomicU64,
}

/// Index of a method's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MethodId(usize);

impl Default for CallMetrics {
    fn default() -> Self {
        let rows = METHODS.iter().map(|_| Row::default()).collect();
        CallMetrics { rows, received_bytes: AtomicU64::new(0), sent_bytes: AtomicU64::new(0) }
    }
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl CallMetrics {
    fn find(path: &str) -> Option<MethodId> {
        let (service, name) = path.strip_prefix('/')?.split_once('/')?;
        METHODS.iter().position(|method| method.name == name && method.service == service).map(MethodId)
    }

    fn started(&self, id: MethodId) {
        add(&self.rows[id.0].started, 1);
    }

    fn handled(&self, id: MethodId, code: Code) {
        add(&self.rows[id.0].handled[code as usize], 1);
    }

    /// One message of `bytes` came in.
    fn received(&self, id: MethodId, bytes: usize) {
        add(&self.rows[id.0].received, 1);
        add(&self.received_bytes, bytes);
    }

    /// One message of `bytes` went out.
    fn sent(&self, id: MethodId, bytes: usize) {
        add(&self.rows[id.0].sent, 1);
        add(&self.sent_bytes, bytes);
    }
}

/// A call that has begun; its end is counted once, however it ends.
struct Call {
    metrics: Arc<Metrics>,
    id: MethodId,
    ended: bool,
}

impl Call {
    fn begin(metrics: &Arc<Metrics>, id: MethodId) -> Call {
        metrics.calls.started(id);
        Call { metrics: Arc::clone(metrics), id, ended: false }
    }

    fn end(&mut self, code: Code) {
        if !std::mem::replace(&mut self.ended, true) {
            self.metrics.calls.handled(self.id, code);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

/// Hot methods with their calls counted.
#[derive(Clone)]
pub struct CountedHot<H> {
    inner: H,
    metrics: Arc<Metrics>,
}

impl<H> CountedHot<H> {
    pub fn new(inner: H, metrics: Arc<Metrics>) -> Self {
        CountedHot { inner, metrics }
    }
}

/// A hot method of the inner service and where its counters are.
#[derive(Clone, Copy, Debug)]
pub struct CountedMethod<M> {
    inner: M,
    id: MethodId,
}

impl<H: HotMethods + Sync> HotMethods for CountedHot<H>
where
    H::Method: Sync,
{
    type Method = CountedMethod<H::Method>;
    type Long = CountedLong<H::Long>;

    fn find(&self, path: &str) -> Option<Self::Method> {
        let inner = self.inner.find(path)?;
        Some(CountedMethod { inner, id: CallMetrics::find(path)? })
    }

    async fn call(
        &self,
        method: Self::Method,
        headers: HeaderMap,
        message: Bytes,
    ) -> Result<Answer<Self::Long>, Status> {
        let mut call = Call::begin(&self.metrics, method.id);
        self.metrics.calls.received(method.id, message.len());
        match self.inner.call(method.inner, headers, message).await {
            Ok(Answer::Whole(bytes)) => {
                self.metrics.calls.sent(method.id, bytes.len().saturating_sub(PREFIX_BYTES));
                call.end(Code::Ok);
                Ok(Answer::Whole(bytes))
            }
            Ok(Answer::Long(inner)) => Ok(Answer::Long(CountedLong { inner, call, bytes: 0 })),
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
    call: Call,
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
                self.call.metrics.calls.sent(self.call.id, bytes.saturating_sub(PREFIX_BYTES));
                self.call.end(Code::Ok);
            }
            Ok(_) => {}
            Err(status) => self.call.end(status.code()),
        }
        part
    }
}

/// Shows the rows to whoever scrapes.
#[derive(Debug)]
pub(super) struct CallCollector(pub Arc<Metrics>);

impl Collector for CallCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let calls = &self.0.calls;
        let totals = [
            (
                "etcd_network_client_grpc_received_bytes",
                "Bytes of gRPC messages from clients",
                &calls.received_bytes,
            ),
            ("etcd_network_client_grpc_sent_bytes", "Bytes of gRPC messages to clients", &calls.sent_bytes),
        ];
        for (name, help, counter) in totals {
            let counter = ConstCounter::new(counter.load(Ordering::Relaxed));
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        type Pick = fn(&Row) -> &AtomicU64;
        let families: [(&str, &str, Pick); 3] = [
            ("grpc_server_started", "Calls begun", |row| &row.started),
            ("grpc_server_msg_received", "Messages received", |row| &row.received),
            ("grpc_server_msg_sent", "Messages sent", |row| &row.sent),
        ];
        for (name, help, pick) in families {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (method, row) in METHODS.iter().zip(&calls.rows) {
                let counter = ConstCounter::new(pick(row).load(Ordering::Relaxed));
                counter.encode(family.encode_family(&method.labels())?)?;
            }
        }
        let mut family =
            encoder.encode_descriptor("grpc_server_handled", "Calls ended", None, MetricType::Counter)?;
        for (method, row) in METHODS.iter().zip(&calls.rows) {
            for (code, counter) in CODE_NAMES.iter().zip(&row.handled) {
                let counter = ConstCounter::new(counter.load(Ordering::Relaxed));
                counter.encode(family.encode_family(&method.labels_with(code))?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_finds_its_method() {
        let id = CallMetrics::find("/etcdserverpb.KV/Put").unwrap();
        assert_eq!((METHODS[id.0].service, METHODS[id.0].name), ("etcdserverpb.KV", "Put"));
        for path in ["/etcdserverpb.KV/Nothing", "etcdserverpb.KV/Put", "/", ""] {
            assert_eq!(CallMetrics::find(path), None, "{path}");
        }
    }

    #[test]
    fn a_call_ends_once() {
        let metrics = Arc::new(Metrics::default());
        let id = CallMetrics::find("/etcdserverpb.KV/Put").unwrap();
        let mut call = Call::begin(&metrics, id);
        call.end(Code::Ok);
        drop(call);
        drop(Call::begin(&metrics, id));
        let row = &metrics.calls.rows[id.0];
        let handled = |code: Code| row.handled[code as usize].load(Ordering::Relaxed);
        assert_eq!(
            (row.started.load(Ordering::Relaxed), handled(Code::Ok), handled(Code::Cancelled)),
            (2, 1, 1)
        );
    }
}
