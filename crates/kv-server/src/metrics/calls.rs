//! gRPC calls, counted by method and by how they ended.
//!
//! Every method has all its series from the start, as etcd's have: a rate over a series that appears with its
//! first error would miss that error.

use std::sync::atomic::{AtomicU64, Ordering};

use api::CODE_NAMES;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use tonic::Code;

use super::methods::METHODS;

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

/// Index of a method's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodId(pub(super) usize);

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
    pub(crate) fn find(path: &str) -> Option<MethodId> {
        let (service, name) = path.strip_prefix('/')?.split_once('/')?;
        METHODS.iter().position(|method| method.name == name && method.service == service).map(MethodId)
    }

    pub(crate) fn started(&self, id: MethodId) {
        add(&self.rows[id.0].started, 1);
    }

    pub(crate) fn handled(&self, id: MethodId, code: Code) {
        add(&self.rows[id.0].handled[code as usize], 1);
    }

    /// One message of `bytes` came in.
    pub(crate) fn received(&self, id: MethodId, bytes: usize) {
        add(&self.rows[id.0].received, 1);
        add(&self.received_bytes, bytes);
    }

    /// One message of `bytes` went out.
    pub(crate) fn sent(&self, id: MethodId, bytes: usize) {
        add(&self.rows[id.0].sent, 1);
        add(&self.sent_bytes, bytes);
    }

    /// Bytes of messages went out, and so many messages began in them.
    pub(crate) fn sent_many(&self, id: MethodId, messages: usize, bytes: usize) {
        add(&self.rows[id.0].sent, messages);
        add(&self.sent_bytes, bytes);
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
            for (method, row) in METHODS.iter().zip(&self.rows) {
                let counter = ConstCounter::new(pick(row).load(Ordering::Relaxed));
                counter.encode(family.encode_family(&method.labels())?)?;
            }
        }
        let mut family =
            encoder.encode_descriptor("grpc_server_handled", "Calls ended", None, MetricType::Counter)?;
        for (method, row) in METHODS.iter().zip(&self.rows) {
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
}
