//! Compatibility of builds for different architectures: wire format and files.
//!
//! ```text
//!   other  other  other      a cluster under emulation: put, range, txn, kill -9 of the leader, restart
//!   ours ─▶ other ─▶ ours    a data directory moved there and back, after a clean stop and after kill -9
//!   ours   ours   other      a mixed cluster; then every member changes its architecture, sequentially
//! ```
//!
//! `KV_SERVER_OTHER` has the commands for the other build: a line per command, with an emulator, its
//! arguments and the program's path, separated by spaces. Members use the lines round robin, so that a
//! cluster mixes several processors and page sizes. `.ci/run aarch64` builds it and sets the variable;
//! without it, these tests report that they are skipped.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod common;

use std::time::{Duration, Instant};

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, RangeRequest, RequestOp, TxnRequest,
};

use common::{Cluster, Member, PATIENCE, get, put, server};

const OTHER: &str = "KV_SERVER_OTHER";
/// Timeouts for emulated processors, which share two cores with their peers and miss heartbeats more often.
const SLOW_CLOCK: [&str; 2] = ["--heartbeat-interval=500", "--election-timeout=5000"];
/// Client retry delay. A request lost with its leader fails only after the server's longer timeout.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Returns the commands for the other build; `None` if there is none.
fn other() -> Option<Vec<Vec<String>>> {
    let Ok(lines) = std::env::var(OTHER) else {
        eprintln!("left out: {OTHER} names no build for another architecture");
        return None;
    };
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    let ways: Vec<Vec<String>> =
        lines.lines().map(words).filter(|way: &Vec<String>| !way.is_empty()).collect();
    assert!(!ways.is_empty(), "{OTHER} is set, but says nothing");
    Some(ways)
}

fn ours() -> Vec<String> {
    vec![server().to_owned()]
}

/// Creates a cluster in which member `n` runs `programs[n]`, with timeouts for emulation.
fn cluster(programs: &[Vec<String>]) -> Cluster {
    let mut cluster = Cluster::new(programs.len());
    for (member, program) in cluster.members.iter_mut().zip(programs) {
        member.program.clone_from(program);
        member.extra = SLOW_CLOCK.map(str::to_owned).to_vec();
    }
    cluster.start();
    cluster
}

/// Writes until a put is acknowledged; returns its revision.
async fn write_patiently(member: &Member, key: &str) -> i64 {
    let began = Instant::now();
    let mut client = member.kv().await;
    loop {
        if let Ok(Ok(answer)) = tokio::time::timeout(TRY_AGAIN, client.put(put(key, "x"))).await {
            return answer.into_inner().header.expect("every answer has a header").revision;
        }
        assert!(began.elapsed() < PATIENCE, "nothing could be written");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Puts `key` if it is at `version`, else reads it. Returns whether it was at `version`.
async fn put_if_version(member: &Member, key: &str, version: i64) -> bool {
    let compare = Compare {
        key: key.to_owned().into(),
        target: CompareTarget::Version.into(),
        result: CompareResult::Equal.into(),
        target_union: Some(TargetUnion::Version(version)),
        ..Compare::default()
    };
    let txn = TxnRequest {
        compare: vec![compare],
        success: vec![RequestOp { request: Some(Request::RequestPut(put(key, "txn"))) }],
        failure: vec![RequestOp { request: Some(Request::RequestRange(get(key))) }],
    };
    member.kv().await.txn(txn).await.expect("a healthy cluster takes a txn").into_inner().succeeded
}

/// Writes many keys, some of them overwritten, deleted or compacted, and some with values larger than any
/// page size.
async fn write_history(member: &Member, name: &str) {
    let mut client = member.kv().await;
    for round in 0..3 {
        for key in 0..200 {
            let value = "v".repeat(if key == 7 { 200_000 } else { 10 + key * round });
            client.put(put(&format!("{name}/{key:03}"), &value)).await.unwrap();
        }
    }
    let deleted = DeleteRangeRequest {
        key: format!("{name}/050").into(),
        range_end: format!("{name}/060").into(),
        ..DeleteRangeRequest::default()
    };
    assert_eq!(client.delete_range(deleted).await.unwrap().into_inner().deleted, 10);
    assert!(put_if_version(member, &format!("{name}/001"), 3).await);
    assert!(!put_if_version(member, &format!("{name}/001"), 3).await);
    let newest = member.put(name, "done").await;
    let compaction = CompactionRequest { revision: newest - 300, physical: true };
    client.compact(compaction).await.unwrap();
}

/// Returns the state of a member visible to clients: current revision, live pairs with their metadata, and
/// the hash of the history.
async fn seen(member: &Member) -> (i64, Vec<api::mvccpb::KeyValue>, (u32, i64)) {
    let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() };
    let answer = member.kv().await.range(all).await.unwrap().into_inner();
    let revision = answer.header.expect("every answer has a header").revision;
    (revision, answer.kvs, member.hash_kv(revision).await)
}

/// How a member stops before its directory moves.
#[derive(Clone, Copy, Debug)]
enum End {
    Polite,
    Killed,
}

/// Stops `member` and starts `program` on the same directory.
fn hand_over(member: &mut Member, program: &[String], end: End) {
    match end {
        End::Killed => member.kill(),
        End::Polite => {
            let process = member.process.take().expect("the member was started");
            process.terminate();
            let (status, said) = process.wait_end();
            assert!(status.success(), "{status}\n{said}");
        }
    }
    member.program = program.to_vec();
    member.launch();
    member.wait_ready();
}

#[tokio::test]
async fn a_cluster_of_the_other_architecture_survives_its_leader() {
    let Some(other) = other() else { return };
    let programs: Vec<Vec<String>> = other.iter().cycle().take(3).cloned().collect();
    let mut cluster = cluster(&programs);
    write_history(&cluster.members[0], "before").await;
    let leader = cluster.leader().await;
    cluster.members[leader].kill();
    let survivor = &cluster.members[(leader + 1) % 3];
    write_patiently(survivor, "after").await;
    assert_eq!(survivor.get("before").await.as_deref(), Some("done"));
    cluster.members[leader].launch();
    cluster.members[leader].wait_ready();
    for member in &cluster.members {
        assert_eq!(member.get("after").await.as_deref(), Some("x"));
    }
    cluster.assert_equal(0).await;
}

#[tokio::test]
async fn a_data_directory_moves_to_the_other_architecture_and_back() {
    let Some(other) = other() else { return };
    for (way, there, back) in
        [(&other[0], End::Polite, End::Killed), (other.last().unwrap(), End::Killed, End::Polite)]
    {
        let mut cluster = cluster(&[ours()]);
        let member = &mut cluster.members[0];
        write_history(member, "here").await;
        let written = seen(member).await;
        hand_over(member, way, there);
        assert_eq!(seen(member).await, written, "{way:?} reads what was written here, after {there:?}");

        write_history(member, "there").await;
        let written = seen(member).await;
        hand_over(member, &ours(), back);
        assert_eq!(seen(member).await, written, "what {way:?} wrote is read here, after {back:?}");
    }
}

#[tokio::test]
async fn a_cluster_of_both_changes_its_architecture_member_by_member() {
    let Some(other) = other() else { return };
    let mut cluster = cluster(&[ours(), ours(), other[0].clone()]);
    for at in 0..3 {
        write_history(&cluster.members[at], &format!("m{at}")).await;
    }
    cluster.assert_equal(0).await;
    let programs = [other[0].clone(), other.last().unwrap().clone(), ours()];
    for (at, program) in programs.iter().enumerate() {
        hand_over(&mut cluster.members[at], program, End::Killed);
        for member in &cluster.members {
            write_patiently(member, &format!("{} after {at}", member.name)).await;
        }
        cluster.assert_equal(0).await;
    }
}
