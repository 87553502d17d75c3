//! The run of a [`Load`]: its workload, its watchers, and the state that must exist before it.

use crate::client::admin::{self, AdminClient};
use crate::client::endpoint::Endpoint;
use crate::run::Run;
use crate::run::watchers::{Awaits, OpenWatchers};
use crate::workload::distribution::{Distribution, Sizes};
use crate::workload::keys::{KeySequence, varint_bytes_max};
use crate::workload::kubernetes::Kubernetes;
use crate::workload::stm::{KEY_BYTES, Stm};
use crate::workload::ycsb::{Mix, Ycsb};
use crate::workload::{Workload, Writes, prefix_end};
use api::etcdserverpb::RangeRequest;
use bench_report::model::{KeyOrder, Load, Operation, Protocol, READ_KEY, RangeLoad, ReadAs, Target};
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

const WATCHED_KEY: u8 = b'w';
/// Reason why a field can be parsed.
const FLAGS: &str = "the flags have been parsed from this syntax";
/// Page size of `range --paginate`, like in etcd's tool.
pub const PAGE_KEYS: i64 = 10_000;
/// Number of callers that write a history.
const HISTORY_CLIENTS: usize = 500;
const HISTORY_CONNS: usize = 10;
/// Longer than any historical write takes.
const HISTORY_TIMEOUT: Duration = Duration::from_secs(120);

/// State of a cluster that a load needs.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// Prefix of all keys; empty in a dedicated cluster.
    pub prefix: Bytes,
    /// Seed of keys and values. Reading back requires the seed of the writes.
    pub seed: u64,
    pub leases: Arc<[i64]>,
    /// First revision and number of the historical events.
    pub history: (i64, u64),
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Admin(#[from] admin::Error),
    #[error("write the history")]
    History(#[from] crate::run::Error),
}

impl Prepared {
    /// Grants the leases and writes the history of a load.
    pub async fn create(
        &mut self,
        load: &Load,
        endpoints: &[Endpoint],
        lease_seconds: i64,
    ) -> Result<(), Error> {
        let Some(first) = endpoints.first() else { return Ok(()) };
        match load.operation {
            Operation::LeaseKeepAlive => {
                let client = AdminClient::connect(first).await?;
                self.leases = client.grant_leases(load.clients, lease_seconds).await?.into();
            }
            Operation::WatchHistory => {
                let revision = AdminClient::connect(first).await?.revision().await? + 1;
                let mut run = Run::new(first.clone(), events(load, self), load.total);
                run.endpoints = endpoints.to_vec();
                run.clients = HISTORY_CLIENTS.min(load.total.max(1) as usize);
                run.conns = HISTORY_CONNS.min(run.clients);
                run.request_timeout = Some(HISTORY_TIMEOUT);
                let written = tokio::task::spawn_blocking(|| run.measure()).await;
                let written = written.expect("a run does not panic")?;
                self.history = (revision, written.tally.succeeded_len());
            }
            Operation::WatchGet { events } => {
                let (client, mut first) = (AdminClient::connect(first).await?, 0);
                for event in 0..events {
                    let revision = client.put(watched_key(load, self), event.to_string().into()).await?;
                    first = if event == 0 { revision } else { first };
                }
                self.history = (first, events);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Run {
    /// Returns the run of a load with one thread. A load of leases or history needs what
    /// [`Prepared::create`] created.
    pub fn of(load: &Load, endpoints: Vec<Endpoint>, prepared: &Prepared) -> Self {
        let first = endpoints.first().expect("a load has an endpoint").clone();
        let total = match load.operation {
            Operation::WatchHistory => 0,
            Operation::WatchGet { .. } => Self::OPEN_END,
            _ if load.total == 0 => Self::OPEN_END,
            _ => load.total,
        };
        let mut run = Self::new(first, workload(load, prepared), total);
        (run.endpoints, run.protocol, run.pace) = (endpoints, load.protocol, load.pace);
        (run.conns, run.connect, run.clients) = (load.conns, load.connect, load.clients);
        run.seconds_max = load.seconds.map(Duration::from_secs_f64);
        run.watching = watching(load, prepared);
        run
    }
}

/// Returns the watchers of a load, which await at most `load.total` historical events.
pub fn watching(load: &Load, prepared: &Prepared) -> Option<OpenWatchers> {
    let (revision, events) = prepared.history;
    let awaits = match load.operation {
        Operation::Watch { .. } | Operation::WatchLatency { .. } => Awaits::Puts,
        Operation::WatchHistory => Awaits::History { revision, events: events.min(load.total) },
        Operation::WatchGet { .. } => Awaits::History { revision, events },
        _ => Awaits::Nothing,
    };
    (load.streams > 0).then(|| OpenWatchers {
        streams: load.streams,
        per_stream: load.watchers_per_stream,
        keys: watched_keys(load, prepared),
        prev_kv: load.operation == Operation::WatchLatency { prev_kv: true },
        awaits,
        since_answer: matches!(load.operation, Operation::WatchLatency { .. }),
    })
}

/// Returns the workload that writes events of the watched keys.
fn events(load: &Load, prepared: &Prepared) -> Workload {
    Workload::PutKeys { keys: watched_keys(load, prepared), value_bytes: load.value_bytes }
}

/// Returns the watched keys; equal numbers yield equal keys.
fn watched_keys(load: &Load, prepared: &Prepared) -> Arc<[Bytes]> {
    let Operation::Watch { watched } = load.operation else { return [watched_key(load, prepared)].into() };
    let key_bytes = load.key_bytes.saturating_sub(prepared.prefix.len());
    let mut names = KeySequence::new(KeyOrder::Sequential, load.keys, key_bytes, 0);
    let mut random = SmallRng::seed_from_u64(prepared.seed);
    let mut name = |place: u64| {
        let is_sequential = load.order == KeyOrder::Sequential;
        let number = if is_sequential { place } else { random.random_range(0..load.keys) };
        let mut key = vec![0; key_bytes];
        names.write(number % load.keys, &mut key);
        Bytes::from([&prepared.prefix[..], &key].concat())
    };
    (0..watched as u64).map(&mut name).collect()
}

fn watched_key(load: &Load, Prepared { prefix, .. }: &Prepared) -> Bytes {
    let rest = vec![WATCHED_KEY; load.key_bytes.saturating_sub(prefix.len()).max(1)];
    [&prefix[..], &rest].concat().into()
}

pub fn workload(load: &Load, prepared: &Prepared) -> Workload {
    match &load.operation {
        Operation::Put => Workload::Put(writes(load, prepared)),
        Operation::TxnPut { ops } => Workload::TxnPut { ops: *ops, writes: writes(load, prepared) },
        Operation::Range(range) => {
            let request = range_request(range, prepared);
            match range.read {
                ReadAs::Whole => Workload::Range(request),
                ReadAs::Stream => Workload::RangeStream(request),
                ReadAs::Pages => Workload::Pages(request),
            }
        }
        Operation::TxnMixed { end, limit, serializable, ranges_per_put } => {
            let (key, range_end) = prefix_range(&prepared.prefix);
            let range_end = if end.is_empty() { range_end } else { end.clone().into() };
            let (limit, serializable) = (*limit, *serializable);
            let range = RangeRequest { key, range_end, limit, serializable, ..Default::default() };
            let read_share = ranges_per_put / (1.0 + ranges_per_put);
            Workload::TxnMixed { range, read_share, writes: writes(load, prepared) }
        }
        Operation::LeaseKeepAlive => Workload::LeaseKeepAlive(prepared.leases.clone()),
        Operation::Watch { .. } | Operation::WatchLatency { .. } | Operation::WatchHistory => {
            events(load, prepared)
        }
        Operation::WatchGet { .. } => {
            Workload::Range(RangeRequest { key: "abc".into(), serializable: true, ..Default::default() })
        }
        &Operation::Stm { keys_per_txn, write_percent, isolation, locker } => Workload::Stm(Stm {
            keys: load.keys,
            keys_per_txn,
            write_percent,
            value_bytes: load.value_bytes,
            prefix: prepared.prefix.clone(),
            isolation,
            locker,
            seed: prepared.seed,
        }),
        Operation::Ycsb(of) => {
            let mix: Mix = of.mix.parse().expect(FLAGS);
            let distribution: Distribution = of.distribution.parse().expect(FLAGS);
            let mut ycsb = Ycsb::new(mix, distribution, of.records, of.skip_load);
            ycsb.prefix = Bytes::copy_from_slice(of.prefix.as_bytes());
            ycsb.sizes = of.sizes.parse::<Sizes>().expect(FLAGS);
            (ycsb.scan_max, ycsb.serializable, ycsb.seed) = (of.scan_max, of.serializable, prepared.seed);
            Workload::Ycsb(ycsb)
        }
        Operation::Kubernetes(of) => {
            let prefix = format!("{}{:016x}/", of.prefix, prepared.seed);
            let mut cluster =
                Kubernetes::new(of.nodes, of.pods, of.api_servers, prefix.into(), prepared.seed);
            cluster.churn = of.churn;
            Workload::Kubernetes(cluster)
        }
    }
}

fn range_request(range: &RangeLoad, prepared: &Prepared) -> RangeRequest {
    let all = || Bytes::from_static(b"\0");
    let (key, range_end) = match (range.prefix, range.key.as_str()) {
        (true, "") => (all(), all()),
        (true, key) => (Bytes::copy_from_slice(key.as_bytes()), prefix_end(key.as_bytes())),
        (false, key) => (below(key, &prepared.prefix), range.end.clone().into()),
    };
    RangeRequest {
        key,
        range_end,
        limit: if range.read == ReadAs::Pages { PAGE_KEYS } else { range.limit },
        serializable: range.serializable,
        keys_only: range.keys_only,
        count_only: range.count_only,
        ..Default::default()
    }
}

/// Returns the start of a key below a prefix, with the length of the key.
fn below(key: &str, prefix: &[u8]) -> Bytes {
    let rest = key.len().saturating_sub(prefix.len()).max(READ_KEY.len().min(key.len()));
    [prefix, &key.as_bytes()[..rest]].concat().into()
}

fn writes(load: &Load, prepared: &Prepared) -> Writes {
    let &Load { key_bytes, value_bytes, keys: key_space, values, order, .. } = load;
    let (prefix, seed) = (prepared.prefix.clone(), prepared.seed);
    let number_bytes = varint_bytes_max(key_space);
    assert!(key_bytes >= prefix.len() + number_bytes, "a key holds its prefix and its number");
    Writes { key_bytes, value_bytes, prefix, key_space, order, values, seed }
}

/// Checks that the keys of a load are long enough for a prefix; `name` is that of its row.
pub fn check_prefix(load: &Load, name: &str, prefix: &Bytes) -> Result<(), String> {
    let (available, needed) = match load.operation {
        Operation::Put | Operation::TxnPut { .. } | Operation::TxnMixed { .. } => {
            (load.key_bytes, varint_bytes_max(load.keys))
        }
        Operation::Stm { .. } => (KEY_BYTES, varint_bytes_max(load.keys)),
        Operation::Range(_) => (load.key_bytes, READ_KEY.len()),
        Operation::WatchLatency { .. } | Operation::WatchHistory => (load.key_bytes, 1),
        _ => return Ok(()),
    };
    if prefix.len() + needed <= available {
        return Ok(());
    }
    let prefix = String::from_utf8_lossy(prefix);
    Err(format!(
        "invalid --prefix {prefix}: the keys of {name} have {available} bytes and need {needed} of them"
    ))
}

/// Returns the range below a prefix; every key without one.
fn prefix_range(prefix: &Bytes) -> (Bytes, Bytes) {
    if prefix.is_empty() {
        return (Bytes::from_static(b"\0"), Bytes::from_static(b"\0"));
    }
    (prefix.clone(), prefix_end(prefix))
}

/// Returns the key that a reading row reads; any key below the prefix for other rows.
pub fn read_key(load: &Load, prepared: &Prepared) -> Bytes {
    match &load.operation {
        Operation::Range(range) => range_request(range, prepared).key,
        _ => below(&format!("{READ_KEY:0<0$}", load.key_bytes.max(READ_KEY.len())), &prepared.prefix),
    }
}

/// Describes the load in a line.
pub fn title(load: &Load, endpoints: usize) -> String {
    use bench_report::number::counted;
    let (clients, conns) =
        (counted(load.clients, "client"), counted(load.connections(endpoints), "connection"));
    format!("{}, {clients} on {conns}", load.operation.name())
}

/// Reports whether requests of a load can follow the leader.
pub fn follows_leader(load: &Load, run: &Run) -> bool {
    load.target == Target::Leader && load.protocol == Protocol::Grpc && run.can_follow_leader()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_report::model::{Connect, Pace};
    use bench_report::suite::{COORDINATION, CORE, SuiteRow, find};

    fn rows(scale: f64) -> Vec<SuiteRow> {
        let suites = find(&["all".into(), CORE.into(), COORDINATION.into()]).unwrap();
        suites.iter().flat_map(|suite| &suite.rows).map(|row| row.scaled(scale, None)).collect()
    }

    #[test]
    fn every_row_has_a_workload_at_every_scale() {
        let prepared = Prepared { leases: [1].into(), ..Prepared::default() };
        for row in [0.001, 0.1, 1.0, 10.0].into_iter().flat_map(rows) {
            if !matches!(row.load.operation, Operation::Stm { .. }) {
                assert!(workload(&row.load, &prepared).source(0).request(0).len() > 5, "{}", row.id);
            }
        }
    }

    #[test]
    fn every_key_of_every_row_keeps_to_a_prefix() {
        let prepared = Prepared { prefix: "lgen/".into(), leases: [1].into(), ..Prepared::default() };
        for row in rows(1.0) {
            let load = &row.load;
            check_prefix(load, &row.id, &prepared.prefix).unwrap();
            let key = read_key(load, &prepared);
            assert!(key.starts_with(b"lgen/key"), "{}: {key:?}", row.id);
            let workload = workload(load, &prepared);
            if let Workload::Range(range) | Workload::TxnMixed { range, .. } = &workload {
                assert!(range.key.starts_with(b"lgen/"), "{}", row.id);
                assert!(range.range_end.is_empty() || range.range_end == "lgen0", "{}", row.id);
            }
            if let Workload::Stm(stm) = &workload {
                assert_eq!(stm.prefix, "lgen/");
                continue;
            }
            let mut source = workload.source(0);
            for position in [0, 1, load.total / 2, load.total - 1] {
                let request = source.request(position);
                for (key, _) in source.pairs_of(position, &request) {
                    assert_eq!((key.len(), &key[..5]), (load.key_bytes, &b"lgen/"[..]), "{}", row.id);
                }
            }
        }
        let long = Bytes::from_static(b"loadgen/");
        let refused = rows(1.0).iter().find_map(|row| check_prefix(&row.load, &row.id, &long).err());
        let reason = "invalid --prefix loadgen/: the keys of put-1-one-key have 8 bytes and need 1 of them";
        assert_eq!(refused.as_deref(), Some(reason));
    }

    #[test]
    fn a_title_counts_the_connections_that_are_opened() {
        let load = rows(1.0).into_iter().find(|row| row.id == "keepalive-1000").unwrap().load;
        for (load, expected) in [
            (load.clone(), "1,000 clients on 300 connections"),
            (Load { connect: Connect::One, ..load.clone() }, "1,000 clients on 100 connections"),
            (Load { target: Target::Leader, ..load.clone() }, "1,000 clients on 100 connections"),
            (Load { protocol: Protocol::HttpJson, ..load.clone() }, "1,000 clients on 1,000 connections"),
            (
                Load { conns: 1, clients: 1, connect: Connect::One, ..load.clone() },
                "1 client on 1 connection",
            ),
        ] {
            assert_eq!(title(&load, 3), format!("lease-keepalive, {expected}"));
        }
        assert_eq!(load.pace, Pace::Unlimited);
    }
}
