//! Where log lines go, and what happens to them when an output does not take them.

use crate::common;
use std::fs::File;
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Cluster, Member, PATIENCE, http};
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
    let (changed, opened) = ("changed the log level", "opened the log files again");
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
