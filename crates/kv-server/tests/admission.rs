//! Admission control: client requests take bounded memory and threads in total, and a single connection
//! leaves capacity for the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Cluster, Member, PATIENCE, get, post, put};
use api::etcdserverpb::maintenance_client::MaintenanceClient;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{HashKvRequest, RangeRequest, RequestOp, TxnRequest};
use client::Client;
use futures_util::future::join_all;
use tonic::{Code, Status};

/// Starts a member of the binary under test, by default that of this build. An older one is measured for
/// comparison.
fn lone() -> Cluster {
    Cluster::started_from("KV_SERVER_UNDER_TEST", "m0", &[])
}

fn everything() -> RangeRequest {
    RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..RangeRequest::default() }
}

fn sorted() -> RangeRequest {
    let (sort_order, sort_target) = (SortOrder::Descend as i32, SortTarget::Value as i32);
    RangeRequest { sort_order, sort_target, ..everything() }
}

fn in_txn() -> TxnRequest {
    let op = RequestOp { request: Some(Op::RequestRange(everything())) };
    TxnRequest { success: vec![op.clone(), op], ..TxnRequest::default() }
}

/// Returns a field of `/proc/<pid>/status` in MiB.
fn memory(member: &Member, field: &str) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", member.running().pid())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with(field)).expect("Linux has this field");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") / 1024
}

pub fn threads(member: &Member) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", member.running().pid())).expect("it runs");
    tasks.count()
}

async fn fill(member: &Member, keys: usize, value_bytes: usize) {
    let value: String = (0..value_bytes).map(|at| char::from(b'a' + (at * 7 % 26) as u8)).collect();
    let mut kv = member.kv().await;
    for number in 0..keys {
        kv.put(put(&format!("k{number:07}"), &value)).await.expect("a healthy member takes a put");
    }
}

#[track_caller]
fn only_refused_for_memory<T>(outcomes: &[Result<T, Status>]) {
    for outcome in outcomes {
        match outcome {
            Ok(_) => {}
            Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{status}"),
        }
    }
}

/// Sends ranges over all keys from `clients` clients concurrently: sorted, without values, or twice in a
/// transaction. The store has `keys` values of 1 MiB. Returns the number of successful responses.
async fn ask_for_everything(keys: usize, clients: usize) -> usize {
    let cluster = lone();
    let member = &cluster.members[0];
    fill(member, keys, 1 << 20).await;
    let before = memory(member, "VmRSS");
    let mut calls = Vec::new();
    for number in 0..clients {
        let patient = member.endpoint().timeout(Duration::from_secs(300));
        let client = Client::new(patient.connect().await.expect("a ready member can be dialled"));
        let mut kv = client.kv();
        calls.push(tokio::spawn(async move {
            match number % 3 {
                0 => kv.range(sorted()).await.map(|answer| answer.into_inner().kvs.len()),
                1 => {
                    let keys_only = RangeRequest { keys_only: true, ..everything() };
                    kv.range(keys_only).await.map(|answer| answer.into_inner().kvs.len())
                }
                _ => kv.txn(in_txn()).await.map(|answer| answer.into_inner().responses.len()),
            }
        }));
    }
    let outcomes: Vec<_> = join_all(calls).await.into_iter().map(|call| call.expect("no panic")).collect();
    let grown = memory(member, "VmHWM").saturating_sub(before);
    let answered = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    eprintln!("before {before} MiB, peak {grown} MiB more, {answered} of {clients} answered");
    only_refused_for_memory(&outcomes);
    assert!(grown <= 256, "{grown} MiB more than the {before} MiB before");
    assert_eq!(member.get("k0000000").await.map(|value| value.len()), Some(1 << 20));
    answered
}

/// Responses that are sorted, without values, or part of a transaction are built in memory and share a
/// budget.
#[tokio::test(flavor = "multi_thread")]
async fn answers_held_whole_have_one_budget() {
    assert!(ask_for_everything(40, 24).await >= 12, "each fits, so they wait for each other");
}

/// With a memory limit, expensive requests wait or are rejected, and small ones succeed.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_keeps_to_its_memory_limit() {
    const LIMIT_MIB: u64 = 256;
    const CLIENTS: usize = 24;
    let cluster = Cluster::started_with(1, &[&format!("--memory-limit={LIMIT_MIB}MiB")]);
    let member = &cluster.members[0];
    fill(member, 20, 1 << 20).await;
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut asking = Vec::new();
    for number in 0..CLIENTS {
        // A large response waits until the allocator returns memory, 10 s at a time.
        let endpoint = member.endpoint().timeout(5 * PATIENCE);
        let client = Client::new(endpoint.connect().await.expect("a ready member can be dialled"));
        let mut kv = client.kv();
        let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
        asking.push(tokio::spawn(async move {
            let mut refused = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let outcome = match number % 4 {
                    0 => kv.range(everything()).await.map(drop),
                    1 => kv.txn(in_txn()).await.map(drop),
                    2 => kv.put(put(&format!("own{number}"), &"v".repeat(1 << 20))).await.map(drop),
                    _ => kv.range(sorted()).await.map(drop),
                };
                match outcome {
                    Ok(()) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                    Err(status) => refused.push(status),
                }
            }
            refused
        }));
    }
    let mut small = member.kv().await;
    while answered.load(Ordering::Relaxed) < 2 * CLIENTS as u64 {
        small.put(put("small", "value")).await.expect("small calls go on");
        assert!(memory(member, "VmRSS") <= LIMIT_MIB, "{} MiB", memory(member, "VmRSS"));
    }
    stop.store(true, Ordering::Relaxed);
    for refused in join_all(asking).await.into_iter().map(|client| client.expect("no panic")) {
        for status in refused {
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            assert!(status.metadata().contains_key("grpc-retry-pushback-ms"), "{status:?}");
        }
    }
    let peak = memory(member, "VmHWM");
    eprintln!("at most {peak} MiB");
    assert!(peak <= LIMIT_MIB, "{peak} MiB");
}

/// No response with values fits, so each is rejected.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes some minutes and, where it fails, many GiB"]
async fn answers_that_fit_nowhere_are_refused() {
    assert!(
        ask_for_everything(300, 64).await >= 1,
        "those without values are answered, if they need not wait for long"
    );
}

/// Deleted values are part of a response, which is built in apply.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_that_would_return_too_much_is_refused_before_it_happens() {
    let cluster = lone();
    let member = &cluster.members[0];
    fill(member, 100, 1 << 20).await;
    let delete = api::etcdserverpb::DeleteRangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        prev_kv: true,
    };
    let mut kv = member.kv().await;
    let deleted = kv.delete_range(delete.clone()).await.map(|answer| answer.into_inner().deleted);
    let refused = deleted.expect_err("more than all answers may hold");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(member.get("k0000099").await.is_some(), "nothing was deleted");
    // The gateway's limit is 32 MiB.
    let of_40_mib = r#"{"key":"AA==","range_end":"azAwMDAwNDA=","prev_kv":true}"#;
    let answer = post(member.client_port, "/v3/kv/deleterange", of_40_mib);
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("33554432 bytes"), "{answer}");
    assert!(member.get("k0000000").await.is_some(), "nothing was deleted");
    let delete = api::etcdserverpb::DeleteRangeRequest { range_end: "k0000020".into(), ..delete };
    let answer = kv.delete_range(delete).await.expect("20 MiB fit").into_inner();
    assert_eq!((answer.deleted, answer.prev_kvs.len()), (20, 20));
}

/// Concurrent hash requests use few threads, and delay neither health checks nor small reads.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_hashes_takes_two_threads() {
    let cluster = lone();
    let member = &cluster.members[0];
    fill(member, 64, 1 << 20).await;
    let idle = threads(member);
    let client = member.client().await;
    let hash = async |mut client: MaintenanceClient<client::Channel>| {
        client.hash_kv(HashKvRequest { revision: 0 }).await.map(drop)
    };
    let flood: Vec<_> = (0..100).map(|_| tokio::spawn(hash(client.maintenance()))).collect();
    let mut most = 0;
    let mut kv = member.kv().await;
    let mut slowest = Duration::ZERO;
    for _ in 0..100 {
        let began = Instant::now();
        kv.range(get("k0000001")).await.expect("a narrow read is answered");
        slowest = slowest.max(began.elapsed());
        most = most.max(threads(member));
    }
    eprintln!("{} threads more, slowest narrow read {slowest:?}", most - idle);
    flood.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(most <= idle + 6, "{most} threads, {idle} before");
}

/// Sixteen connections with continuous puts of 1.5 MiB leave capacity for a hundred with small puts.
#[tokio::test(flavor = "multi_thread")]
async fn large_puts_leave_room_for_small_ones() {
    const LARGE: usize = 16;
    const SMALL: usize = 100;
    let cluster = lone();
    let member = &cluster.members[0];
    let stop = Arc::new(AtomicBool::new(false));
    let [done, refused] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let value = "v".repeat((3 << 19) - 1000);
    let mut large = Vec::new();
    for number in 0..LARGE {
        let (stop, done, refused) = (Arc::clone(&stop), Arc::clone(&done), Arc::clone(&refused));
        let (mut kv, value) = (member.kv().await, value.clone());
        large.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                match kv.put(put(&format!("large{number}"), &value)).await {
                    Ok(_) => done.fetch_add(1, Ordering::Relaxed),
                    Err(_) => refused.fetch_add(1, Ordering::Relaxed),
                };
            }
        }));
    }
    let mut small = Vec::new();
    for number in 0..SMALL {
        let (mut kv, stop) = (member.kv().await, Arc::clone(&stop));
        small.push(tokio::spawn(async move {
            let (mut latencies, mut refused) = (Vec::new(), 0);
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                match kv.put(put(&format!("small{number}"), "little")).await {
                    Ok(_) => latencies.push(began.elapsed()),
                    Err(_) => refused += 1,
                }
            }
            (latencies, refused)
        }));
    }
    // At least a round of large puts, even on a slow machine.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) || done.load(Ordering::Relaxed) < LARGE as u64 {
        assert!(began.elapsed() < PATIENCE, "large puts do not go on");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let (mut latencies, mut small_refused) = (Vec::new(), 0);
    for client in join_all(small).await {
        let (of_client, refused) = client.expect("no panic");
        latencies.extend(of_client);
        small_refused += refused;
    }
    join_all(large).await;
    latencies.sort();
    let p99 = latencies[latencies.len() * 99 / 100];
    let [done, refused] = [done, refused].map(|count| count.load(Ordering::Relaxed));
    eprintln!(
        "large: {done} done, {refused} refused; small: {} done, {small_refused} refused, p99 {p99:?}",
        latencies.len()
    );
    assert_eq!((refused, small_refused), (0, 0), "large and small puts that were refused");
}

/// The request of a stream is retained until its client has read the last chunk.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_nobody_reads_keep_a_bounded_part_of_their_requests() {
    const STREAMS: usize = 100;
    let cluster = lone();
    let member = &cluster.members[0];
    fill(member, 1, 200 << 10).await;
    let before = memory(member, "VmRSS");
    let windows = member.endpoint().initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let windows = windows.connect().await.expect("a ready member can be dialled");
    let mut kv = Client::new(windows).kv();
    let range_end = [b"z".to_vec(), vec![b'z'; 1 << 20]].concat();
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let request = RangeRequest { key: "a".into(), range_end: range_end.clone().into(), ..get("") };
        streams.push(kv.range_stream(request).await);
    }
    let grown = memory(member, "VmRSS").saturating_sub(before);
    only_refused_for_memory(&streams);
    assert!(grown <= 60, "{STREAMS} streams hold {grown} MiB");
}
