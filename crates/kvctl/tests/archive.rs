//! `kvctl archive` and `restore` as processes: every revision can be restored, gaps and corruption are
//! reported.

use crate::common;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Cluster, Member, PATIENCE, Process, put};
use crate::{KVCTL, run, start};
use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{
    AuthUserAddRequest, CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, PutRequest, RequestOp, TxnRequest,
};
use axum::Router;
use axum::extract::Request;
use axum::http::{Response, StatusCode};
use client::Channel;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::transport::{Endpoint, Server};
use tower::ServiceExt;

pub fn archiver(member: &Member, to: &Path, flags: &[&str]) -> Process {
    let endpoints = format!("--endpoints=127.0.0.1:{}", member.client_port);
    let to = format!("--to={}", to.display());
    start(&[&["archive", &endpoints, &to, "--segment-every=50ms"], flags].concat())
}

/// Starts a single-member cluster. Also returns a directory and a path for its archive.
pub fn lone_cluster() -> (Cluster, TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("archive");
    (Cluster::started(1), directory, archive)
}

/// Replaces a directory by a file. Returns the directory's new path.
fn displace(directory: &Path) -> PathBuf {
    let away = directory.with_extension("away");
    std::fs::rename(directory, &away).unwrap();
    std::fs::write(directory, "").unwrap();
    away
}

fn put_back(away: &Path, directory: &Path) {
    std::fs::remove_file(directory).unwrap();
    std::fs::rename(away, directory).unwrap();
}

/// Waits until the archive has the revision. Returns the time up to which it is complete, in milliseconds
/// since 1970.
pub async fn wait_for(archive: &Path, revision: i64) -> i64 {
    let began = Instant::now();
    loop {
        let head = std::fs::read(archive.join("head.json")).unwrap_or_default();
        let head: serde_json::Value = serde_json::from_slice(&head).unwrap_or_default();
        if head["revision"].as_i64().is_some_and(|reached| reached >= revision) {
            return head["time_ms"].as_i64().unwrap();
        }
        assert!(began.elapsed() < PATIENCE, "not archived: revision {revision}, {head}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn restore(archive: &Path, member: &Member, flags: &[&str]) -> (bool, String) {
    let from = ["restore".to_owned(), format!("--from={}", archive.display())];
    let more: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    run(&[&from[..], &member.identity(), &more].concat())
}

pub fn objects(archive: &Path, directory: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(archive.join(directory)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn metrics_port(archiver: &Process) -> u16 {
    let said = archiver.said();
    let address = said.lines().find_map(|line| line.strip_prefix("metrics at http://127.0.0.1:")).unwrap();
    address.trim_end_matches("/metrics").parse().unwrap()
}

async fn write(kv: &mut KvClient<Channel>, random: &mut SmallRng, changes: usize) -> i64 {
    let mut revision = 0;
    for _ in 0..changes {
        let key = |random: &mut SmallRng| format!("k{}", random.random_range(0..20));
        let header = match random.random_range(0..4) {
            0 => {
                let delete = DeleteRangeRequest {
                    key: key(random).into(),
                    range_end: "k5".into(),
                    ..DeleteRangeRequest::default()
                };
                kv.delete_range(delete).await.unwrap().into_inner().header
            }
            1 => {
                let (first, second) = (format!("k{}", random.random_range(0..10)), key(random) + "x");
                let op = |key: &str| RequestOp { request: Some(Op::RequestPut(put(key, "txn"))) };
                let txn = TxnRequest { success: vec![op(&first), op(&second)], ..TxnRequest::default() };
                kv.txn(txn).await.unwrap().into_inner().header
            }
            _ => kv.put(put(&key(random), "value")).await.unwrap().into_inner().header,
        };
        revision = header.unwrap().revision;
    }
    revision
}

/// The archiver fails if the cluster returns with an older state.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_received_is_archived_when_the_connection_is_lost() {
    let mut cluster = Cluster::started(1);
    let directory = tempfile::tempdir().unwrap();
    let member = &mut cluster.members[0];
    let endpoints = format!("--endpoints=127.0.0.1:{}", member.client_port);
    let to = format!("--to={}", directory.path().display());
    let archiver = start(&["archive", &endpoints, &to, "--segment-every=1h"]);
    archiver.wait_for("archiving");
    member.put("k", "v").await;
    let began = Instant::now();
    // The member may be killed before the archiver has received the put.
    while objects(directory.path(), "log").is_empty() {
        assert!(began.elapsed() < PATIENCE, "{}", archiver.said());
        member.kill();
        member.launch();
        member.wait_ready();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_revision_comes_back_also_when_archiver_and_member_were_killed() {
    let (mut cluster, _directory, archive) = lone_cluster();
    let mut random = SmallRng::seed_from_u64(1);
    let mut seen = Vec::new();
    for round in 0..4 {
        let member = &mut cluster.members[0];
        if round == 2 {
            member.kill();
            member.launch();
            member.wait_ready();
        }
        let member = &cluster.members[0];
        let mut kv = member.kv().await;
        // In the last round, bases are created continuously.
        let flags: &[&str] = if round == 3 { &["--base-every=0s"] } else { &[] };
        let archiver = archiver(member, &archive, flags);
        archiver.wait_for("archiving");
        let revision = write(&mut kv, &mut random, 60).await;
        seen.push((revision, member.hash_kv(revision).await));
        let last = write(&mut kv, &mut random, 20).await;
        seen.push((last, member.hash_kv(last).await));
        wait_for(&archive, last).await;
        match round {
            0 => {
                archiver.terminate();
                let (status, said) = archiver.wait_end();
                assert!(
                    status.success() && said.contains(&format!("archived up to revision {last}")),
                    "{said}"
                );
            }
            _ => archiver.kill(),
        }
        // Written without an archiver.
        let revision = write(&mut kv, &mut random, 10).await;
        seen.push((revision, member.hash_kv(revision).await));
    }
    let archiver = archiver(&cluster.members[0], &archive, &[]);
    wait_for(&archive, seen.last().unwrap().0).await;
    archiver.kill();
    assert!(objects(&archive, "base").len() > 1, "the last round makes bases");
    for (revision, hash) in seen {
        let mut restored = Cluster::new(1);
        let member = &mut restored.members[0];
        let (is_made, said) = restore(&archive, member, &[&format!("--revision={revision}")]);
        assert!(is_made && said.contains(&format!("revision {revision}, from the base at")), "{said}");
        member.launch();
        member.wait_ready();
        assert_eq!(member.hash_kv(revision).await, hash, "revision {revision}");
        assert_eq!(member.put("new", "1").await, revision + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_gives_what_was_received_by_then_and_leases_keep_their_ttl() {
    let (cluster, _directory, archive) = lone_cluster();
    let member = &cluster.members[0];
    let client = member.client().await;
    let (mut kv, mut leases) = (client.kv(), client.lease());
    let grant = |id, ttl| LeaseGrantRequest { id, ttl };
    leases.lease_grant(grant(7, 900)).await.unwrap();
    leases.lease_grant(grant(8, 900)).await.unwrap();
    let attached = |key: &str, lease| PutRequest { lease, ..put(key, "1") };
    kv.put(attached("a", 7)).await.unwrap();
    let archiver = archiver(member, &archive, &["--listen-metrics=127.0.0.1:0"]);
    archiver.wait_for("archiving");
    // An id is granted again after the segment with its first TTL.
    leases.lease_grant(grant(9, 15)).await.unwrap();
    let first = kv.put(attached("b", 9)).await.unwrap().into_inner().header.unwrap().revision;
    wait_for(&archive, first).await;
    leases.lease_revoke(LeaseRevokeRequest { id: 9 }).await.unwrap();
    leases.lease_grant(grant(9, 800)).await.unwrap();
    kv.put(attached("b", 9)).await.unwrap();
    kv.put(attached("a", 0)).await.unwrap();
    let last = kv.put(put("c", "1")).await.unwrap().into_inner().header.unwrap().revision;
    let then = wait_for(&archive, last).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let later = member.put("d", "1").await;
    wait_for(&archive, later).await;

    let figures = common::http(metrics_port(&archiver), "GET /metrics");
    assert!(figures.contains(&format!("kv_archive_revision {later}\n")), "{figures}");
    assert!(figures.contains("kv_archive_bases_total 1\n"), "{figures}");

    let mut restored = Cluster::new(1);
    let member = &mut restored.members[0];
    let at = |ms: i64| {
        let since = Duration::from_millis(ms.cast_unsigned());
        format!("--time={}", humantime::format_rfc3339_millis(std::time::UNIX_EPOCH + since))
    };
    for (flag, wanted) in [
        (at(then + 86_400_000), "latest archived time is"),
        (at(1000), "the archive has no data at or before 1970-01-01T00:00:01"),
        ("--revision=1".to_owned(), "which has 2 to"),
        (format!("--revision={}", later + 1), "is not in the archive"),
    ] {
        let (is_made, said) = restore(&archive, member, &[&flag]);
        assert!(!is_made && said.contains(wanted), "{flag}: {said}");
    }
    let (is_made, said) = restore(&archive, member, &[&at(then)]);
    assert!(
        is_made && said.contains(&format!("revision {last}")) && said.contains("with 1 leases"),
        "{said}"
    );
    member.launch();
    member.wait_ready();
    assert_eq!((member.get("c").await.as_deref(), member.get("d").await), (Some("1"), None));
    let mut leases = member.client().await.lease();
    let mut ttls = Vec::new();
    for id in [7, 8, 9] {
        let request = LeaseTimeToLiveRequest { id, keys: true };
        let answer = leases.lease_time_to_live(request).await.unwrap().into_inner();
        ttls.push((answer.granted_ttl, answer.keys.len()));
    }
    // Leases without keys are not restored.
    assert_eq!(ttls, [(0, 0), (0, 0), (800, 1)]);
    archiver.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn bases_that_are_ahead_of_the_segments_make_no_gap_when_the_archiver_is_killed() {
    go_on_after_bases(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_compaction_the_archiver_goes_on_after_the_first_base_that_it_can() {
    go_on_after_bases(true).await;
}

/// Restarts the archiver after bases; if `compacts`, the first revisions are compacted in the meantime.
async fn go_on_after_bases(compacts: bool) {
    let (cluster, _directory, archive) = lone_cluster();
    let member = &cluster.members[0];
    let endpoints = format!("--endpoints=127.0.0.1:{}", member.client_port);
    let to = format!("--to={}", archive.display());
    let first = start(&["archive", &endpoints, &to, "--segment-every=1h", "--base-every=0s"]);
    first.wait_for("archiving");
    // The bases of revisions 8 and 9 are adjacent.
    let mut last = 0;
    for values in [&["1", "2", "3", "4"][..], &["5", "6", "7"], &["8"]] {
        for value in values {
            last = member.put("a", value).await;
        }
        first.wait_for(&format!("base at revision {last}"));
    }
    first.kill();
    if compacts {
        let compaction = CompactionRequest { revision: 5, physical: true };
        member.kv().await.compact(compaction).await.unwrap();
    }
    let second = archiver(member, &archive, &[]);
    let after = member.put("a", "9").await;
    wait_for(&archive, after).await;
    second.kill();
    for revision in [if compacts { 6 } else { 3 }, 7, after] {
        let mut restored = Cluster::new(1);
        let target = &mut restored.members[0];
        let (is_made, said) = restore(&archive, target, &[&format!("--revision={revision}")]);
        assert!(is_made, "{said}");
        target.launch();
        target.wait_ready();
        let wanted = (revision - 1).to_string();
        assert_eq!(target.get("a").await, Some(wanted), "revision {revision}");
    }
}

/// Reports whether the output of `kvctl archive list` has exactly these ranges, with their times.
fn lists(said: &str, ranges: [[i64; 2]; 2]) -> bool {
    let rows: Vec<Vec<&str>> = said.lines().skip(3).map(|row| row.split_whitespace().collect()).collect();
    let has = |row: &Vec<&str>, range: [i64; 2]| {
        row[..2] == range.map(|number| number.to_string()) && row[2].ends_with('Z') && row[2] <= row[3]
    };
    rows.len() == 2 && rows.iter().zip(ranges).all(|(row, range)| has(row, range))
}

#[tokio::test(flavor = "multi_thread")]
async fn gaps_damage_and_other_clusters_are_named() {
    let (cluster, _directory, archive) = lone_cluster();
    let member = &cluster.members[0];
    let first = archiver(member, &archive, &[]);
    first.wait_for("archiving");
    let before = member.put("a", "1").await;
    wait_for(&archive, before).await;
    let second = archiver(member, &archive, &[]);
    let (status, said) = second.wait_end();
    assert!(!status.success() && said.contains("another archiver writes to"), "{said}");
    first.kill();
    // Revisions compacted while no archiver runs are lost.
    let mut revision = 0;
    for value in ["2", "3", "4"] {
        revision = member.put("a", value).await;
    }
    let compaction = CompactionRequest { revision, physical: true };
    member.kv().await.compact(compaction).await.unwrap();
    let third = archiver(member, &archive, &[]);
    third.wait_for("no longer has the revisions after");
    third.wait_for(&format!("base at revision {revision}"));
    let after = member.put("a", "5").await;
    wait_for(&archive, after).await;
    third.kill();
    let mut restored = Cluster::new(1);
    let target = &mut restored.members[0];
    let (is_made, said) = restore(&archive, target, &[&format!("--revision={}", before + 1)]);
    let ranges = format!("which has 1 to {before}, {revision} to {after}");
    assert!(!is_made && said.contains(&ranges), "{said}");
    let review = |command: &str| {
        let from = format!("--from={}", archive.display());
        run(&["archive".to_owned(), command.to_owned(), from])
    };
    let (is_intact, said) = review("verify");
    let ranges = format!("all intact; restorable revisions: 1 to {before}, {revision} to {after}\n");
    assert!(is_intact && said.contains(&ranges), "{said}");
    let (is_listed, said) = review("list");
    assert!(is_listed && lists(&said, [[1, before], [revision, after]]), "{said}");
    // An archive belongs to a single cluster.
    let other = Cluster::started(1);
    let refused = archiver(&other.members[0], &archive, &[]);
    let (status, said) = refused.wait_end();
    assert!(!status.success() && said.contains("the archive to cluster"), "{said}");
    // Flip a byte in each kind of object.
    for (object, revision) in
        [(objects(&archive, "log")[0].clone(), before), (objects(&archive, "base")[1].clone(), after)]
    {
        let whole = std::fs::read(&object).unwrap();
        let mut bytes = whole.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&object, bytes).unwrap();
        let (is_made, said) = restore(&archive, target, &[&format!("--revision={revision}")]);
        let name = object.file_name().unwrap().to_str().unwrap();
        assert!(!is_made && said.contains(name) && said.contains("checksum mismatch"), "{said}");
        let (is_intact, said) = review("verify");
        assert!(!is_intact && said.contains(name) && said.contains("checksum mismatch"), "{said}");
        assert!(said.contains("kvctl archive verify: 1 of "), "{said}");
        std::fs::write(&object, whole).unwrap();
        assert!(!target.data_dir.exists(), "what it has made is removed");
    }
    let base = objects(&archive, "base")[1].clone();
    let away = base.with_extension("away");
    std::fs::rename(&base, &away).unwrap();
    mknodat(CWD, &base, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let (is_made, said) = restore(&archive, target, &[]);
    assert!(!is_made && said.contains("not a regular file"), "{said}");
    std::fs::rename(&away, &base).unwrap();
    let (is_made, said) = restore(&archive, &Cluster::new(3).members[0], &[]);
    assert!(!is_made && said.contains("set --revision or --time"), "{said}");
    let (is_made, said) = restore(&archive.join("no-file"), target, &[]);
    assert!(!is_made && said.starts_with("kvctl restore: open"), "{said}");
    let (is_made, said) = restore(&archive, target, &[]);
    assert!(is_made && said.contains(&format!("revision {after}")), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_fails_is_tried_again_and_metrics_say_how_far_the_cluster_is() {
    let (cluster, _directory, archive) = lone_cluster();
    let member = &cluster.members[0];
    // A dangling symlink: reads do not find the file, but it cannot be created.
    std::fs::create_dir(&archive).unwrap();
    let identity = archive.join("archive.json");
    std::os::unix::fs::symlink("nowhere", &identity).unwrap();
    let archiver = archiver(member, &archive, &["--listen-metrics=127.0.0.1:0"]);
    archiver.wait_for("make ");
    std::fs::remove_file(&identity).unwrap();
    archiver.wait_for("archiving");

    let log = archive.join("log");
    let away = displace(&log);
    member.put("a", "1").await;
    archiver.wait_for("Not a directory");
    let last = member.put("a", "2").await;
    let figures = || common::http(metrics_port(&archiver), "GET /metrics");
    let began = Instant::now();
    while !figures().contains(&format!("kv_archive_head_revision {last}\n")) {
        assert!(began.elapsed() < PATIENCE, "{}", figures());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(figures().contains(&format!("kv_archive_behind_revisions {}\n", last - 1)), "{}", figures());
    put_back(&away, &log);
    wait_for(&archive, last).await;
    archiver.kill();
}

/// Segments do not contain users; only bases do.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_users_is_due_until_a_base_has_it_also_after_a_restart() {
    let (cluster, _directory, archive) = lone_cluster();
    let member = &cluster.members[0];
    let first = archiver(member, &archive, &[]);
    first.wait_for("archiving");
    let bases = archive.join("base");
    let away = displace(&bases);
    let user = AuthUserAddRequest { name: "late".into(), password: "s3cret".into(), ..Default::default() };
    member.client().await.auth().user_add(user).await.unwrap();
    first.wait_for("no base: ");
    first.terminate();
    first.wait_end();
    put_back(&away, &bases);
    assert_eq!(objects(&archive, "base").len(), 1);
    let second = archiver(member, &archive, &[]);
    second.wait_for("base at revision");
    second.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_that_were_removed_are_a_gap() {
    let (mut cluster, _directory, archive) = lone_cluster();
    let member = &mut cluster.members[0];
    let archiver = archiver(member, &archive, &[]);
    archiver.wait_for("archiving");
    let revision = member.put("a", "1").await;
    wait_for(&archive, revision).await;
    for segment in objects(&archive, "log") {
        std::fs::remove_file(segment).unwrap();
    }
    member.kv().await.compact(CompactionRequest { revision, physical: true }).await.unwrap();
    member.kill();
    member.launch();
    member.wait_ready();
    archiver.wait_for(&format!("base at revision {revision}"));
    let after = member.put("a", "2").await;
    wait_for(&archive, after).await;
    archiver.kill();
}

/// Returns a URL of a proxy to the member that does not return TTLs of leases.
async fn without_ttls(member: &Member) -> String {
    let url = format!("http://127.0.0.1:{}", member.client_port);
    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let pass = async move |request: Request| {
        if request.uri().path().ends_with("/LeaseTimeToLive") {
            return std::future::pending().await;
        }
        channel.clone().oneshot(request.map(Body::new)).await.unwrap()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let routes = tonic::service::Routes::from(Router::new().fallback(pass));
    let incoming = TcpListenerStream::new(listener);
    tokio::spawn(Server::builder().add_routes(routes).serve_with_incoming(incoming));
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn ttls_that_are_not_answered_keep_nothing_back_and_are_due_until_a_base_has_them() {
    let (cluster, _directory, archive) = lone_cluster();
    let member = &cluster.members[0];
    let (endpoints, to) = (without_ttls(member).await, archive.display());
    let flags = [format!("--endpoints={endpoints}"), format!("--to={to}")];
    let first = start(&["archive", &flags[0], &flags[1], "--segment-every=50ms"]);
    first.wait_for("archiving");
    let (bases, client) = (archive.join("base"), member.client().await);
    let away = displace(&bases);
    client.lease().lease_grant(LeaseGrantRequest { id: 7, ttl: 900 }).await.unwrap();
    let attached = PutRequest { lease: 7, ..put("a", "1") };
    let last = client.kv().put(attached).await.unwrap().into_inner().header.unwrap().revision;
    let began = Instant::now();
    wait_for(&archive, last).await;
    // A TTL query takes 10 s.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    first.wait_for("no base: ");
    first.terminate();
    let (status, said) = first.wait_end();
    assert!(status.success(), "{said}");
    put_back(&away, &bases);
    let second = archiver(member, &archive, &[]);
    second.wait_for(&format!("base at revision {last}"));
    second.kill();
    // The previous base also serves for an explicit revision.
    for flags in [vec![], vec![format!("--revision={last}")]] {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let (is_made, said) = restore(&archive, &Cluster::new(1).members[0], &flags);
        assert!(is_made && said.contains("with 1 leases, of which 0 have no TTL"), "{flags:?}: {said}");
    }
}

/// Serves a bucket without objects that never completes a part. `seen` receives the calls for parts.
async fn answer_slowly(request: Request, seen: mpsc::UnboundedSender<String>) -> Response<String> {
    let (method, query) = (request.method().to_string(), request.uri().query().unwrap_or_default());
    let (status, answer) = match method.as_str() {
        "GET" if query.contains("list-type") => (StatusCode::OK, "<L><IsTruncated>false</IsTruncated></L>"),
        "POST" => (StatusCode::OK, "<U><Bucket>b</Bucket><Key>k</Key><UploadId>1</UploadId></U>"),
        "PUT" if query.contains("partNumber") => {
            seen.send(method).unwrap();
            std::future::pending().await
        }
        "PUT" => (StatusCode::OK, ""),
        "DELETE" => {
            seen.send(format!("{method} {query}")).unwrap();
            (StatusCode::NO_CONTENT, "")
        }
        _ => (StatusCode::NOT_FOUND, ""),
    };
    let response = Response::builder().status(status).header("ETag", "e");
    response.body(answer.to_owned()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_is_being_sent_leaves_no_parts_when_the_archiver_ends() {
    let cluster = Cluster::started(1);
    let (sender, mut seen) = mpsc::unbounded_channel();
    let bucket = Router::new().fallback(async move |request| answer_slowly(request, sender.clone()).await);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, bucket).await });
    let environment = [
        ("AWS_ENDPOINT_URL", url.as_str()),
        ("AWS_REGION", "r"),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
    ];
    let endpoints = format!("--endpoints=127.0.0.1:{}", cluster.members[0].client_port);
    let mut command = Command::new(KVCTL);
    command.args(["archive", &endpoints, "--to=s3://b/x"]).env_clear().envs(environment);
    let archiver = Process::start(&mut command);
    assert_eq!(seen.recv().await.as_deref(), Some("PUT"));
    archiver.terminate();
    let (status, said) = archiver.wait_end();
    assert!(status.code() == Some(1) && said.contains("no revision was archived"), "{said}");
    assert_eq!(seen.try_recv().as_deref(), Ok("DELETE uploadId=1"));
}
