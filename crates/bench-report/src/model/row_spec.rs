//! The load of a row: what is sent, by how many clients, to which members.

use crate::metric::Middle;
use serde::{Deserialize, Serialize};

/// How the key begins that rows of reads read.
pub const READ_KEY: &str = "key";

/// What a row sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowSpec {
    pub operation: RowOperation,
    pub protocol: RowProtocol,
    pub key_bytes: usize,
    pub value_bytes: usize,
    /// Distinct keys that the row writes; 1 for rows that read.
    pub keys: u64,
    /// How the values that it writes differ.
    #[serde(default)]
    pub values: Values,
    pub conns: usize,
    /// Where each of the connection objects connects to.
    #[serde(default)]
    pub connect: Connect,
    pub clients: usize,
    pub target: RowTarget,
    pub members: usize,
    /// As published.
    pub total_published: u64,
    /// Of each round here, after `--scale`.
    pub total: u64,
    pub rounds: usize,
    /// As published; `None` where unknown.
    #[serde(default)]
    pub rounds_published: Option<usize>,
    /// How the rounds become one figure, as published.
    #[serde(default)]
    pub rounds_as: Middle,
    /// Requests before the first round that are not counted.
    pub warm_up_total: u64,
    /// As published; 0 where unknown.
    #[serde(default)]
    pub warm_up_published: u64,
    /// Open loop: requests per second intended.
    pub rate: Option<f64>,
    /// Watch streams that are open meanwhile, and watchers on each. A row that measures events awaits those
    /// of its puts; with other rows nothing happens to the watched key.
    #[serde(default)]
    pub streams: usize,
    #[serde(default)]
    pub watchers_per_stream: usize,
    /// The place of the row in a plot, where it is a point of a sweep.
    pub sweep: Option<Sweep>,
}

/// How the values of a run differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Values {
    /// All values are equal, as in etcd's tool: random bytes, chosen once. They compress well.
    #[default]
    Same,
    /// Random bytes for each key, always the same for one key. They do not compress.
    PerKey,
}

/// Where a connection object connects to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Connect {
    /// To all endpoints, and its calls go to them in turn, as in etcd's clients since 3.4.
    #[default]
    All,
    /// To one of them, each object to the next one, as in the tools of older write-ups.
    One,
}

impl RowSpec {
    /// The key that a row of reads reads, of the published length.
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
    /// A transaction of reads and writes that is tried again until nothing conflicts.
    Stm,
    /// One event of one watcher, from the put of its key.
    Watch,
    /// One event of one watcher, which existed before the watcher.
    WatchHistory,
    /// Several kinds, each of which has another row. No suite has it.
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
    /// Each member in turn; write-ups add the throughputs.
    EachSummed,
}

/// A point on a line of a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// What varies, with its unit: `clients`, `value bytes`, `requests/s`. One plot per axis.
    pub axis: String,
    /// Which line of the plot: `50 connections`.
    pub line: String,
    pub x: f64,
}
