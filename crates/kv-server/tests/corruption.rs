//! Members with different state are found by their hashes, as in etcd.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::maintenance_client::MaintenanceClient;
use api::etcdserverpb::{AlarmMember, AlarmRequest, AlarmType, CompactionRequest, SnapshotRequest};
use common::{Cluster, SERVER, get, put};
use tonic::Code;

const PATIENCE: Duration = Duration::from_secs(120);

/// The file of a snapshot of a lone member with these pairs.
async fn snapshot_of(pairs: &[(&str, &str)], path: PathBuf) -> PathBuf {
    let lone = Cluster::started(1);
    for (key, value) in pairs {
        lone.members[0].put(key, value).await;
    }
    let mut maintenance = MaintenanceClient::new(lone.members[0].channel().await);
    let mut stream = maintenance.snapshot(SnapshotRequest {}).await.unwrap().into_inner();
    let mut file = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        file.extend_from_slice(&message.blob);
    }
    fs::write(&path, file).unwrap();
    path
}

const RIGHT: [(&str, &str); 3] = [("a", "same"), ("b", "1"), ("c", "same")];

/// Three members that are not running. The state of the last one has this pair in place of the second one.
async fn unlike(pair: (&str, &str), flags: &[&str]) -> Cluster {
    let files = tempfile::tempdir().unwrap();
    let right = snapshot_of(&RIGHT, files.path().join("right")).await;
    let wrong = snapshot_of(&[RIGHT[0], pair, RIGHT[2]], files.path().join("wrong")).await;
    let mut cluster = Cluster::new(3);
    for (at, member) in cluster.members.iter_mut().enumerate() {
        let output = Command::new(SERVER)
            .arg("import")
            .arg(format!("--from={}", if at == 2 { &wrong } else { &right }.display()))
            .arg(format!("--data-dir={}", member.data_dir.display()))
            .arg(format!("--name={}", member.name))
            .arg(format!("--initial-cluster={}", member.initial_cluster))
            .arg(format!("--initial-advertise-peer-urls=http://127.0.0.1:{}", member.peer_port))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        member.extra = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }
    cluster
}

/// The CORRUPT alarms, once there are any.
async fn alarms(cluster: &Cluster) -> Vec<AlarmMember> {
    let deadline = Instant::now() + PATIENCE;
    let mut client = MaintenanceClient::new(cluster.members[0].channel().await);
    loop {
        let request = AlarmRequest { action: AlarmAction::Get as i32, ..AlarmRequest::default() };
        if let Ok(answer) = client.alarm(request).await
            && !answer.get_ref().alarms.is_empty()
        {
            let alarms = answer.into_inner().alarms;
            assert!(alarms.iter().all(|alarm| alarm.alarm == AlarmType::Corrupt as i32), "{alarms:?}");
            return alarms;
        }
        assert!(Instant::now() < deadline, "no alarm was raised");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn the_leader_finds_a_member_with_another_value() {
    let mut cluster = unlike(("b", "2"), &["--corrupt-check-time=500ms"]).await;
    cluster.start();
    let found = alarms(&cluster).await;
    let members: Vec<u64> = found.iter().map(|alarm| alarm.member_id).collect();
    assert_eq!(members, [cluster.members[2].id().await]);
    let refused = cluster.members[0].kv().await.put(put("a", "x")).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::DataLoss, "etcdserver: corrupt cluster"));
    assert_eq!(cluster.members[0].get("a").await.as_deref(), Some("same"), "reads go on");
}

#[tokio::test]
async fn a_compaction_shows_which_member_differs_from_the_majority() {
    let flags = ["--feature-gates=CompactHashCheck=true", "--compact-hash-check-time=500ms"];
    let mut cluster = unlike(("b", "2"), &flags).await;
    cluster.start();
    let compaction = CompactionRequest { revision: 4, physical: true };
    cluster.members[0].kv().await.compact(compaction).await.unwrap();
    let found = alarms(&cluster).await;
    let members: Vec<u64> = found.iter().map(|alarm| alarm.member_id).collect();
    assert_eq!(members, [cluster.members[2].id().await]);
}

#[tokio::test]
async fn a_member_with_another_value_does_not_start() {
    let mut cluster = unlike(("b", "2"), &["--feature-gates=InitialCorruptCheck=true"]).await;
    for at in [0, 1] {
        cluster.members[at].launch();
    }
    for at in [0, 1] {
        cluster.members[at].wait_ready();
    }
    cluster.members[2].launch();
    let (status, said) = cluster.members[2].process.take().unwrap().wait_end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("found data inconsistency with peers"), "{said}");
    assert!(said.contains("found different hash values from remote peer"), "{said}");
    // A member with the same value does.
    cluster.members[1].kill();
    cluster.members[1].launch();
    cluster.members[1].wait_ready();
    assert!(cluster.members[1].running().said().contains("initial corruption checking passed"));
}

#[tokio::test]
async fn a_member_that_changes_something_else_is_found_and_serves_nothing() {
    let mut cluster = unlike(("x", "1"), &[]).await;
    cluster.start();
    // Entries are compared from the first one after the start on.
    let deadline = Instant::now() + PATIENCE;
    let corrupt = &cluster.members[2];
    loop {
        // The key exists on two members and is new on the third one.
        let put = cluster.members[0].kv().await.put(put("b", "v")).await;
        let status = corrupt.kv().await.range(get("a")).await.err();
        if let (Err(put), Some(status)) = (&put, &status)
            && status.code() == Code::DataLoss
        {
            assert_eq!(put.message(), "etcdserver: corrupt cluster");
            assert_eq!(status.message(), "etcdserver: corrupt cluster");
            break;
        }
        assert!(Instant::now() < deadline, "not found: {put:?} {status:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let members: Vec<u64> = alarms(&cluster).await.iter().map(|alarm| alarm.member_id).collect();
    assert_eq!(members, [corrupt.id().await], "the one that differs, and Status still answers");
    assert_eq!(cluster.members[0].get("a").await.as_deref(), Some("same"), "the others go on with reads");
    // A restart does not end it.
    cluster.members[2].kill();
    cluster.members[2].launch();
    cluster.members[2].wait_ready();
    let status = cluster.members[2].kv().await.range(get("a")).await.unwrap_err();
    assert_eq!(status.code(), Code::DataLoss);
}
