//! Measurements of `loadgen` and verification by `checker` against three members. Measurements: no failures,
//! and every event, renewal and transaction is counted. Verification: no violation while members are killed,
//! and each injected fault is detected.

use crate::common;
use crate::common::Cluster;
use api::etcdserverpb::LeaseGrantRequest;
use api::etcdserverpb::RangeRequest;
use bytes::Bytes;
use checker::{Lie, Proxy, Settings};
use loadgen::{
    Awaits, Isolation, KeyOrder, Kubernetes, Locker, Measurement, OpenWatchers, Run, Stm, Values, Workload,
    Writes,
};
use std::sync::Arc;
use std::time::Duration;

/// Faults that are injected at the same time.
const CONCURRENT_LIES: usize = 9;

fn plan(cluster: &Cluster, workload: Workload, total: u64) -> Run {
    let endpoints: Vec<_> = cluster.members.iter().map(|m| format!("127.0.0.1:{}", m.client_port)).collect();
    let endpoints: Vec<loadgen::Endpoint> =
        endpoints.iter().map(|endpoint| endpoint.parse().unwrap()).collect();
    Run {
        conns: 2,
        clients: 6,
        threads: 1,
        endpoints: endpoints.clone(),
        ..Run::new(endpoints[0].clone(), workload, total)
    }
}

#[tokio::test]
async fn api_servers_receive_every_event_of_a_kubernetes_cluster() {
    let cluster = Cluster::started(3);
    cluster.leader().await;
    let kubernetes = Kubernetes::new(5, 40, 2, "registry/".into(), 7);
    let load = plan(&cluster, Workload::Kubernetes(kubernetes.load_phase()), kubernetes.objects());
    assert_eq!(counts(load).await, (51, 0));
    let used = measure(plan(&cluster, Workload::Kubernetes(kubernetes.clone()), 600)).await;
    assert_eq!((used.tally.succeeded_len(), used.parts.len()), (600, 12));
    let events = kubernetes.events();
    assert!(events.expected > 600, "two API servers, and most operations write: {events:?}");
    assert_eq!((events.received, events.repeated), (events.expected, 0));
}

/// Returns the numbers of counted and failed operations.
async fn counts(plan: Run) -> (u64, u64) {
    let Measurement { tally, .. } = &measure(plan).await;
    (tally.succeeded_len(), tally.failed_len())
}

async fn measure(plan: Run) -> Measurement {
    let measured = tokio::task::spawn_blocking(|| plan.measure()).await.unwrap().unwrap();
    let failures: Vec<_> = measured.tallies().flat_map(|tally| tally.failures.values()).collect();
    assert!(failures.is_empty(), "{failures:?}");
    measured
}

#[tokio::test]
async fn coordination_is_measured_without_a_failure() {
    let cluster = Cluster::started(3);
    cluster.leader().await;

    let keys: Arc<[Bytes]> = ["a", "b", "c"].map(Bytes::from).into();
    let watching = |awaits| {
        let keys = keys.clone();
        Some(OpenWatchers { streams: 3, per_stream: 5, keys, prev_kv: true, awaits, since_answer: false })
    };
    let before = cluster.members[0].put("z", "").await;
    let puts = Workload::PutKeys { keys: keys.clone(), value_bytes: 8 };
    let live = Run { watching: watching(Awaits::Puts), ..plan(&cluster, puts.clone(), 30) };
    assert_eq!(counts(live).await, (150, 0), "5 watchers of each key, 10 puts of each");
    let history = Awaits::History { revision: before + 1, events: 10 };
    let past = Run { watching: watching(history), ..plan(&cluster, puts, 0) };
    assert_eq!(counts(past).await, (150, 0));
    let get = Workload::Range(RangeRequest { key: "abc".into(), serializable: true, ..Default::default() });
    let reads = Run { watching: watching(history), ..plan(&cluster, get, Run::OPEN_END) };
    assert!(counts(reads).await.0 > 0);

    let mut leases = Vec::new();
    for _ in 0..6 {
        let mut client = cluster.members[0].client().await.lease();
        leases.push(client.lease_grant(LeaseGrantRequest { ttl: 100, id: 0 }).await.unwrap().into_inner().id);
    }
    assert_eq!(counts(plan(&cluster, Workload::LeaseKeepAlive(leases.into()), 60)).await, (60, 0));

    let writes = Writes {
        key_bytes: 8,
        value_bytes: 8,
        prefix: bytes::Bytes::new(),
        key_space: 10,
        order: KeyOrder::Sequential,
        values: Values::Same,
        seed: 1,
    };
    let all = Bytes::from_static(b"\0");
    let range = RangeRequest { key: all.clone(), range_end: all, limit: 10, ..Default::default() };
    let mixed = measure(plan(&cluster, Workload::TxnMixed { range, read_share: 0.5, writes }, 60)).await;
    assert_eq!(mixed.parts.iter().map(|part| part.tally.succeeded_len()).sum::<u64>(), 60);
}

#[tokio::test]
async fn ranges_are_read_in_pages_to_their_end() {
    let cluster = Cluster::started(3);
    cluster.leader().await;
    for number in 0..25 {
        cluster.members[0].put(&format!("page/{number:02}"), &"v".repeat(100)).await;
    }
    for (limit, body_least) in [(10, 25 * 100), (1000, 25 * 100)] {
        let range =
            RangeRequest { key: "page/".into(), range_end: "page0".into(), limit, ..Default::default() };
        let read = measure(plan(&cluster, Workload::Pages(range), 12)).await;
        assert_eq!(read.tally.succeeded_len(), 12);
        let each = read.tally.body_bytes / 12;
        assert!(each >= body_least && each < 2 * body_least, "{each} bytes of pages of {limit}");
    }
}

#[tokio::test]
async fn transactions_of_each_level_and_lock_are_committed() {
    let cluster = Cluster::started(3);
    cluster.leader().await;
    let stm = Stm {
        keys: 5,
        keys_per_txn: 2,
        write_percent: 100,
        value_bytes: 8,
        prefix: Bytes::new(),
        isolation: Isolation::ReadCommitted,
        locker: Locker::None,
        seed: 1,
    };
    for isolation in [
        Isolation::ReadCommitted,
        Isolation::RepeatableReads,
        Isolation::Serializable,
        Isolation::SerializableSnapshot,
    ] {
        let stm = Stm { isolation, ..stm.clone() };
        assert_eq!(counts(plan(&cluster, Workload::Stm(stm), 30)).await, (30, 0), "{isolation:?}");
    }
    for locker in [Locker::Client, Locker::Rpc] {
        let stm = Stm { locker, isolation: Isolation::Serializable, ..stm.clone() };
        let measured = measure(plan(&cluster, Workload::Stm(stm), 30)).await;
        let tally = &measured.tally;
        assert_eq!(
            (tally.succeeded_len(), tally.retries),
            (30, 0),
            "{locker:?}: nothing conflicts inside a lock"
        );
        let left =
            RangeRequest { key: "stmlock/".into(), range_end: "stmlock0".into(), ..Default::default() };
        let left = cluster.members[0].kv().await.range(left).await.unwrap().into_inner();
        assert_eq!(left.kvs, [], "{locker:?}: the locks are released");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn verification_finds_nothing_while_each_member_is_killed() {
    let mut cluster = Cluster::started(3);
    let settings = Settings {
        // Time for the kills, also on a busy machine, and for a lease that expires after the last kill.
        duration: Duration::from_secs(12),
        compact_interval: Some(Duration::from_secs(1)),
        ..verification(endpoints(&cluster))
    };
    let killing = async move {
        // Start with the first write.
        let mut reader = cluster.members[0].kv().await;
        while reader.range(common::get("any")).await.unwrap().into_inner().header.unwrap().revision == 1 {}
        let kill_each = move || {
            for member in &mut cluster.members {
                member.kill();
                member.launch();
                member.wait_ready();
            }
            cluster
        };
        tokio::task::spawn_blocking(kill_each).await.unwrap()
    };
    let mut ignored = |_, _: &_| {};
    let verifying = checker::run(&settings, std::future::pending(), &mut ignored);
    let (report, cluster) = tokio::join!(verifying, killing);
    let (report, _cluster) = (report.unwrap(), cluster);
    assert!(report.violation.is_none() && report.failed.is_none(), "{report:?}");
    assert!(report.undecided == 0 && report.late.is_empty(), "{report:?}");
    let checked = &report.checked;
    assert!(checked.writes > 0 && checked.linearizable_reads > 0, "{report:?}");
    assert!(checked.leases_expired > 0 && checked.hashes > 0, "{report:?}");
    assert!(!report.timeline.leaders.is_empty(), "{report:?}");
}

#[tokio::test]
async fn every_lie_of_a_proxy_is_found() {
    let cluster = Cluster::started(3);
    cluster.leader().await;
    // On the same cluster, with distinct keys.
    let endpoints = endpoints(&cluster);
    let verify = |lie| {
        let mut endpoints = endpoints.clone();
        async move {
            let proxy = Proxy::bind("127.0.0.1:0", endpoints[0].clone(), &[lie], 3).await.unwrap();
            endpoints[0] = proxy.address().unwrap().to_string();
            let counts = proxy.counts();
            // Stops when the lie is detected; long enough for a busy machine.
            let settings = Settings { duration: Duration::from_secs(300), ..verification(endpoints) };
            let mut ignored = |_, _: &_| {};
            let report = tokio::select! {
                report = checker::run(&settings, std::future::pending(), &mut ignored) => report.unwrap(),
                () = proxy.serve() => unreachable!("it serves until it is dropped"),
            };
            let found = report.violation.as_ref().map(|violation| violation.rule.clone().into_owned());
            assert!(found.is_some(), "{lie}, {:?}: {report:?}", counts.get());
            (lie, found.unwrap())
        }
    };
    let mut found = Vec::new();
    // A few at a time, so that renewals are not starved on a busy machine.
    for lies in Lie::ALL.chunks(CONCURRENT_LIES) {
        found.extend(futures_util::future::join_all(lies.iter().map(|lie| verify(*lie))).await);
    }
    // Rules broken by a single lie; a lost renewal is first visible in the reported TTL, or at expiry.
    let rule = |lie| found.iter().find(|(found, _)| *found == lie).unwrap().1.as_str();
    assert_eq!(rule(Lie::WrongHash), "members have different hashes at one revision");
    let of_leases = [
        "the keys of a lease were deleted before its time was over",
        "a lease is said to have another time than it has",
    ];
    assert!(of_leases.contains(&rule(Lie::LostRenewal)), "{}", rule(Lie::LostRenewal));
}

fn endpoints(cluster: &Cluster) -> Vec<String> {
    cluster.members.iter().map(|member| format!("127.0.0.1:{}", member.client_port)).collect()
}

fn verification(endpoints: Vec<String>) -> Settings {
    Settings {
        endpoints,
        prefix: "verify/".to_owned(),
        duration: Duration::from_secs(1),
        rate: 100.0,
        clients: 6,
        keys: 5,
        leases: 6,
        hash_interval: Some(Duration::from_millis(500)),
        compact_interval: None,
        request_timeout: Duration::from_secs(2),
    }
}
