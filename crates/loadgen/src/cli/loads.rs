//! Flags to a [`Load`], and its limits.

use super::flags::coordination::{StmFlags, TxnMixedFlags, WatchFlags, WatchGetFlags, WatchLatencyFlags};
use super::flags::kubernetes::KubernetesFlags;
use super::flags::sending::{Sending, Writing};
use super::flags::ycsb::YcsbFlags;
use super::flags::{Command, Global, RangeFlags, RefusedFlags};
use super::refusal::{ExitReason, of_flags};
use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::load::{self, Prepared};
use crate::run::recorder::FailedCalls;
use crate::run::{EndpointTarget, Run};
use crate::workload::keys::varint_bytes_max;
use crate::workload::kubernetes::{CHURN_PER_NODE, Kubernetes, PODS_PER_NODE};
use crate::workload::position_bytes;
use crate::workload::ycsb::Mix;
use bench_report::model::{
    Connect, Isolation, KeyOrder, KubernetesLoad, Load, Locker, Operation, Pace, Protocol, RangeLoad, ReadAs,
    Target, Values, YcsbLoad,
};
use std::time::Duration;

/// Default of --dial-timeout.
const PATIENCE: Duration = Duration::from_secs(10);
/// Far below the length limit of a gRPC message (4 GiB).
const REQUEST_BYTES_MAX: usize = 1 << 30;
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
/// Names have six digits.
const NODES_MAX: u64 = 1_000_000;
/// Eight bytes are recorded per pod: 256 MB.
const PODS_MAX: u64 = 32_000_000;

/// Returns the load of a command, or the reason why it is invalid; `None` if the command has no load.
pub fn load(global: &Global, command: &Command) -> Result<Option<Load>, String> {
    let load = match command {
        Command::Put(flags) => {
            let order = if flags.sequential_keys { KeyOrder::Sequential } else { KeyOrder::Random };
            let load = writing(global, Operation::Put, &flags.writing, order, 1)?;
            let (streams, watchers_per_stream) = (flags.streams, flags.watchers_per_stream);
            sent(Load { streams, watchers_per_stream, ..load }, &flags.sending)?
        }
        Command::TxnPut(flags) => {
            let (ops, space) = (flags.txn_ops, flags.writing.key_space_size);
            if ops == 0 {
                return Err("invalid --txn-ops 0: expected 1 or more".into());
            }
            if ops as u64 > space {
                return Err(format!(
                    "invalid --txn-ops {ops}: more than the {space} keys of --key-space-size"
                ));
            }
            let operation = Operation::TxnPut { ops };
            sent(writing(global, operation, &flags.writing, KeyOrder::Sequential, ops)?, &flags.sending)?
        }
        Command::Range(flags) => sent(range(global, flags)?, &flags.sending)?,
        Command::TxnMixed(flags) => sent(txn_mixed(global, flags)?, &flags.sending)?,
        Command::Stm(flags) => sent(stm(global, flags)?, &flags.sending)?,
        Command::Ycsb(flags) => sent(ycsb(global, flags)?, &flags.sending)?,
        Command::Kubernetes(flags) => kubernetes(global, flags)?,
        Command::LeaseKeepalive(flags) => sent(blank(global, Operation::LeaseKeepAlive), &flags.sending)?,
        Command::Watch(flags) => watch(global, flags)?,
        Command::WatchLatency(flags) => watch_latency(global, flags)?,
        Command::WatchGet(flags) => watch_get(global, flags)?,
        Command::WatchHistory(flags) => {
            let load = Load {
                key_bytes: flags.key_size,
                value_bytes: flags.val_size,
                streams: flags.streams,
                watchers_per_stream: flags.watchers_per_stream,
                total: flags.total,
                ..blank(global, Operation::WatchHistory)
            };
            check_events(load)?
        }
        Command::Suite(_) | Command::Compare(_) | Command::Report(_) | Command::Completion { .. } => {
            return Ok(None);
        }
    };
    check(&load).map(|()| Some(load))
}

/// Returns a load of the global flags, without a number of requests.
fn blank(global: &Global, operation: Operation) -> Load {
    Load {
        operation,
        protocol: if global.protocol == "grpc" { Protocol::Grpc } else { Protocol::HttpJson },
        key_bytes: 0,
        value_bytes: 0,
        keys: 1,
        values: Values::Same,
        order: KeyOrder::Sequential,
        conns: global.conns,
        connect: if global.connect == "one" { Connect::One } else { Connect::All },
        clients: global.clients,
        target: match (global.target_leader, global.each_member) {
            (true, _) => Target::Leader,
            (false, true) => Target::EachSummed,
            (false, false) => Target::All,
        },
        total: 0,
        seconds: None,
        pace: Pace::Unlimited,
        streams: 0,
        watchers_per_stream: 0,
    }
}

/// Adds the number of requests and the pace.
fn sent(load: Load, sending: &Sending) -> Result<Load, String> {
    if sending.steps.are_wanted() {
        sending.steps.rates(sending.rate)?;
        if load.operation.is_mix() {
            return Err(format!(
                "--rates and --find-max-rate are not supported by {}",
                load.operation.name()
            ));
        }
        if !sending.duration.is_zero() {
            return Err("--duration conflicts with --rates and --find-max-rate: use --step".into());
        }
    }
    if sending.duration.is_zero() && sending.total == 0 {
        return Err("invalid --total 0: expected 1 or more".into());
    }
    let pace = pace("--rate", sending.rate, sending.open_loop)?;
    Ok(match some(sending.duration) {
        Some(duration) => Load { pace, total: 0, seconds: Some(duration.as_secs_f64()), ..load },
        None => Load { pace, total: sending.total, ..load },
    })
}

fn writing(
    global: &Global,
    operation: Operation,
    flags: &Writing,
    order: KeyOrder,
    ops: usize,
) -> Result<Load, String> {
    let &Writing { key_size: key_bytes, val_size: value_bytes, key_space_size: keys, random_values } = flags;
    check_keys(key_bytes, keys)?;
    let request_bytes = key_bytes.saturating_add(value_bytes).saturating_mul(ops);
    if request_bytes > REQUEST_BYTES_MAX {
        return Err(format!(
            "invalid request size {request_bytes}: expected at most {REQUEST_BYTES_MAX} bytes"
        ));
    }
    let values = if random_values { Values::PerKey } else { Values::Same };
    Ok(Load { key_bytes, value_bytes, keys, values, order, ..blank(global, operation) })
}

fn range(global: &Global, flags: &RangeFlags) -> Result<Load, String> {
    if flags.paginate && (flags.stream || flags.limit > 0) {
        return Err("--paginate conflicts with --stream and --limit: a page has 10000 keys".into());
    }
    if flags.count_only && flags.keys_only {
        return Err("--count-only conflicts with --keys-only".into());
    }
    check_limit(flags.limit)?;
    let range = RangeLoad {
        key: flags.key.clone(),
        end: flags.end.clone(),
        prefix: flags.prefix,
        serializable: flags.consistency == "s",
        limit: flags.limit,
        count_only: flags.count_only,
        keys_only: flags.keys_only,
        read: match (flags.stream, flags.paginate) {
            (true, _) => ReadAs::Stream,
            (false, true) => ReadAs::Pages,
            (false, false) => ReadAs::Whole,
        },
    };
    Ok(Load { key_bytes: flags.key.len(), ..blank(global, Operation::Range(range)) })
}

fn txn_mixed(global: &Global, flags: &TxnMixedFlags) -> Result<Load, String> {
    let &TxnMixedFlags { limit, rw_ratio: ranges_per_put, .. } = flags;
    check_limit(limit)?;
    if !ranges_per_put.is_finite() || ranges_per_put < 0.0 {
        return Err(format!("invalid --rw-ratio {ranges_per_put}: expected the number of ranges per put"));
    }
    let (end, serializable) = (flags.end_key.clone(), flags.consistency == "s");
    let operation = Operation::TxnMixed { end, limit, serializable, ranges_per_put };
    writing(global, operation, &flags.writing, KeyOrder::Sequential, 1)
}

fn stm(global: &Global, flags: &StmFlags) -> Result<Load, String> {
    let &StmFlags { keys, keys_per_txn, txn_wr_percent, val_size: value_bytes, .. } = flags;
    if keys == 0 || keys > i64::MAX as u64 {
        return Err(format!("invalid --keys {keys}: expected 1 to {}", i64::MAX));
    }
    if keys_per_txn as u64 > keys {
        return Err(format!("invalid --keys-per-txn {keys_per_txn}: more than the {keys} keys of --keys"));
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
    let operation = Operation::Stm { keys_per_txn, write_percent, isolation, locker };
    Ok(Load { keys, value_bytes, values: Values::PerKey, ..blank(global, operation) })
}

fn ycsb(global: &Global, flags: &YcsbFlags) -> Result<Load, String> {
    let &YcsbFlags { workload, records, scan_max, skip_load, ref val_size, .. } = flags;
    if records == 0 {
        return Err("invalid --records 0: expected 1 or more".into());
    }
    if scan_max == 0 || i64::try_from(scan_max).is_err() {
        return Err(format!("invalid --scan-max {scan_max}: expected 1 to {}", i64::MAX));
    }
    if val_size.most() > REQUEST_BYTES_MAX {
        return Err(format!("invalid --val-size {val_size}: expected at most {REQUEST_BYTES_MAX} bytes"));
    }
    let (mix, distribution) =
        Mix::of_workload(workload).ok_or(format!("invalid --workload {workload}: expected a to f"))?;
    Ok(blank(
        global,
        Operation::Ycsb(YcsbLoad {
            mix: flags.mix.unwrap_or(mix).to_string(),
            distribution: flags.distribution.unwrap_or(distribution).to_string(),
            sizes: val_size.to_string(),
            records,
            skip_load,
            scan_max,
            serializable: flags.consistency == "s",
            prefix: flags.prefix.clone(),
        }),
    ))
}

fn kubernetes(global: &Global, flags: &KubernetesFlags) -> Result<Load, String> {
    let &KubernetesFlags { nodes, api_servers, .. } = flags;
    if nodes == 0 || nodes > NODES_MAX {
        return Err(format!("invalid --nodes {nodes}: expected 1 to {NODES_MAX}"));
    }
    let pods = flags.pods.unwrap_or(nodes * PODS_PER_NODE);
    if pods == 0 || pods > PODS_MAX {
        return Err(format!("invalid --pods {pods}: expected 1 to {PODS_MAX}"));
    }
    let churn = flags.churn.unwrap_or(nodes as f64 * CHURN_PER_NODE);
    if !(churn >= 0.0 && churn.is_finite()) {
        return Err(format!("invalid --churn {churn}: expected 0 or more"));
    }
    let prefix = flags.prefix.clone();
    let load =
        blank(global, Operation::Kubernetes(KubernetesLoad { nodes, pods, churn, api_servers, prefix }));
    if !flags.sending.open_loop || flags.sending.rate > 0.0 {
        return sent(load, &flags.sending);
    }
    // Without a rate, an open loop uses the rate of the cluster.
    let mut cluster = Kubernetes::new(nodes, 1, 1, "k".into(), 0);
    (cluster.pods, cluster.churn) = (pods, churn);
    let sending = Sending { rate: (cluster.rate() * 10.0).round() / 10.0, ..flags.sending.clone() };
    sent(load, &sending)
}

fn watch(global: &Global, flags: &WatchFlags) -> Result<Load, String> {
    let &WatchFlags { watched_key_total: watched, key_size, key_space_size, .. } = flags;
    if watched == 0 {
        return Err("invalid --watched-key-total 0: expected 1 or more".into());
    }
    if key_size.saturating_mul(watched) > KEYS_BYTES_MAX {
        return Err(format!("invalid --watched-key-total {watched}: the keys exceed {KEYS_BYTES_MAX} bytes"));
    }
    check_keys(key_size, key_space_size)?;
    let load = Load {
        key_bytes: key_size,
        value_bytes: WATCH_VALUE_BYTES,
        keys: key_space_size,
        order: if flags.sequential_keys { KeyOrder::Sequential } else { KeyOrder::Random },
        streams: flags.streams,
        watchers_per_stream: flags.watch_per_stream,
        ..blank(global, Operation::Watch { watched })
    };
    put_events(load, flags.put_total, flags.put_rate, flags.duration, flags.open_loop)
}

fn watch_latency(global: &Global, flags: &WatchLatencyFlags) -> Result<Load, String> {
    if flags.key_size == 0 {
        return Err("invalid --key-size 0: expected 1 or more".into());
    }
    let load = Load {
        key_bytes: flags.key_size,
        value_bytes: flags.val_size,
        streams: flags.streams,
        watchers_per_stream: flags.watchers_per_stream,
        ..blank(global, Operation::WatchLatency { prev_kv: flags.prevkv })
    };
    put_events(load, flags.put_total, flags.put_rate, flags.duration, flags.open_loop)
}

/// Adds the number and the pace of the puts whose events are measured. Two timestamps are recorded per put,
/// so the number must be known.
fn put_events(
    load: Load,
    total: u64,
    rate: f64,
    duration: Duration,
    open_loop: bool,
) -> Result<Load, String> {
    let total = match (duration.is_zero(), rate > 0.0) {
        (true, _) => total,
        (false, false) => return Err("--duration requires --put-rate".into()),
        (false, true) => ((rate * duration.as_secs_f64()).round() as u64).max(1),
    };
    let seconds = some(duration).map(|duration| duration.as_secs_f64());
    let pace = pace("--put-rate", rate, open_loop)?;
    check_events(Load { total, seconds, pace, ..load })
}

/// Checks the number of events, and that values can identify their put.
fn check_events(load: Load) -> Result<Load, String> {
    let total = load.total;
    if total == 0 || total > PUTS_MAX {
        return Err(format!("invalid number of puts {total}: expected 1 to {PUTS_MAX}"));
    }
    let (bytes, needed) = (load.value_bytes, position_bytes(total));
    if bytes < needed {
        return Err(format!("invalid value size {bytes}: the numbers of {total} puts need {needed} bytes"));
    }
    check_watchers(&load).map(|()| load)
}

fn watch_get(global: &Global, flags: &WatchGetFlags) -> Result<Load, String> {
    let &WatchGetFlags { watchers, streams, events, .. } = flags;
    if streams == 0 || !watchers.is_multiple_of(streams) {
        return Err(format!("invalid --streams {streams}: expected a divisor of --watchers {watchers}"));
    }
    if events == 0 {
        return Err("invalid --events 0: expected 1 or more".into());
    }
    let operation = Operation::WatchGet { events };
    let watchers_per_stream = watchers / streams;
    let load = Load { key_bytes: 8, streams, watchers_per_stream, ..blank(global, operation) };
    check_watchers(&load).map(|()| load)
}

fn check_watchers(load: &Load) -> Result<(), String> {
    match load.streams.saturating_mul(load.watchers_per_stream) {
        1..=WATCHERS_MAX => Ok(()),
        watchers => Err(format!("invalid number of watchers {watchers}: expected 1 to {WATCHERS_MAX}")),
    }
}

fn check_limit(limit: i64) -> Result<(), String> {
    if limit < 0 { Err(format!("invalid --limit {limit}: expected 0 or more")) } else { Ok(()) }
}

fn check_keys(key_bytes: usize, keys: u64) -> Result<(), String> {
    if keys == 0 || keys > i64::MAX as u64 {
        return Err(format!("invalid --key-space-size {keys}: expected 1 to {}", i64::MAX));
    }
    let needed = varint_bytes_max(keys);
    if key_bytes < needed {
        return Err(format!("invalid --key-size {key_bytes}: {keys} keys need {needed} bytes"));
    }
    Ok(())
}

fn check(load: &Load) -> Result<(), String> {
    let Load { conns, clients, .. } = load;
    if *clients == 0 || *conns == 0 {
        return Err("invalid --clients or --conns 0: expected 1 or more".into());
    }
    if conns > clients {
        return Err(format!("invalid --conns {conns}: more than the {clients} clients"));
    }
    if load.target == Target::EachSummed && load.streams > 0 {
        return Err("--each-member is not supported with watchers".into());
    }
    Ok(())
}

/// Returns the pace for a rate from the flag `name`.
fn pace(name: &str, rate: f64, open_loop: bool) -> Result<Pace, String> {
    if !(rate.is_finite() && rate >= 0.0) {
        return Err(format!("invalid {name} {rate}: expected 0 or more"));
    }
    match open_loop {
        true if rate == 0.0 => Err(format!("--open-loop requires {name}")),
        false if rate == 0.0 => Ok(Pace::Unlimited),
        true => Ok(Pace::Open(rate)),
        false => Ok(Pace::AtMost(rate)),
    }
}

/// Returns `None` for a zero duration.
fn some(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

/// Returns the number of threads. Defaults to half the processors, because the servers of a local
/// measurement need the rest.
pub fn threads(global: &Global) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if global.threads == 0 { (processors / 2).max(1) } else { global.threads }
}

/// Rejects unsupported flags of etcd's tool.
pub fn refuse_unsupported(flags: &RefusedFlags) -> Result<(), String> {
    if !flags.auto_sync_interval.is_zero() {
        return Err("--auto-sync-interval is not supported: the endpoints of a run are fixed".into());
    }
    if flags.report_perfdash {
        return Err("--report-perfdash is not supported: use --json".into());
    }
    Ok(())
}

/// Surveys the cluster, creates what the load needs unless this is a dry run, and returns its run.
pub async fn run(
    global: &Global,
    endpoints: &[Endpoint],
    load: &Load,
    dry_run: bool,
) -> Result<(Run, admin::ClusterView), ExitReason> {
    let cluster = admin::cluster(endpoints).await.map_err(|error| error.to_string())?;
    let mut prepared = Prepared { seed: rand::random(), ..Prepared::default() };
    if !dry_run {
        let created = prepared.create(load, endpoints, LEASE_SECONDS).await;
        created.map_err(|error| crate::output::text::chain(&error))?;
    }
    let mut run = Run::of(load, endpoints.to_vec(), &prepared);
    run.threads = threads(global);
    run.request_timeout = some(global.request_timeout);
    run.failed_calls = if global.count_failures { FailedCalls::Included } else { FailedCalls::Apart };
    run.patience = some(global.dial_timeout).unwrap_or(PATIENCE);
    if load.target == Target::Leader {
        let leader = cluster.leader().map_err(|error| error.to_string())?;
        if load::follows_leader(load, &run) {
            (run.endpoints, run.target) = (cluster.endpoints(), EndpointTarget::Leader);
        } else {
            run.endpoints = vec![leader.clone()];
        }
    }
    of_flags(run.check().map_err(|error| error.to_string()))?;
    Ok((run, cluster))
}

#[cfg(test)]
mod tests {
    use super::super::flags::Cli;
    use super::*;
    use bench_report::suite;

    /// Returns the load of a command line, or the error.
    fn read(line: &str) -> Result<Load, String> {
        let words = std::iter::once("loadgen").chain(line.split_whitespace()).map(Into::into).collect();
        let cli = Cli::read(words)
            .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())?;
        refuse_unsupported(&cli.global.refused)?;
        load(&cli.global, &cli.command)?.ok_or_else(|| "no load".into())
    }

    #[test]
    fn the_printed_command_of_every_row_parses_back_to_its_load() {
        let names = ["all", "core", "coordination"].map(str::to_owned);
        let mut count = 0;
        for scale in [0.01, 1.0] {
            for row in suite::find(&names).unwrap().iter().flat_map(|suite| &suite.rows) {
                let load = row.scaled(scale, None).load;
                let command = load.command();
                let parsed = read(command.trim_start_matches("loadgen ")).map_err(|error| (command, error));
                assert_eq!(parsed.as_ref(), Ok(&load), "{}", row.id);
                count += 1;
            }
        }
        assert!(count > 200, "{count} rows");
    }

    #[test]
    fn every_kind_of_load_is_printed_and_stored_without_a_loss() {
        for line in [
            "put",
            "put --clients 1000",
            "put --target-leader --conns=100 --clients=1000 --key-size=8 --sequential-keys --total=100000",
            "put --rate=500 --key-space-size 70 --random-values",
            "put --rate 9.5 --open-loop --duration=30s --streams=2 --watchers-per-stream=3",
            "put --each-member --protocol=http-json",
            "txn-put --txn-ops 4 --key-space-size=9",
            "range foo",
            "range a b --consistency=s --limit=3 --keys-only",
            "range --prefix --count-only",
            "range a b --paginate --connect=one",
            "range a --stream",
            "txn-mixed --rw-ratio=3 --end-key=z --limit=5 --key-space-size=9 --consistency=s",
            "stm --isolation=ss --keys=9 --keys-per-txn=3 --txn-wr-percent=99 --stm-locker=lock-rpc",
            "lease-keepalive --clients=5",
            "watch --watched-key-total=7 --key-space-size=5 --sequential-keys --put-rate=20 --open-loop",
            "watch",
            "watch-latency --prevkv --streams=2 --watchers-per-stream=3 --put-rate=0 --key-size=4",
            "watch-latency --duration=30s --put-rate=20",
            "watch-get --watchers=10 --streams=5 --events=3",
            "watch-history --streams=3 --total=5",
            "ycsb --workload=E --val-size=5..9 --skip-load",
            "ycsb --mix=read=7,rmw=3 --distribution=hotspot --consistency=s --prefix=x",
            "kubernetes --nodes=7 --churn=0.5 --open-loop",
        ] {
            let load = read(line).unwrap();
            let again = read(load.command().trim_start_matches("loadgen ")).unwrap();
            assert_eq!(again, load, "{line}: {}", load.command());
            let stored: Load = serde_json::from_str(&serde_json::to_string(&load).unwrap()).unwrap();
            assert_eq!(stored, load, "{line}");
        }
    }

    #[test]
    fn defaults_are_those_of_etcds_tool() {
        let put = read("put").unwrap();
        let Load { key_bytes, value_bytes, keys, order, conns, clients, total, .. } = put;
        assert_eq!((key_bytes, value_bytes, keys, order), (8, 8, 1, KeyOrder::Random));
        assert_eq!((conns, clients, total, put.pace), (1, 1, 10_000, Pace::Unlimited));
        let latency = read("watch-latency").unwrap();
        assert_eq!((latency.streams, latency.watchers_per_stream, latency.total), (10, 10, 1000));
        assert_eq!(latency.pace, Pace::AtMost(100.0));
        let watch = read("watch").unwrap();
        assert_eq!((watch.streams, watch.watchers_per_stream, watch.key_bytes), (10, 100, 32));
    }

    #[test]
    fn invalid_loads_are_rejected_with_the_reason() {
        for (line, reason) in [
            ("put --clients=0", "invalid --clients or --conns 0: expected 1 or more"),
            ("put --conns=0", "invalid --clients or --conns 0: expected 1 or more"),
            ("put --conns=3 --clients=2", "invalid --conns 3: more than the 2 clients"),
            ("put --total=0", "invalid --total 0: expected 1 or more"),
            ("put --rate=-1", "invalid --rate -1: expected 0 or more"),
            ("put --key-space-size=0", "invalid --key-space-size 0: expected 1 to 9223372036854775807"),
            ("put --key-size=2 --key-space-size=10000", "invalid --key-size 2: 10000 keys need 3 bytes"),
            ("put --key-size=0", "invalid --key-size 0: 1 keys need 1 bytes"),
            ("put --slo=p99=1ms --rates=5", "--slo conflicts with --rates"),
            (
                "put --duration=5s --rates=5",
                "--duration conflicts with --rates and --find-max-rate: use --step",
            ),
            ("put --open-loop", "--open-loop requires --rate"),
            (
                "put --val-size=2000000000",
                "invalid request size 2000000008: expected at most 1073741824 bytes",
            ),
            ("put --report-perfdash", "--report-perfdash is not supported: use --json"),
            ("txn-put --txn-ops=0", "invalid --txn-ops 0: expected 1 or more"),
            ("txn-put --txn-ops=2", "invalid --txn-ops 2: more than the 1 keys of --key-space-size"),
            ("range k --count-only --keys-only", "--count-only conflicts with --keys-only"),
            ("range k --limit=-1", "invalid --limit -1: expected 0 or more"),
            (
                "range k --paginate --stream",
                "--paginate conflicts with --stream and --limit: a page has 10000 keys",
            ),
            ("watch --streams=0", "invalid number of watchers 0: expected 1 to 10000000"),
            ("watch --watched-key-total=0", "invalid --watched-key-total 0: expected 1 or more"),
            ("watch --key-size=1 --key-space-size=100", "invalid --key-size 1: 100 keys need 2 bytes"),
            ("watch --open-loop", "--open-loop requires --put-rate"),
            ("watch --duration=5s", "--duration requires --put-rate"),
            ("watch --put-total=0", "invalid number of puts 0: expected 1 to 100000000"),
            ("watch-latency --val-size=1", "invalid value size 1: the numbers of 1000 puts need 2 bytes"),
            ("watch-get --streams=3", "invalid --streams 3: expected a divisor of --watchers 10000"),
            ("stm --keys=0", "invalid --keys 0: expected 1 to 9223372036854775807"),
            ("stm --keys-per-txn=2", "invalid --keys-per-txn 2: more than the 1 keys of --keys"),
            ("txn-mixed --rw-ratio=-1", "invalid --rw-ratio -1: expected the number of ranges per put"),
            ("ycsb --records=0", "invalid --records 0: expected 1 or more"),
            ("ycsb --rates=5", "--rates and --find-max-rate are not supported by ycsb"),
            (
                "ycsb --workload=g",
                "error: invalid value 'g' for '--workload <VALUE>': expected a, b, c, d, e or f",
            ),
            ("kubernetes --nodes=0", "invalid --nodes 0: expected 1 to 1000000"),
        ] {
            let error = read(line).unwrap_err();
            assert!(
                error == reason || error.starts_with("error: ") && reason.starts_with("error: "),
                "{line}: {error}"
            );
        }
    }
}
