//! Turns flags into plans, and rejects invalid combinations.

pub mod coordination; // watchers, leases and transactions
pub mod kubernetes; // API servers
pub mod row; // rows of reports
pub mod shown; // --dry-run

use super::flags::sending::{Sending, Writing};
use super::flags::{Global, PutFlags, RangeFlags, RefusedFlags, TxnPutFlags};
use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::run::recorder::FailedCalls;
use crate::run::schedule::RunPace;
use crate::run::{EndpointTarget, LoadPlan};
use crate::workload::keys::{KeyOrder, varint_bytes_max};
use crate::workload::{Workload, Writes, prefix_end};
use api::etcdserverpb::RangeRequest;
use bench_report::model::{Connect, RowProtocol, Values};
use bytes::Bytes;
use std::time::Duration;

/// Default of --dial-timeout.
const PATIENCE: Duration = Duration::from_secs(10);
/// Page size of `range --paginate`, like in etcd's tool.
const PAGE_KEYS: i64 = 10_000;
/// Far below the length limit of a gRPC message (4 GiB).
const REQUEST_BYTES_MAX: usize = 1 << 30;

/// Surveys the cluster, and selects the endpoints of a plan.
pub async fn aimed(global: &Global, mut plan: LoadPlan) -> Result<(LoadPlan, admin::ClusterView), String> {
    let cluster = admin::cluster(&plan.endpoints).await.map_err(|error| error.to_string())?;
    if global.target_leader {
        let leader = cluster.leader().map_err(|error| error.to_string())?;
        if plan.can_follow_leader() {
            plan.endpoints = cluster.endpoints();
            plan.target = EndpointTarget::Leader;
        } else {
            plan.endpoints = vec![leader.clone()];
        }
    }
    Ok((plan, cluster))
}

/// Returns the plan of a run over `endpoints`, or the reason why it is invalid.
pub fn plan(
    global: &Global,
    endpoints: Vec<Endpoint>,
    workload: Workload,
    sending: &Sending,
) -> Result<LoadPlan, String> {
    if sending.steps.are_wanted() {
        sending.steps.rates(sending.rate)?;
    }
    if let Some(stages) = sending.stages {
        return planned(global, endpoints, workload, stages.total(), RunPace::Stages(stages));
    }
    let pace = match &workload {
        // Without a rate, an open loop uses the rate of the cluster.
        Workload::Kubernetes(cluster) if sending.open_loop && sending.rate == 0 => {
            RunPace::Open((cluster.rate() * 10.0).round() / 10.0)
        }
        _ => pace("--rate", sending.rate, sending.open_loop)?,
    };
    if sending.duration.is_zero() {
        return planned(global, endpoints, workload, sending.total, pace);
    }
    if sending.steps.are_wanted() {
        return Err("--duration is that of one run: give --step with several rates".into());
    }
    let plan = planned(global, endpoints, workload, LoadPlan::OPEN_END, pace)?;
    Ok(LoadPlan { seconds_max: Some(sending.duration), ..plan })
}

/// Like `plan`, for loads with separate flags for total and pace.
pub fn planned(
    global: &Global,
    endpoints: Vec<Endpoint>,
    workload: Workload,
    total: u64,
    pace: RunPace,
) -> Result<LoadPlan, String> {
    check_callers(global)?;
    if total == 0 {
        return Err("--total=0 would send nothing".into());
    }
    Ok(LoadPlan {
        protocol: RowProtocol::Grpc,
        endpoints,
        target: EndpointTarget::All,
        conns: global.conns,
        connect: if global.connect == "one" { Connect::One } else { Connect::All },
        clients: global.clients,
        threads: threads(global),
        workload,
        total,
        seconds_max: None,
        pace,
        warm_up: Duration::ZERO,
        request_timeout: some(global.request_timeout),
        failed_calls: if global.count_failures { FailedCalls::Included } else { FailedCalls::Apart },
        patience: some(global.dial_timeout).unwrap_or(PATIENCE),
        observer: None,
        watching: None,
    })
}

/// Checks that the numbers of callers and connections are compatible.
pub fn check_callers(global: &Global) -> Result<(), String> {
    if global.clients == 0 {
        return Err("--clients=0 would send nothing".into());
    }
    if global.conns == 0 {
        return Err("--conns=0 cannot carry a request".into());
    }
    if global.conns > global.clients {
        let Global { conns, clients, .. } = global;
        return Err(format!("--conns={conns} is more than --clients={clients} can use"));
    }
    Ok(())
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
        return Err("--auto-sync-interval: the endpoints of a measurement stay as they are given".into());
    }
    if flags.report_perfdash {
        return Err("--report-perfdash is not offered, --json holds the same figures".into());
    }
    Ok(())
}

pub fn put(flags: &PutFlags) -> Result<Workload, String> {
    let order = if flags.sequential_keys { KeyOrder::Sequential } else { KeyOrder::Random };
    Ok(Workload::Put(writes(&flags.writing, order, 1)?))
}

pub fn txn_put(flags: &TxnPutFlags) -> Result<Workload, String> {
    let (ops, space) = (flags.txn_ops, flags.writing.key_space_size);
    if ops == 0 {
        return Err("--txn-ops=0 would write nothing".into());
    }
    if ops as u64 > space {
        return Err(format!(
            "--txn-ops={ops} is more than --key-space-size={space} keys: one txn writes a key once"
        ));
    }
    let writes = writes(&flags.writing, KeyOrder::Sequential, ops)?;
    Ok(Workload::TxnPut { ops, writes })
}

pub fn writes(flags: &Writing, order: KeyOrder, ops: usize) -> Result<Writes, String> {
    let &Writing { key_size: key_bytes, val_size: value_bytes, key_space_size: space, random_values } = flags;
    check_keys(key_bytes, space)?;
    let request_bytes = key_bytes.saturating_add(value_bytes).saturating_mul(ops);
    if request_bytes > REQUEST_BYTES_MAX {
        return Err(format!(
            "a request of {request_bytes} bytes is more than the {REQUEST_BYTES_MAX} that fit"
        ));
    }
    let values = if random_values { Values::PerKey } else { Values::Same };
    let (prefix, seed) = (Bytes::new(), rand::random());
    Ok(Writes { key_bytes, value_bytes, prefix, key_space: space, order, values, seed })
}

pub fn check_keys(key_bytes: usize, space: u64) -> Result<(), String> {
    if key_bytes == 0 {
        return Err("--key-size=0: a key has one byte at least".into());
    }
    if space == 0 || space > i64::MAX as u64 {
        return Err(format!("--key-space-size={space}: expected 1 to {}", i64::MAX));
    }
    let needed = varint_bytes_max(space);
    if key_bytes < needed {
        return Err(format!(
            "--key-size={key_bytes} cannot hold the numbers of --key-space-size={space}: {needed} bytes"
        ));
    }
    Ok(())
}

pub fn range(flags: &RangeFlags) -> Result<Workload, String> {
    if flags.paginate && (flags.stream || flags.limit > 0) {
        return Err("--paginate excludes --stream and --limit: its pages have 10000 keys".into());
    }
    if flags.count_only && flags.keys_only {
        return Err("--count-only and --keys-only exclude each other".into());
    }
    if flags.limit < 0 {
        return Err(format!("--limit={}: a limit is 1 at least, or 0 for none", flags.limit));
    }
    let (key, range_end) = match (flags.prefix, flags.key.as_str()) {
        // Without a prefix: every key.
        (true, "") => (Bytes::from_static(b"\0"), Bytes::from_static(b"\0")),
        (true, key) => (Bytes::copy_from_slice(key.as_bytes()), prefix_end(key.as_bytes())),
        (false, key) => (key.to_owned().into(), flags.end.clone().into()),
    };
    let request = RangeRequest {
        key,
        range_end,
        limit: if flags.paginate { PAGE_KEYS } else { flags.limit },
        serializable: flags.consistency == "s",
        keys_only: flags.keys_only,
        count_only: flags.count_only,
        ..Default::default()
    };
    Ok(match (flags.stream, flags.paginate) {
        (true, _) => Workload::RangeStream(request),
        (false, true) => Workload::Pages(request),
        (false, false) => Workload::Range(request),
    })
}

/// Returns the pace for a rate from the flag `named`.
pub fn pace(named: &str, rate: u64, open_loop: bool) -> Result<RunPace, String> {
    match (rate, open_loop) {
        (0, true) => Err(format!("--open-loop needs a {named} to keep")),
        (0, false) => Ok(RunPace::Unlimited),
        (rate, true) => Ok(RunPace::Open(rate as f64)),
        (rate, false) => Ok(RunPace::AtMost(rate as f64)),
    }
}

/// Returns `None` for a zero duration.
pub fn some(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::flags::{Cli, Command};
    use crate::run::watchers::OpenWatchers;
    use clap::Parser;
    use std::sync::Arc;

    /// Summarizes the plan of a command line, or returns the error.
    fn read(line: &str) -> Result<String, String> {
        let cli = Cli::try_parse_from(std::iter::once("loadgen").chain(line.split_whitespace()))
            .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())?;
        refuse_unsupported(&cli.global.refused)?;
        let watched = match &cli.command {
            Command::Watch(flags) => Some(coordination::watch(&cli.global, flags)?),
            Command::WatchLatency(flags) => Some(coordination::watch_latency(&cli.global, flags)?),
            _ => None,
        };
        if let Some(LoadPlan { conns, clients, total, pace, watching: Some(watching), .. }) = watched {
            let OpenWatchers { streams, per_stream, keys, prev_kv, .. } = watching;
            let distinct = keys.iter().collect::<std::collections::HashSet<_>>().len();
            let watched = format!("{streams}×{per_stream} on {distinct} of {} keys", keys.len());
            let prev_kv = if prev_kv { " prev" } else { "" };
            return Ok(format!(
                "{conns}/{clients} {total} {pace:?}: {watched} of {} B{prev_kv}",
                keys[0].len()
            ));
        }
        let (workload, sending) = match &cli.command {
            Command::Put(flags) => (put(flags)?, &flags.sending),
            Command::TxnPut(flags) => (txn_put(flags)?, &flags.sending),
            Command::Range(flags) => (range(flags)?, &flags.sending),
            Command::TxnMixed(flags) => (coordination::txn_mixed(flags)?, &flags.sending),
            Command::Stm(flags) => (coordination::stm(flags)?, &flags.sending),
            Command::Ycsb(_) | Command::Kubernetes(_) => unreachable!("it has separate tests"),
            Command::LeaseKeepalive(flags) => (Workload::LeaseKeepAlive(Arc::default()), &flags.sending),
            Command::Watch(_) | Command::WatchLatency(_) | Command::WatchGet(_) => unreachable!("handled"),
            Command::Verify(_)
            | Command::Proxy(_)
            | Command::Agent(_)
            | Command::Suite(_)
            | Command::Compare(_)
            | Command::Report(_)
            | Command::Completion { .. } => {
                return Ok("no single run".into());
            }
        };
        let plan = plan(&cli.global, cli.global.endpoints.clone(), workload, sending)?;
        let endpoints: Vec<_> = plan.endpoints.iter().map(ToString::to_string).collect();
        let LoadPlan { conns, clients, total, pace, .. } = plan;
        let what = match plan.workload {
            Workload::TxnMixed { range: r, read_share, writes: w } => format!(
                "{read_share:.2} {:?}..{:?} limit {}, {}+{} of {}",
                r.key, r.range_end, r.limit, w.key_bytes, w.value_bytes, w.key_space
            ),
            Workload::Stm(stm) => format!(
                "{} of {} keys, {} %, {} B, {:?}, {:?}",
                stm.keys_per_txn, stm.keys, stm.write_percent, stm.value_bytes, stm.isolation, stm.locker
            ),
            Workload::LeaseKeepAlive(_) => "leases".into(),
            Workload::Ycsb(_) | Workload::Kubernetes(_) => unreachable!("its command has separate tests"),
            Workload::PutKeys { .. } => unreachable!("only watchers have it"),
            Workload::Put(w) => format!("{}+{} of {} {:?}", w.key_bytes, w.value_bytes, w.key_space, w.order),
            Workload::TxnPut { ops, writes: w } => {
                format!("{ops}×({}+{}) of {} {:?}", w.key_bytes, w.value_bytes, w.key_space, w.order)
            }
            Workload::Pages(r) => format!("pages {:?}..{:?} limit {}", r.key, r.range_end, r.limit),
            Workload::Range(r) | Workload::RangeStream(r) => {
                let flags = [(r.serializable, " s"), (r.keys_only, " keys"), (r.count_only, " count")];
                let flags: String = flags.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
                format!("{:?}..{:?} limit {}{flags}", r.key, r.range_end, r.limit)
            }
        };
        Ok(format!("{} {conns}/{clients} {total} {pace:?}: {what}", endpoints.join(" ")))
    }

    #[test]
    fn command_lines_become_plans_with_etcds_defaults() {
        for (line, plan) in [
            ("put", "127.0.0.1:2379 1/1 10000 Unlimited: 8+8 of 1 Random"),
            ("put --clients 1000", "127.0.0.1:2379 1/1000 10000 Unlimited: 8+8 of 1 Random"),
            (
                "--endpoints=a:1,b:2 --target-leader --conns=100 --clients=1000 put --key-size=8 \
                 --sequential-keys --total=100000 --val-size=256",
                "a:1 b:2 100/1000 100000 Unlimited: 8+256 of 1 Sequential",
            ),
            (
                "put --endpoints http://a:1,b:2 --rate=500 --key-space-size 70",
                "a:1 b:2 1/1 10000 AtMost(500.0): 8+8 of 70 Random",
            ),
            ("put --rate 9 --open-loop", "127.0.0.1:2379 1/1 10000 Open(9.0): 8+8 of 1 Random"),
            ("put --total 5 --total 6", "127.0.0.1:2379 1/1 6 Unlimited: 8+8 of 1 Random"),
            (
                "txn-put --txn-ops 4 --key-space-size=9",
                "127.0.0.1:2379 1/1 10000 Unlimited: 4×(8+8) of 9 Sequential",
            ),
            ("range foo", "127.0.0.1:2379 1/1 10000 Unlimited: b\"foo\"..b\"\" limit 0"),
            (
                "range a b --consistency=s --limit=3 --keys-only",
                "127.0.0.1:2379 1/1 10000 Unlimited: b\"a\"..b\"b\" limit 3 s keys",
            ),
            (
                "txn-mixed k",
                "127.0.0.1:2379 1/1 10000 Unlimited: 0.50 b\"\\0\"..b\"\\0\" limit 1000, 8+8 of 1",
            ),
            (
                "txn-mixed --rw-ratio=3 --end-key=z --limit=5 --key-space-size=9",
                "127.0.0.1:2379 1/1 10000 Unlimited: 0.75 b\"\\0\"..b\"z\" limit 5, 8+8 of 9",
            ),
            ("stm", "127.0.0.1:2379 1/1 10000 Unlimited: 1 of 1 keys, 50 %, 8 B, RepeatableReads, None"),
            (
                "stm --isolation=ss --keys=9 --keys-per-txn=3 --txn-wr-percent=100 --stm-locker=lock-rpc \
                 --rate=5",
                "127.0.0.1:2379 1/1 10000 AtMost(5.0): 3 of 9 keys, 100 %, 8 B, SerializableSnapshot, Rpc",
            ),
            ("lease-keepalive --clients=5", "127.0.0.1:2379 1/5 10000 Unlimited: leases"),
            ("watch", "1/1 1000 Unlimited: 10×100 on 1 of 1 keys of 32 B"),
            (
                "watch --watched-key-total=7 --key-space-size=5 --sequential-keys --put-rate=20 --open-loop",
                "1/1 1000 Open(20.0): 10×100 on 5 of 7 keys of 32 B",
            ),
            ("watch-latency", "1/1 1000 AtMost(100.0): 10×10 on 1 of 1 keys of 32 B"),
            (
                "watch-latency --prevkv --streams=2 --watchers-per-stream=3 --put-rate=0 --key-size=4",
                "1/1 1000 Unlimited: 2×3 on 1 of 1 keys of 4 B prev",
            ),
            ("range --prefix ab", "127.0.0.1:2379 1/1 10000 Unlimited: b\"ab\"..b\"ac\" limit 0"),
            ("range a b --paginate", "127.0.0.1:2379 1/1 10000 Unlimited: pages b\"a\"..b\"b\" limit 10000"),
            (
                "watch-latency --duration=30s --put-rate=20",
                "1/1 600 AtMost(20.0): 10×10 on 1 of 1 keys of 32 B",
            ),
            (
                "range --prefix --count-only",
                "127.0.0.1:2379 1/1 10000 Unlimited: b\"\\0\"..b\"\\0\" limit 0 count",
            ),
        ] {
            assert_eq!(read(line), Ok(plan.into()), "{line}");
        }
    }

    #[test]
    fn invalid_watchers_and_transactions_are_refused_with_the_reason() {
        for (line, reason) in [
            ("watch --streams=0", "0 watchers: expected 1 to 10000000"),
            ("watch --watched-key-total=0", "--watched-key-total=0 watches nothing"),
            (
                "watch --watched-key-total=1000000000",
                "--watched-key-total=1000000000 keys of 32 bytes are too many",
            ),
            (
                "watch --key-size=1 --key-space-size=100",
                "--key-size=1 cannot hold the numbers of --key-space-size=100: 2 bytes",
            ),
            ("watch --open-loop", "--open-loop needs a --put-rate to keep"),
            ("watch --put-total=0", "--total=0 would send nothing"),
            (
                "watch-latency --val-size=1",
                "values of 1 bytes cannot hold the numbers of --put-total=1000: 2 bytes",
            ),
            (
                "watch-latency --put-total=200000000",
                "--put-total=200000000 is more than 100000000, whose times are kept",
            ),
            ("stm --keys=0", "--keys=0: expected 1 to 9223372036854775807"),
            ("stm --keys-per-txn=2", "--keys-per-txn=2 is more than --keys=1"),
            ("txn-mixed --rw-ratio=-1", "--rw-ratio=-1: expected a number of ranges for each put"),
            ("txn-mixed --limit=-1", "--limit=-1: a limit is 1 at least, or 0 for none"),
        ] {
            assert_eq!(read(line), Err(reason.into()), "{line}");
        }
    }

    #[test]
    fn invalid_command_lines_are_refused_with_the_reason() {
        for (line, reason) in [
            ("put --clients=0", "--clients=0 would send nothing"),
            ("put --conns=0", "--conns=0 cannot carry a request"),
            ("put --conns=3 --clients=2", "--conns=3 is more than --clients=2 can use"),
            ("put --total=0", "--total=0 would send nothing"),
            ("put --key-space-size=0", "--key-space-size=0: expected 1 to 9223372036854775807"),
            (
                "put --key-size=2 --key-space-size=10000",
                "--key-size=2 cannot hold the numbers of --key-space-size=10000: 3 bytes",
            ),
            ("put --key-size=0", "--key-size=0: a key has one byte at least"),
            (
                "put --slo=p99=1ms --rates=5",
                "--slo is a limit of one run or of --find-max-rate, not of --rates",
            ),
            (
                "put --find-max-rate --slo=errors=0",
                "--find-max-rate needs one limit of latency in --slo, as p99=10ms",
            ),
            ("put --duration=5s --rates=5", "--duration is that of one run: give --step with several rates"),
            ("put --open-loop", "--open-loop needs a --rate to keep"),
            (
                "put --val-size=2000000000",
                "a request of 2000000008 bytes is more than the 1073741824 that fit",
            ),
            ("txn-put --txn-ops=0", "--txn-ops=0 would write nothing"),
            (
                "txn-put --txn-ops=2",
                "--txn-ops=2 is more than --key-space-size=1 keys: one txn writes a key once",
            ),
            ("range k --count-only --keys-only", "--count-only and --keys-only exclude each other"),
            ("range k --limit=-1", "--limit=-1: a limit is 1 at least, or 0 for none"),
            (
                "range k --paginate --limit=5",
                "--paginate excludes --stream and --limit: its pages have 10000 keys",
            ),
            (
                "range k --paginate --stream",
                "--paginate excludes --stream and --limit: its pages have 10000 keys",
            ),
            ("watch --duration=5s", "--duration needs a --put-rate"),
            ("put --report-perfdash", "--report-perfdash is not offered, --json holds the same figures"),
        ] {
            assert_eq!(read(line), Err(reason.into()), "{line}");
        }
        for line in [
            "stm --isolation=x",
            "stm --txn-wr-percent=101",
            "stm --stm-locker=x",
            "txn-mixed a b c",
            "range",
            "range a b c",
            "range k --consistency=x",
            "put --rate=-1",
            "put --endpoints=nowhere",
        ] {
            assert!(read(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        for (prefix, end) in [(&b"a"[..], &b"b"[..]), (b"a\xff", b"b"), (b"\xff\xff", b"\0")] {
            assert_eq!(prefix_end(prefix), end);
        }
    }
}
