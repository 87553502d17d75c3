//! gRPC calls, counted by method and by how they ended.
//!
//! A method has all its series from the start, as etcd's have: a rate over a series that appears with its first
//! error would miss that error. Those of locks and elections appear with the first call, as etcd's do.

use std::sync::atomic::{AtomicU64, Ordering};

use api::{CODE_NAMES, Kind, Method};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use tonic::Code;

/// One row of counters per method.
#[derive(Debug)]
pub struct CallMetrics {
    pub(super) rows: Vec<Row>,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Row {
    pub(super) started: AtomicU64,
    pub(super) handled: [AtomicU64; CODE_NAMES.len()],
    received: AtomicU64,
    sent: AtomicU64,
}

impl Default for CallMetrics {
    fn default() -> Self {
        let rows = Method::ALL.iter().map(|_| Row::default()).collect();
        CallMetrics { rows, received_bytes: AtomicU64::new(0), sent_bytes: AtomicU64::new(0) }
    }
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl CallMetrics {
    pub(crate) fn started(&self, method: Method) {
        add(&self.rows[method.number()].started, 1);
    }

    pub(crate) fn handled(&self, method: Method, code: Code) {
        add(&self.rows[method.number()].handled[code as usize], 1);
    }

    /// One message of `bytes` came in.
    pub(crate) fn received(&self, method: Method, bytes: usize) {
        add(&self.rows[method.number()].received, 1);
        add(&self.received_bytes, bytes);
    }

    /// One message of `bytes` went out.
    pub(crate) fn sent(&self, method: Method, bytes: usize) {
        add(&self.rows[method.number()].sent, 1);
        add(&self.sent_bytes, bytes);
    }

    /// Bytes of messages went out, and so many messages began in them.
    pub(crate) fn sent_many(&self, method: Method, messages: usize, bytes: usize) {
        add(&self.rows[method.number()].sent, messages);
        add(&self.sent_bytes, bytes);
    }

    /// The methods whose series are shown.
    fn shown(&self) -> impl Iterator<Item = (Method, &Row)> {
        let all = Method::ALL.iter().copied().zip(&self.rows);
        all.filter(|(method, row)| is_shown_unused(*method) || row.started.load(Ordering::Relaxed) > 0)
    }

    /// Shows the rows.
    pub(super) fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let totals = [
            (
                "etcd_network_client_grpc_received_bytes",
                "Bytes of gRPC messages from clients",
                &self.received_bytes,
            ),
            ("etcd_network_client_grpc_sent_bytes", "Bytes of gRPC messages to clients", &self.sent_bytes),
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
            for (method, row) in self.shown() {
                let counter = ConstCounter::new(pick(row).load(Ordering::Relaxed));
                counter.encode(family.encode_family(&labels(method))?)?;
            }
        }
        let mut family =
            encoder.encode_descriptor("grpc_server_handled", "Calls ended", None, MetricType::Counter)?;
        for (method, row) in self.shown() {
            for (code, counter) in CODE_NAMES.iter().zip(&row.handled) {
                let counter = ConstCounter::new(counter.load(Ordering::Relaxed));
                counter.encode(family.encode_family(&labels_with(method, code))?)?;
            }
        }
        Ok(())
    }
}

/// Whether etcd shows the series of a method that was never called.
fn is_shown_unused(method: Method) -> bool {
    !matches!(method.service(), "v3lockpb.Lock" | "v3electionpb.Election")
}

fn labels(method: Method) -> [(&'static str, &'static str); 3] {
    let kind = match method.kind() {
        Kind::Unary => "unary",
        Kind::ClientStream => "client_stream",
        Kind::ServerStream => "server_stream",
        Kind::BidiStream => "bidi_stream",
    };
    [("grpc_type", kind), ("grpc_service", method.service()), ("grpc_method", method.name())]
}

fn labels_with(method: Method, code: &'static str) -> [(&'static str, &'static str); 4] {
    let [kind, service, name] = labels(method);
    [kind, service, name, ("grpc_code", code)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_and_elections_are_shown_once_they_were_called() {
        let metrics = CallMetrics::default();
        let shown = |metrics: &CallMetrics| metrics.shown().count();
        assert_eq!(shown(&metrics), 45);
        metrics.started(Method::Lock);
        metrics.started(Method::KvPut);
        assert_eq!(shown(&metrics), 46);
    }
}
