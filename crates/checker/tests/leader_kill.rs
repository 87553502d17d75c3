//! Repeated leader crashes under full load, without loss of acknowledged writes.
//!
//! ```text
//!   1000 clients put distinct keys ─────────▶ every (key, revision) recorded
//!   round: kill -9 the leader ▶ a write succeeds within 3 s ▶ restart it ▶ ready ┘
//!   final: equal hashes on all members, and each recorded key at exactly its revision
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::etcdserverpb::RangeRequest;
use bytes::Bytes;
use loadgen::{CallFailure, CallObserver, KeyOrder, Pace, Run, Values, Workload, Writes};

use crate::common::{Cluster, Member, PATIENCE, put};

const ROUNDS: usize = 20;
/// Maximum write outage after most leader crashes. May be exceeded once on a busy machine.
const GAP_MAX: Duration = Duration::from_secs(3);
/// Minimum number of acknowledged writes between two rounds, to ensure the load.
const BETWEEN_ROUNDS: usize = 2000;
const TRY_AGAIN: Duration = Duration::from_millis(300);
/// Page size of the final read.
const PAGE: i64 = 10_000;

#[derive(Default)]
struct Ledger {
    written: Mutex<HashMap<Bytes, i64>>,
}

impl CallObserver for Ledger {
    fn acknowledged(&self, _position: u64, key: Bytes, revision: i64) {
        let before = self.written.lock().unwrap().insert(key.clone(), revision);
        assert_eq!(before, None, "{key:?} was sent twice");
    }

    fn failed(&self, _position: u64, _failure: &CallFailure) {}
}

impl Ledger {
    fn count(&self) -> usize {
        self.written.lock().unwrap().len()
    }

    async fn wait_for_more(&self, more: usize) {
        let (enough, deadline) = (self.count() + more, Instant::now() + PATIENCE);
        while self.count() < enough {
            assert!(Instant::now() < deadline, "the load has dried up");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn load(cluster: &Cluster, ledger: &Arc<Ledger>) -> Run {
    let endpoint = |member: &Member| format!("127.0.0.1:{}", member.client_port).parse().unwrap();
    let writes = Writes {
        key_bytes: 8,
        value_bytes: 256,
        prefix: bytes::Bytes::new(),
        key_space: 1 << 40,
        order: KeyOrder::Sequential,
        values: Values::Same,
        seed: 1,
    };
    Run {
        endpoints: cluster.members.iter().map(endpoint).collect(),
        conns: 100,
        clients: 1000,
        threads: 1,
        pace: Pace::Unlimited,
        // A request lost with its leader fails after the server's timeout; this one is slightly longer.
        request_timeout: Some(Duration::from_secs(10)),
        patience: PATIENCE,
        observer: Some(Arc::clone(ledger) as Arc<dyn CallObserver>),
        ..Run::new(endpoint(&cluster.members[0]), Workload::Put(writes), u64::MAX)
    }
}

/// Returns the time until a write issued by this call is acknowledged.
async fn time_to_write(member: &Member, key: &str) -> Duration {
    let began = Instant::now();
    let mut client = member.kv().await;
    loop {
        if let Ok(Ok(_)) = tokio::time::timeout(TRY_AGAIN, client.put(put(key, "x"))).await {
            return began.elapsed();
        }
        assert!(began.elapsed() < PATIENCE, "nothing could be written");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn round(cluster: &mut Cluster, ledger: &Ledger, number: usize) -> Duration {
    ledger.wait_for_more(BETWEEN_ROUNDS).await;
    let leader = cluster.leader().await;
    cluster.members[leader].kill();
    let survivor = &cluster.members[(leader + 1 + number % 2) % 3];
    let gap = time_to_write(survivor, &format!("round {number}")).await;
    cluster.members[leader].launch();
    cluster.members[leader].wait_ready();
    gap
}

/// Returns the latest revision of every key, read in pages.
async fn everything(member: &Member) -> HashMap<Bytes, i64> {
    let mut client = member.kv().await;
    let mut found = HashMap::new();
    let mut from = Bytes::from_static(b"\0");
    loop {
        let (limit, range_end) = (PAGE, Bytes::from_static(b"\0"));
        let request =
            RangeRequest { key: from, range_end, limit, keys_only: true, ..RangeRequest::default() };
        let answer = client.range(request).await.unwrap().into_inner();
        let Some(last) = answer.kvs.last() else { return found };
        from = [&last.key[..], b"\0"].concat().into();
        found.extend(answer.kvs.into_iter().map(|pair| (pair.key, pair.mod_revision)));
        if !answer.more {
            return found;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "twenty rounds take minutes"]
async fn twenty_leaders_die_under_load_and_nothing_is_lost() {
    let mut cluster = Cluster::started(3);
    let ledger = Arc::new(Ledger::default());
    let run = load(&cluster, &ledger).start().unwrap();
    let mut gaps = Vec::new();
    for number in 0..ROUNDS {
        let gap = round(&mut cluster, &ledger, number).await;
        println!("round {number}: writes went on after {gap:?}, {} acknowledged", ledger.count());
        gaps.push(gap);
    }
    run.control().stop("the rounds are over");
    tokio::task::spawn_blocking(|| run.finish()).await.unwrap().unwrap();
    gaps.sort_unstable();
    assert!(gaps[ROUNDS / 2] <= GAP_MAX, "no write for {gaps:?}");

    cluster.assert_equal(0).await;
    let acknowledged = std::mem::take(&mut *ledger.written.lock().unwrap());
    for member in &cluster.members {
        let found = everything(member).await;
        let lost: Vec<_> = acknowledged.iter().filter(|(key, rev)| found.get(*key) != Some(rev)).collect();
        assert!(lost.is_empty(), "{} of {} lost, such as {:?}", lost.len(), acknowledged.len(), lost[0]);
    }
}
