//! Where log lines go, and what happens to them when an output does not take them.

use crate::common;
use std::fs::File;
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Cluster, Member, PATIENCE, READY, http};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;

/// A lone member whose requests and log entries are all logged as slow.
fn member(outputs: &str, extra: &[&str]) -> Cluster {
    let mut cluster = Cluster::new(1);
    let slow = ["--warning-unary-request-duration=1ns", "--warning-apply-duration=1ns"];
    let flags = [&format!("--log-outputs={outputs}")[..], slow[0], slow[1]];
    cluster.members[0].extra = flags.iter().chain(extra).map(|flag| (*flag).to_owned()).collect();
    cluster.members[0].launch();
    // The level may hide the line about it. The port is bound at once, and answers when it is served.
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(("127.0.0.1", cluster.members[0].client_port)).is_err() {
        assert!(Instant::now() < deadline, "the port is not bound");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(http(cluster.members[0].client_port, "GET /health").contains("\"true\""));
    cluster
}

/// Waits until the file has a line with `text`.
fn wait_for(file: &Path, text: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let read = std::fs::read_to_string(file).unwrap_or_default();
        if read.lines().any(|line| line.contains(text)) {
            return;
        }
        assert!(Instant::now() < deadline, "{} never had {text:?}: {read}", file.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn lost_lines(member: &Member) -> u64 {
    let metrics = http(member.client_port, "GET /metrics");
    let line = metrics.lines().find(|line| line.starts_with("kv_server_log_lost_lines_total ")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_file_is_written_opened_again_after_a_move_and_its_level_changed() {
    let directory = tempfile::tempdir().unwrap();
    let (file, moved) = (directory.path().join("kv.log"), directory.path().join("kv.log.1"));
    let cluster = member(&format!("stderr,{}", file.display()), &["--log-level=warn"]);
    let process = cluster.members[0].running();
    let (changed, opened) = ("changed the log level", "reopened the log files");
    process.signal(Signal::USR1);
    wait_for(&file, changed);
    std::fs::rename(&file, &moved).unwrap();
    process.signal(Signal::HUP);
    // Debug includes it.
    wait_for(&file, opened);
    process.signal(Signal::USR2);
    wait_for(&file, "\"to\":\"warn\"");
    std::fs::rename(&file, &moved).unwrap();
    process.signal(Signal::HUP);
    cluster.members[0].put("a", "1").await;
    // Lines of warnings, in the new file, and not the one of the signal.
    let deadline = Instant::now() + PATIENCE;
    while !file.exists() {
        assert!(Instant::now() < deadline, "no new file");
        cluster.members[0].put("a", "1").await;
    }
    cluster.members[0].put("a", "1").await;
    wait_for(&file, "/etcdserverpb.KV/Put");
    assert!(!std::fs::read_to_string(&file).unwrap().contains(opened));
    process.wait_for("/etcdserverpb.KV/Put");
    assert_eq!(lost_lines(&cluster.members[0]), 0);
}

#[tokio::test]
async fn outputs_that_are_stuck_or_full_stop_neither_a_member_nor_other_outputs() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let _never_read = File::options().read(true).custom_flags(nonblocking).open(&pipe).unwrap();
    let mut cluster = member(&format!("stderr,/dev/full,{}", pipe.display()), &[]);
    let member = &cluster.members[0];
    let mut kv = member.kv().await;
    // More than the 64 KiB that a pipe holds.
    for at in 0..400 {
        kv.put(common::put("key", &at.to_string())).await.unwrap();
    }
    assert_eq!(member.get("key").await.as_deref(), Some("399"));
    member.running().wait_for("apply request took too long");
    assert!(lost_lines(member) >= 400, "those that the full device did not take");
    let process = cluster.members[0].process.take().unwrap();
    process.terminate();
    let (status, said) = process.wait_end();
    assert!(status.success() && said.contains("closed kv-server"), "{said}");
}

#[test]
fn a_file_that_cannot_be_opened_ends_the_start() {
    let process = common::start(&["--log-outputs=/nonexistent/kv.log"]);
    let (status, said) = process.wait_end();
    let wanted = "kv-server: open sink \"/nonexistent/kv.log\": open /nonexistent/kv.log: No such file";
    assert!(status.code() == Some(1) && said.starts_with(wanted), "{said}");
}

/// Whether a line of JSON has the text, as `grep` finds it, and all of the others.
fn has_line(said: &str, texts: &[&str]) -> bool {
    said.lines().any(|line| texts.iter().all(|text| line.contains(text)))
}

const ESTABLISHED: &str = "established TCP streaming connection with remote peer";
const REMOVED: &str = "the member has been permanently removed from the cluster";
const CLUSTER_MISMATCH: &str = "request cluster ID mismatch";
const IGNORED: &str = "request sent was ignored by remote peer due to cluster ID mismatch";
const MEMBER_MISMATCH: &str = "ignored streaming request; ID mismatch";
const LATE: &str = "leader failed to send out heartbeat on time";

/// The texts that `docs/compatibility/log.md` promises, each with the test of its event.
const PROMISED: [(&str, &str); 16] = [
    (READY, "a_restarted_member_says_that_it_is_connected"),
    ("published local member to cluster through raft", "a_restarted_member_says_that_it_is_connected"),
    ("elected leader", "a_restarted_member_says_that_it_is_connected"),
    ("lost leader", "a_restarted_member_says_that_it_is_connected"),
    (ESTABLISHED, "a_restarted_member_says_that_it_is_connected"),
    ("peer became active", "a_restarted_member_says_that_it_is_connected"),
    ("peer became inactive (message send to peer failed)", "a_restarted_member_says_that_it_is_connected"),
    (CLUSTER_MISMATCH, "members_of_unlike_clusters_say_so_in_etcds_words"),
    (IGNORED, "members_of_unlike_clusters_say_so_in_etcds_words"),
    (MEMBER_MISMATCH, "members_of_unlike_clusters_say_so_in_etcds_words"),
    (REMOVED, "a_removed_member_says_so_at_each_start"),
    (LATE, "a_leader_that_was_late_says_so"),
    ("slow fdatasync", "syncs_of_a_second_are_logged"),
    ("apply request took too long", "outputs_that_are_stuck_or_full_stop_neither_a_member_nor_other_outputs"),
    ("request stats", "a_slow_call_is_logged_with_the_stage_that_took_the_time"),
    ("\"level\":\"fatal\"", "a_member_that_ends_with_an_error_writes_a_fatal_line"),
];

#[test]
fn the_page_of_promised_lines_is_that_of_the_tests() {
    let page = include_str!("../../../docs/compatibility/log.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let rows: Vec<&str> = rows.map(|(text, _)| text).collect();
    assert_eq!(rows, PROMISED.map(|(text, _)| text));
    let tests = [
        include_str!("log_outputs.rs"),
        include_str!("listeners.rs"),
        include_str!("../../data-dir/src/bootstrap/tests.rs"),
    ];
    for (text, test) in PROMISED {
        let is_there = tests.iter().any(|source| source.contains(&format!("fn {test}()")));
        assert!(is_there, "{text}: there is no test {test}");
    }
}

#[tokio::test]
async fn a_restarted_member_says_that_it_is_connected() {
    let mut cluster = Cluster::started(3);
    let leader = cluster.leader().await;
    let (away, other) = ((leader + 1) % 3, (leader + 2) % 3);
    for member in &cluster.members {
        member.running().wait_for(ESTABLISHED);
        member.running().wait_for("published local member to cluster through raft");
        member.running().wait_for("elected leader");
    }
    cluster.members[away].kill();
    cluster.members[other].running().wait_for("peer became inactive (message send to peer failed)");
    cluster.members[away].launch();
    cluster.members[away].wait_ready();
    cluster.members[away].running().wait_for(ESTABLISHED);
    cluster.members[other].running().wait_for("peer became active");
    cluster.members[leader].kill();
    cluster.members[away].kill();
    cluster.members[other].running().wait_for("lost leader");
}

#[tokio::test]
async fn members_of_unlike_clusters_say_so_in_etcds_words() {
    let mut cluster = Cluster::started(3);
    let status = cluster.members[0].client().await.status().await.unwrap().header.unwrap();
    let from = cluster.members[1].id().await;
    let url = format!("http://127.0.0.1:{}", cluster.members[0].peer_port);
    let mut peer = api::peer::peer_client::PeerClient::connect(url).await.unwrap();
    let hello = api::peer::Hello {
        cluster_id: status.cluster_id,
        from,
        to: from,
        encoding: 1,
        ..api::peer::Hello::default()
    };
    let refusal = peer.probe(api::peer::ProbeRequest { hello: Some(hello) }).await.unwrap_err();
    assert!(refusal.message().starts_with("member ID mismatch"), "{refusal}");
    cluster.members[0].running().wait_for(MEMBER_MISMATCH);

    // A directory of another cluster comes back at the URL of a member.
    cluster.members[2].kill();
    let mut foreign = Cluster::new(1);
    let member = &mut foreign.members[0];
    member.peer_port = cluster.members[2].peer_port;
    member.initial_cluster = format!("m0=http://127.0.0.1:{}", member.peer_port);
    member.extra = vec!["--initial-cluster-token=other".to_owned()];
    member.launch();
    member.wait_ready();
    let error = "\"error\":\"cluster ID mismatch\"";
    member.running().wait_for(CLUSTER_MISMATCH);
    assert!(has_line(&member.running().said(), &[CLUSTER_MISMATCH, error]));
    cluster.members[0].running().wait_for(IGNORED);
    assert!(has_line(&cluster.members[0].running().said(), &[IGNORED, error]));
}

#[tokio::test]
async fn a_removed_member_says_so_at_each_start() {
    let mut cluster = Cluster::started_with(3, &["--strict-reconfig-check=false"]);
    let id = cluster.members[2].id().await;
    let mut operator = cluster.members[0].client().await.cluster();
    operator.member_remove(api::etcdserverpb::MemberRemoveRequest { id }).await.unwrap();
    let error = format!("\"error\":\"{REMOVED}\"");
    for _ in 0..2 {
        let process = cluster.members[2].process.take().unwrap();
        let (status, said) = tokio::task::spawn_blocking(|| process.wait_end()).await.unwrap();
        assert!(status.success() && has_line(&said, &["server error", &error]), "{said}");
        cluster.members[2].launch();
    }
}

#[test]
fn a_leader_that_was_late_says_so() {
    let cluster = Cluster::started(1);
    let process = cluster.members[0].running();
    let deadline = Instant::now() + PATIENCE;
    while !process.said().contains(LATE) {
        assert!(Instant::now() < deadline, "{}", process.said());
        process.pause();
        std::thread::sleep(Duration::from_millis(500));
        process.resume();
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_member_that_ends_with_an_error_writes_a_fatal_line() {
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut cluster = Cluster::new(1);
    let member = &mut cluster.members[0];
    member.client_port = busy.local_addr().unwrap().port();
    member.launch();
    let (status, said) = member.process.take().unwrap().wait_end();
    let is_fatal =
        has_line(&said, &["{\"level\":\"fatal\"", "the member did not start", "Address already in use"]);
    assert!(status.code() == Some(1) && is_fatal, "{said}");
}

/// A disk error: the directory of the store is gone, and the next checkpoint cannot be written.
#[tokio::test]
async fn a_store_that_cannot_be_written_ends_the_process() {
    let mut cluster = Cluster::started_with(1, &["--snapshot-count=1"]);
    let member = &mut cluster.members[0];
    std::fs::remove_dir_all(member.data_dir.join("store")).unwrap();
    let mut kv = member.kv().await;
    let mut process = member.process.take().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let end = loop {
        // A put may be the last one that is answered.
        drop(kv.put(common::put("key", &"v".repeat(100_000))).await);
        if let Some(end) = process.end() {
            break end;
        }
        assert!(Instant::now() < deadline, "{}", process.said());
    };
    let is_fatal = has_line(&end.said, &["{\"level\":\"fatal\"", "fatal error; exiting"]);
    assert!(end.status.code() == Some(1) && is_fatal, "{}", end.said);
}
