//! Turns the flags of watchers, leases and transactions into plans.

use crate::cli::flags::Global;
use crate::cli::flags::coordination::{
    LeaseKeepaliveFlags, StmFlags, TxnMixedFlags, WatchFlags, WatchGetFlags, WatchLatencyFlags,
};
use crate::cli::plans;
use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::run::LoadPlan;
use crate::run::schedule::RunPace;
use crate::run::watchers::{Awaits, OpenWatchers};
use crate::workload::keys::{KeyOrder, KeySequence};
use crate::workload::stm::{Isolation, Locker, Stm};
use crate::workload::{Workload, position_bytes};
use api::etcdserverpb::RangeRequest;
use bytes::Bytes;
use rand::RngExt;
use std::time::Duration;

/// TTL of `lease-keepalive`, like in etcd's tool.
const LEASE_SECONDS: i64 = 100;
/// Size of the values of `watch`, like in etcd's tool.
const WATCH_VALUE_BYTES: usize = 4;
/// Two timestamps are recorded per put: 1.6 GB.
const PUTS_MAX: u64 = 100_000_000;
/// Limit for all watched keys together.
const KEYS_BYTES_MAX: usize = 1 << 30;
/// A watcher takes about 100 bytes here: 1 GB.
const WATCHERS_MAX: usize = 10_000_000;

pub fn watch(global: &Global, flags: &WatchFlags) -> Result<LoadPlan, String> {
    let &WatchFlags { streams, watch_per_stream, put_total, put_rate, duration, .. } = flags;
    let total = puts(put_total, put_rate, duration)?;
    let watching = watching(streams, watch_per_stream, watched(flags)?);
    let workload = events(&watching.keys, total, WATCH_VALUE_BYTES)?;
    let pace = plans::pace("--put-rate", put_rate, flags.open_loop)?;
    let plan = watched_plan(global, workload, total, pace, watching)?;
    Ok(LoadPlan { seconds_max: plans::some(duration), ..plan })
}

/// Returns the total number of puts: the flag's, or the rate multiplied by the duration. Two timestamps are
/// recorded per put, so the number must be known.
fn puts(total: u64, per_second: u64, duration: Duration) -> Result<u64, String> {
    match (duration.is_zero(), per_second) {
        (true, _) => Ok(total),
        (false, 0) => Err("--duration needs a --put-rate".into()),
        (false, _) => Ok(((per_second as f64 * duration.as_secs_f64()).round() as u64).max(1)),
    }
}

/// Returns the watched keys; equal numbers yield equal keys.
fn watched(flags: &WatchFlags) -> Result<Vec<Bytes>, String> {
    let &WatchFlags { watched_key_total, key_size, key_space_size, sequential_keys, .. } = flags;
    if watched_key_total == 0 {
        return Err("--watched-key-total=0 watches nothing".into());
    }
    if key_size.saturating_mul(watched_key_total) > KEYS_BYTES_MAX {
        return Err(format!("--watched-key-total={watched_key_total} keys of {key_size} bytes are too many"));
    }
    plans::check_keys(key_size, key_space_size)?;
    let mut names = KeySequence::new(KeyOrder::Sequential, key_space_size, key_size, 0);
    let mut name = |place: u64| {
        let number = if sequential_keys { place } else { rand::rng().random_range(0..key_space_size) };
        let mut key = vec![0; key_size];
        names.write(number % key_space_size, &mut key);
        Bytes::from(key)
    };
    Ok((0..watched_key_total as u64).map(&mut name).collect())
}

pub fn watch_latency(global: &Global, flags: &WatchLatencyFlags) -> Result<LoadPlan, String> {
    let &WatchLatencyFlags { streams, watchers_per_stream, key_size, val_size, prevkv, .. } = flags;
    let &WatchLatencyFlags { put_total, put_rate, duration, .. } = flags;
    let total = puts(put_total, put_rate, duration)?;
    if key_size == 0 {
        return Err("--key-size=0: a key has one byte at least".into());
    }
    let mut key = vec![0; key_size];
    rand::rng().fill(&mut key[..]);
    let watching = watching(streams, watchers_per_stream, vec![key.into()]);
    let workload = events(&watching.keys, total, val_size)?;
    let pace = plans::pace("--put-rate", put_rate, flags.open_loop)?;
    let watching = OpenWatchers { prev_kv: prevkv, since_answer: true, ..watching };
    let plan = watched_plan(global, workload, total, pace, watching)?;
    Ok(LoadPlan { seconds_max: plans::some(duration), ..plan })
}

/// Reports whether this process creates the objects of a load: not for a dry run, nor with agents, which
/// create them.
fn creates(global: &Global, dry_run: bool) -> bool {
    !dry_run && global.agents.is_empty()
}

/// Writes the events, then plans the watchers that read them.
pub async fn watch_get(global: &Global, flags: &WatchGetFlags) -> Result<LoadPlan, String> {
    let WatchGetFlags { watchers, streams, events, reporting } = flags;
    let (watchers, streams, events) = (*watchers, *streams, *events);
    if streams == 0 || !watchers.is_multiple_of(streams) {
        return Err(format!("--watchers={watchers} cannot be spread evenly over --streams={streams}"));
    }
    if events == 0 {
        return Err("--events=0 leaves nothing to watch".into());
    }
    let key = Bytes::from_static(b"watchkey");
    let watching = watching(streams, watchers / streams, vec![key.clone()]);
    let range = RangeRequest { key: "abc".into(), serializable: true, ..Default::default() };
    let total = LoadPlan::OPEN_END;
    let mut plan = watched_plan(global, Workload::Range(range), total, RunPace::Unlimited, watching)?;
    if !creates(global, reporting.dry_run) {
        return Ok(plan);
    }
    let failed = |error: admin::Error| error.to_string();
    let client = admin::AdminClient::connect(&plan.endpoints[0]).await.map_err(failed)?;
    let mut revision = 0;
    for event in 0..events {
        let put = client.put(key.clone(), event.to_string().into()).await.map_err(failed)?;
        revision = if event == 0 { put } else { revision };
    }
    if let Some(watching) = &mut plan.watching {
        watching.awaits = Awaits::History { revision, events };
    }
    Ok(plan)
}

fn watching(streams: usize, per_stream: usize, keys: Vec<Bytes>) -> OpenWatchers {
    OpenWatchers {
        streams,
        per_stream,
        keys: keys.into(),
        prev_kv: false,
        awaits: Awaits::Puts,
        since_answer: false,
    }
}

/// Returns puts to these keys, with values that identify the put.
fn events(keys: &std::sync::Arc<[Bytes]>, total: u64, value_bytes: usize) -> Result<Workload, String> {
    let needed = position_bytes(total);
    if value_bytes < needed {
        return Err(format!(
            "values of {value_bytes} bytes cannot hold the numbers of --put-total={total}: {needed} bytes"
        ));
    }
    if total > PUTS_MAX {
        return Err(format!("--put-total={total} is more than {PUTS_MAX}, whose times are kept"));
    }
    Ok(Workload::PutKeys { keys: keys.clone(), value_bytes })
}

fn watched_plan(
    global: &Global,
    workload: Workload,
    total: u64,
    pace: RunPace,
    watching: OpenWatchers,
) -> Result<LoadPlan, String> {
    let watchers = watching.streams.saturating_mul(watching.per_stream);
    if watchers == 0 || watchers > WATCHERS_MAX {
        return Err(format!("{watchers} watchers: expected 1 to {WATCHERS_MAX}"));
    }
    let plan = plans::planned(global, global.endpoints.clone(), workload, total, pace)?;
    Ok(LoadPlan { watching: Some(watching), ..plan })
}

/// Grants a lease for each caller.
pub async fn lease_keepalive(
    global: &Global,
    endpoints: &[Endpoint],
    flags: &LeaseKeepaliveFlags,
) -> Result<LoadPlan, String> {
    let workload = |leases: Vec<i64>| Workload::LeaseKeepAlive(leases.into());
    let plan = plans::plan(global, endpoints.to_vec(), workload(Vec::new()), &flags.sending)?;
    if !creates(global, flags.sending.dry_run) {
        return Ok(plan);
    }
    let first = endpoints.first().ok_or("no endpoint given")?;
    let granted =
        async { admin::AdminClient::connect(first).await?.grant_leases(plan.clients, LEASE_SECONDS).await };
    Ok(LoadPlan { workload: workload(granted.await.map_err(|error| error.to_string())?), ..plan })
}

pub fn stm(flags: &StmFlags) -> Result<Workload, String> {
    let &StmFlags { keys, keys_per_txn, txn_wr_percent, val_size: value_bytes, .. } = flags;
    if keys == 0 || keys > i64::MAX as u64 {
        return Err(format!("--keys={keys}: expected 1 to {}", i64::MAX));
    }
    if keys_per_txn as u64 > keys {
        return Err(format!("--keys-per-txn={keys_per_txn} is more than --keys={keys}"));
    }
    let isolation = match flags.isolation.as_str() {
        "c" => Isolation::ReadCommitted,
        "s" => Isolation::Serializable,
        "ss" => Isolation::SerializableSnapshot,
        _ => Isolation::RepeatableReads,
    };
    let locker = match flags.stm_locker.as_str() {
        "lock-client" => Locker::Client,
        "lock-rpc" => Locker::Rpc,
        _ => Locker::None,
    };
    let write_percent = usize::from(txn_wr_percent);
    let seed = rand::random();
    let prefix = Bytes::new();
    Ok(Workload::Stm(Stm { keys, keys_per_txn, write_percent, value_bytes, prefix, isolation, locker, seed }))
}

pub fn txn_mixed(flags: &TxnMixedFlags) -> Result<Workload, String> {
    let &TxnMixedFlags { limit, rw_ratio, .. } = flags;
    if limit < 0 {
        return Err(format!("--limit={limit}: a limit is 1 at least, or 0 for none"));
    }
    if !rw_ratio.is_finite() || rw_ratio < 0.0 {
        return Err(format!("--rw-ratio={rw_ratio}: expected a number of ranges for each put"));
    }
    let all = Bytes::from_static(b"\0");
    let range_end = if flags.end_key.is_empty() { all.clone() } else { flags.end_key.clone().into() };
    let serializable = flags.consistency == "s";
    let range = RangeRequest { key: all, range_end, limit, serializable, ..Default::default() };
    let writes = plans::writes(&flags.writing, KeyOrder::Sequential, 1)?;
    Ok(Workload::TxnMixed { range, read_share: rw_ratio / (1.0 + rw_ratio), writes })
}
