//! A load: the operation, its sizes and keys, the clients, the target and the pace. Flags parse into it,
//! suites and reports store it, and the printed command parses back to it.

use crate::metric::Middle;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

pub const READ_KEY: &str = "key";

/// A load of a single run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    #[serde(flatten)]
    pub operation: Operation,
    #[serde(default)]
    pub protocol: Protocol,
    #[serde(default)]
    pub key_bytes: usize,
    /// Size of each written value; 0 for operations that write none or have their own distribution.
    #[serde(default)]
    pub value_bytes: usize,
    /// Distinct key numbers that it writes; 1 for operations that read.
    #[serde(default = "one")]
    pub keys: u64,
    #[serde(default)]
    pub values: Values,
    #[serde(default)]
    pub order: KeyOrder,
    /// Connection objects.
    pub conns: usize,
    /// Endpoints of each connection object.
    #[serde(default)]
    pub connect: Connect,
    /// Concurrent clients, each with one outstanding request.
    pub clients: usize,
    #[serde(default)]
    pub target: Target,
    /// Number of requests, or of events to read; 0 if the load ends after `seconds`.
    pub total: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(default)]
    pub pace: Pace,
    /// Watch streams that are open during the load, and watchers on each.
    #[serde(default)]
    pub streams: usize,
    #[serde(default)]
    pub watchers_per_stream: usize,
}

fn one() -> u64 {
    1
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "kebab-case", rename_all_fields = "snake_case")]
pub enum Operation {
    Put,
    /// Several puts in each transaction.
    TxnPut {
        ops: usize,
    },
    Range(RangeLoad),
    /// A range over all keys before `end`, or a put, in each transaction.
    TxnMixed {
        end: String,
        limit: i64,
        serializable: bool,
        ranges_per_put: f64,
    },
    #[serde(rename = "lease-keepalive")]
    LeaseKeepAlive,
    /// A transaction of reads and writes, retried on conflicts.
    Stm {
        keys_per_txn: usize,
        write_percent: usize,
        isolation: Isolation,
        locker: Locker,
    },
    /// Events of several watched keys, timed from the puts.
    Watch {
        watched: usize,
    },
    /// Events of one key, timed from the puts and from their replies.
    WatchLatency {
        prev_kv: bool,
    },
    /// Events from before the watcher was created.
    WatchHistory,
    /// Reads of a key while watchers read this many historical events.
    WatchGet {
        events: u64,
    },
    Ycsb(YcsbLoad),
    Kubernetes(KubernetesLoad),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RangeLoad {
    pub key: String,
    pub end: String,
    /// True to read all keys that start with `key`.
    pub prefix: bool,
    pub serializable: bool,
    pub limit: i64,
    pub count_only: bool,
    pub keys_only: bool,
    pub read: ReadAs,
}

/// Calls of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadAs {
    #[default]
    Whole,
    Stream,
    Pages,
}

/// A mix of YCSB, in the syntax of its flags.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct YcsbLoad {
    pub mix: String,
    pub distribution: String,
    pub sizes: String,
    pub records: u64,
    pub skip_load: bool,
    pub scan_max: u64,
    pub serializable: bool,
    pub prefix: String,
}

/// The API servers of a Kubernetes cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KubernetesLoad {
    pub nodes: u64,
    pub pods: u64,
    /// Pods replaced per second.
    pub churn: f64,
    pub api_servers: usize,
    pub prefix: String,
}

/// Conditions of the commit of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// No condition.
    ReadCommitted,
    /// Read keys are unchanged; reads may be of different revisions.
    RepeatableReads,
    /// Read keys are unchanged, and all reads are of the same revision.
    Serializable,
    /// Like `Serializable`, and written keys have not changed since that revision.
    SerializableSnapshot,
}

/// The lock around a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Locker {
    None,
    /// The recipe of etcd's Go client: a key, a lease and a watch.
    Client,
    /// The lock service.
    Rpc,
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
pub enum KeyOrder {
    /// 0, 1, 2, … and again from the start.
    #[default]
    Sequential,
    /// Uniform, with repetition.
    Random,
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    #[default]
    Grpc,
    /// HTTP/1.1 with JSON, through the gateway.
    HttpJson,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    Leader,
    #[default]
    All,
    /// Each member separately; write-ups add the throughputs.
    EachSummed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// No pacing: the next request follows the reply.
    #[default]
    Unlimited,
    /// Maximum rate per second; latency counts from sending.
    AtMost(f64),
    /// Rate per second; latency counts from the intended send time.
    Open(f64),
}

/// How often a load is measured, here and as published.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Method {
    pub members: usize,
    /// Published number of requests.
    pub total_published: u64,
    pub rounds: usize,
    /// Published rounds; `None` if unknown.
    pub rounds_published: Option<usize>,
    /// Published statistic over the rounds.
    pub rounds_as: Middle,
    /// Uncounted requests before the first round.
    pub warm_up_total: u64,
    /// Published warm-up; 0 if unknown.
    pub warm_up_published: u64,
    /// Size of the value that reading rows read.
    pub stored_value_bytes: usize,
    /// Position of the row in a plot, if it is a point of a sweep.
    pub sweep: Option<Sweep>,
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

impl Operation {
    /// Returns the name of the command that sends it.
    pub fn name(&self) -> &'static str {
        match self {
            Operation::Put => "put",
            Operation::TxnPut { .. } => "txn-put",
            Operation::Range(_) => "range",
            Operation::TxnMixed { .. } => "txn-mixed",
            Operation::LeaseKeepAlive => "lease-keepalive",
            Operation::Stm { .. } => "stm",
            Operation::Watch { .. } => "watch",
            Operation::WatchLatency { .. } => "watch-latency",
            Operation::WatchHistory => "watch-history",
            Operation::WatchGet { .. } => "watch-get",
            Operation::Ycsb(_) => "ycsb",
            Operation::Kubernetes(_) => "kubernetes",
        }
    }

    /// Reports whether the store has the keys of the load afterwards.
    pub fn writes(&self) -> bool {
        matches!(self, Operation::Put | Operation::TxnPut { .. })
    }

    pub fn is_range(&self) -> bool {
        matches!(self, Operation::Range(_))
    }

    /// Reports whether the load measures events instead of requests.
    pub fn measures_events(&self) -> bool {
        matches!(self, Operation::Watch { .. } | Operation::WatchLatency { .. } | Operation::WatchHistory)
    }

    /// Reports whether several operations are mixed, each with a separate row.
    pub fn is_mix(&self) -> bool {
        matches!(self, Operation::Ycsb(_) | Operation::Kubernetes(_))
    }
}

impl Load {
    /// Returns the rate of an open loop.
    pub fn open_rate(&self) -> Option<f64> {
        match self.pace {
            Pace::Open(rate) => Some(rate),
            Pace::Unlimited | Pace::AtMost(_) => None,
        }
    }

    /// Counts the connections that requests may use: each object has one to each of its endpoints.
    pub fn connections(&self, endpoints: usize) -> usize {
        match (self.protocol, self.connect, self.target) {
            (Protocol::HttpJson, ..) => self.clients,
            (_, Connect::One, _) | (_, _, Target::Leader | Target::EachSummed) => self.conns,
            (_, Connect::All, Target::All) => self.conns * endpoints,
        }
    }

    /// Returns the command of a single run, without endpoints.
    pub fn command(&self) -> String {
        let mut line = format!("loadgen {}", self.operation.name());
        self.write_operation(&mut line);
        let mut add = |flag: &str, value: &dyn std::fmt::Display| {
            write!(line, " --{flag}={value}").expect("a string accepts text");
        };
        add("conns", &self.conns);
        add("clients", &self.clients);
        let (total, rate) = match self.operation {
            Operation::Watch { .. } | Operation::WatchLatency { .. } => ("put-total", "put-rate"),
            _ => ("total", "rate"),
        };
        match self.seconds {
            Some(seconds) => add("duration", &format_args!("{seconds}s")),
            None if matches!(self.operation, Operation::WatchGet { .. }) => {}
            None => add(total, &self.total),
        }
        match self.pace {
            Pace::Unlimited if matches!(self.operation, Operation::WatchLatency { .. }) => add(rate, &0),
            Pace::Unlimited => {}
            Pace::AtMost(per_second) | Pace::Open(per_second) => add(rate, &per_second),
        }
        let switches = [
            (self.open_rate().is_some(), "open-loop"),
            (self.target == Target::Leader, "target-leader"),
            (self.target == Target::EachSummed, "each-member"),
            (self.connect == Connect::One, "connect=one"),
            (self.protocol == Protocol::HttpJson, "protocol=http-json"),
        ];
        for (_, flag) in switches.iter().filter(|(is_set, _)| *is_set) {
            line += &format!(" --{flag}");
        }
        line
    }

    fn write_operation(&self, line: &mut String) {
        self.write_sizes(line);
        self.write_parameters(line);
        self.write_switches(line);
    }

    /// Writes the sizes and counts that several operations share.
    fn write_sizes(&self, line: &mut String) {
        let Self { key_bytes, value_bytes, keys, streams, watchers_per_stream, .. } = self;
        let mut add = |flag: &str, value: &dyn std::fmt::Display| {
            write!(line, " --{flag}={value}").expect("a string accepts text");
        };
        match &self.operation {
            Operation::Put | Operation::TxnPut { .. } | Operation::TxnMixed { .. } => {
                add("key-size", key_bytes);
                add("val-size", value_bytes);
                add("key-space-size", keys);
            }
            Operation::Watch { watched } => {
                add("streams", streams);
                add("watch-per-stream", watchers_per_stream);
                add("watched-key-total", watched);
                add("key-size", key_bytes);
                add("key-space-size", keys);
            }
            Operation::WatchLatency { .. } | Operation::WatchHistory => {
                add("streams", streams);
                add("watchers-per-stream", watchers_per_stream);
                add("key-size", key_bytes);
                add("val-size", value_bytes);
            }
            _ => {}
        }
    }

    /// Writes the parameters of the operation.
    fn write_parameters(&self, line: &mut String) {
        let Self { value_bytes, keys, streams, watchers_per_stream, .. } = self;
        let mut add = |flag: &str, value: &dyn std::fmt::Display| {
            write!(line, " --{flag}={value}").expect("a string accepts text");
        };
        let consistency = |serializable: bool| if serializable { "s" } else { "l" };
        match &self.operation {
            Operation::Put if *streams > 0 => {
                add("streams", streams);
                add("watchers-per-stream", watchers_per_stream);
            }
            Operation::TxnPut { ops } => add("txn-ops", ops),
            Operation::Range(range) => {
                add("consistency", &consistency(range.serializable));
                if range.limit > 0 {
                    add("limit", &range.limit);
                }
            }
            Operation::TxnMixed { end, limit, serializable, ranges_per_put } => {
                if !end.is_empty() {
                    add("end-key", &quoted(end));
                }
                add("limit", limit);
                add("consistency", &consistency(*serializable));
                add("rw-ratio", ranges_per_put);
            }
            Operation::Stm { keys_per_txn, write_percent, isolation, locker } => {
                add("keys", keys);
                add("keys-per-txn", keys_per_txn);
                add("txn-wr-percent", write_percent);
                add("val-size", value_bytes);
                add("isolation", &isolation_value(*isolation));
                add("stm-locker", &locker_value(*locker));
            }
            Operation::WatchGet { events } => {
                add("watchers", &(streams * watchers_per_stream));
                add("streams", streams);
                add("events", events);
            }
            Operation::Ycsb(ycsb) => {
                add("mix", &ycsb.mix);
                add("distribution", &ycsb.distribution);
                add("val-size", &ycsb.sizes);
                add("records", &ycsb.records);
                add("scan-max", &ycsb.scan_max);
                add("consistency", &consistency(ycsb.serializable));
                add("prefix", &quoted(&ycsb.prefix));
            }
            Operation::Kubernetes(cluster) => {
                add("nodes", &cluster.nodes);
                add("pods", &cluster.pods);
                add("churn", &cluster.churn);
                add("api-servers", &cluster.api_servers);
                add("prefix", &quoted(&cluster.prefix));
            }
            Operation::Put
            | Operation::LeaseKeepAlive
            | Operation::Watch { .. }
            | Operation::WatchLatency { .. }
            | Operation::WatchHistory => {}
        }
    }

    /// Writes the flags without a value, and the keys of a range.
    fn write_switches(&self, line: &mut String) {
        let sequential = self.order == KeyOrder::Sequential
            && matches!(self.operation, Operation::Put | Operation::Watch { .. });
        let range = match &self.operation {
            Operation::Range(range) => range.clone(),
            _ => RangeLoad::default(),
        };
        let switches = [
            (sequential, "sequential-keys"),
            (self.values == Values::PerKey && self.operation.name() != "stm", "random-values"),
            (matches!(self.operation, Operation::WatchLatency { prev_kv: true }), "prevkv"),
            (matches!(&self.operation, Operation::Ycsb(ycsb) if ycsb.skip_load), "skip-load"),
            (range.prefix, "prefix"),
            (range.count_only, "count-only"),
            (range.keys_only, "keys-only"),
            (range.read == ReadAs::Stream, "stream"),
            (range.read == ReadAs::Pages, "paginate"),
        ];
        for (_, flag) in switches.iter().filter(|(is_set, _)| *is_set) {
            *line += &format!(" --{flag}");
        }
        for word in [&range.key, &range.end].into_iter().filter(|word| !word.is_empty()) {
            *line += &format!(" {}", quoted(word));
        }
    }
}

fn isolation_value(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::ReadCommitted => "c",
        Isolation::RepeatableReads => "r",
        Isolation::Serializable => "s",
        Isolation::SerializableSnapshot => "ss",
    }
}

fn locker_value(locker: Locker) -> &'static str {
    match locker {
        Locker::None => "stm",
        Locker::Client => "lock-client",
        Locker::Rpc => "lock-rpc",
    }
}

/// Quotes a word for a shell, if necessary.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:+%@…".contains(c);
    if word.chars().all(plain) && !word.is_empty() {
        return word.to_owned();
    }
    // Control characters must not reach a terminal.
    let printable = word.replace(char::is_control, "\u{fffd}");
    format!("'{}'", printable.replace('\'', "'\\''"))
}
