//! The load of a row: requests, number of clients, target members.

use crate::metric::Middle;
use serde::{Deserialize, Serialize};

pub const READ_KEY: &str = "key";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowSpec {
    pub operation: RowOperation,
    pub protocol: RowProtocol,
    pub key_bytes: usize,
    pub value_bytes: usize,
    /// Distinct keys that the row writes; 1 for rows that read.
    pub keys: u64,
    /// Variation of the written values.
    #[serde(default)]
    pub values: Values,
    pub conns: usize,
    /// Endpoints of each connection object.
    #[serde(default)]
    pub connect: Connect,
    pub clients: usize,
    pub target: RowTarget,
    pub members: usize,
    pub total_published: u64,
    /// Total of each round here, after `--scale`.
    pub total: u64,
    pub rounds: usize,
    /// Published rounds; `None` if unknown.
    #[serde(default)]
    pub rounds_published: Option<usize>,
    /// Published statistic over the rounds.
    #[serde(default)]
    pub rounds_as: Middle,
    /// Uncounted requests before the first round.
    pub warm_up_total: u64,
    /// Published warm-up; 0 if unknown.
    #[serde(default)]
    pub warm_up_published: u64,
    /// Intended requests per second of an open loop.
    pub rate: Option<f64>,
    /// Watch streams that are open during the row, and watchers on each. A row that measures events awaits
    /// the events of its puts; in other rows the watched key does not change.
    #[serde(default)]
    pub streams: usize,
    #[serde(default)]
    pub watchers_per_stream: usize,
    /// Position of the row in a plot, if it is a point of a sweep.
    pub sweep: Option<Sweep>,
}

/// Variation of the values in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Values {
    /// All values are equal, like in etcd's tool: random bytes, chosen once. They compress well.
    #[default]
    Same,
    /// Random bytes for each key, constant per key. They do not compress.
    PerKey,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Connect {
    /// All endpoints, with calls distributed round-robin, like in etcd's clients since 3.4.
    #[default]
    All,
    /// A single endpoint, round-robin by object, like in the tools of older write-ups.
    One,
}

impl RowSpec {
    /// Returns the key that read rows read, with the published length.
    pub fn read_key(&self) -> String {
        format!("{READ_KEY:0<0$}", self.key_bytes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowOperation {
    Put,
    TxnPut,
    RangeLinearizable,
    RangeSerializable,
    /// A range or a put in each transaction.
    TxnMixed,
    #[serde(rename = "lease-keepalive")]
    LeaseKeepAlive,
    /// A transaction of reads and writes, retried on conflicts.
    Stm,
    /// An event for one watcher, timed from the put of its key.
    Watch,
    /// An event for one watcher, from before the watcher was created.
    WatchHistory,
    /// Several operations, each with a separate row. Not used by suites.
    Mixed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowProtocol {
    Grpc,
    /// HTTP/1.1 with JSON, through the gateway.
    HttpJson,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowTarget {
    Leader,
    All,
    /// Each member separately; write-ups add the throughputs.
    EachSummed,
}

/// A point on a line of a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// Varied parameter with its unit: `clients`, `value bytes`, `requests/s`. There is a plot per axis.
    pub axis: String,
    /// Name of the line: `50 connections`.
    pub line: String,
    pub x: f64,
}
