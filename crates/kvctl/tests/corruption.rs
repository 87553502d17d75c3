//! Corrupt members are detected by hashes, like in etcd, and by continuously compared digests.

use crate::common;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{Cluster, Member, get, http, put};
use crate::{run, start};
use api::etcdserverpb::SnapshotRequest;
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmType, CompactionRequest, MemberAddRequest, MoveLeaderRequest,
};
use api::kvserver::ReseedRequest;
use testkit::Process;
use tonic::Code;

const PATIENCE: Duration = Duration::from_secs(120);
/// Log message for a peer that does not return a hash.
const NO_HASH: &str = "cannot fetch hash from remote peer";

/// Writes a snapshot of a single member with these pairs to a file.
async fn snapshot_of(pairs: &[(&str, &str)], path: PathBuf) -> PathBuf {
    let lone = Cluster::started(1);
    for (key, value) in pairs {
        lone.members[0].put(key, value).await;
    }
    let mut maintenance = lone.members[0].client().await.maintenance();
    let mut stream = maintenance.snapshot(SnapshotRequest {}).await.unwrap().into_inner();
    let mut file = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        file.extend_from_slice(&message.blob);
    }
    fs::write(&path, file).unwrap();
    path
}

const RIGHT: [(&str, &str); 3] = [("a", "same"), ("b", "1"), ("c", "same")];

/// Creates three stopped members. In the state of the last member, this pair replaces the second.
async fn unlike(pair: (&str, &str), flags: &[&str]) -> Cluster {
    let files = tempfile::tempdir().unwrap();
    let right = snapshot_of(&RIGHT, files.path().join("right")).await;
    let wrong = snapshot_of(&[RIGHT[0], pair, RIGHT[2]], files.path().join("wrong")).await;
    let mut cluster = Cluster::new(3);
    for (at, member) in cluster.members.iter_mut().enumerate() {
        import(member, if at == 2 { &wrong } else { &right });
        forget_digest(&member.data_dir);
        member.extra = flags.iter().map(|flag| (*flag).to_owned()).collect();
        // A member that starts after the election receives the leader's state.
        member.extra.push("--election-timeout=5000".to_owned());
    }
    cluster
}

/// Removes the digest of the import, since members with different imports do not start together.
fn forget_digest(data_dir: &Path) {
    let path = data_dir.join("identity.json");
    let mut identity: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert!(identity.as_object_mut().unwrap().remove("imported").is_some());
    fs::write(path, identity.to_string()).unwrap();
}

fn import(member: &Member, file: &Path) {
    let from = ["import".to_owned(), format!("--from={}", file.display())];
    let (is_made, said) = run(&[&from[..], &member.identity()].concat());
    assert!(is_made, "{said}");
}

/// A member of two that acknowledged writes loses its disk, and is imported again from a different file.
#[tokio::test]
async fn a_member_that_is_imported_alone_asks_the_others_and_takes_their_state() {
    let files = tempfile::tempdir().unwrap();
    let other = snapshot_of(&RIGHT, files.path().join("other")).await;
    let mut cluster = Cluster::started(3);
    cluster.members[2].kill();
    for number in 0..5 {
        cluster.members[0].put(&format!("acknowledged{number}"), "1").await;
    }
    cluster.members[..2].iter_mut().for_each(Member::kill);
    fs::remove_dir_all(&cluster.members[1].data_dir).unwrap();
    import(&cluster.members[1], &other);
    cluster.members[1..].iter_mut().for_each(Member::launch);
    cluster.members[1].running().wait_for("waiting for a majority of peers");
    assert_eq!(cluster.members[2].running().said().matches("elected leader").count(), 0);
    cluster.members[0].launch();
    cluster.members.iter().for_each(Member::wait_ready);
    let revision = cluster.members[1].put("and on", "1").await;
    assert_eq!(cluster.members[1].get("acknowledged4").await.as_deref(), Some("1"));
    assert_eq!(cluster.members[1].get("a").await, None, "the file's state is given up");
    cluster.assert_equal(revision).await;
    // A restart does not revert to the import.
    cluster.members[1].kill();
    cluster.members[1].launch();
    cluster.members[1].wait_ready();
    cluster.assert_equal(revision).await;
}

/// The flags of the import list the cluster's initial members.
#[tokio::test]
async fn a_member_that_is_imported_again_after_others_were_added_takes_the_present_list() {
    let files = tempfile::tempdir().unwrap();
    let other = snapshot_of(&RIGHT, files.path().join("other")).await;
    let mut cluster = Cluster::started(3);
    let joiner = cluster.joiner(&[0, 1, 2]);
    let peer_ur_ls = vec![format!("http://127.0.0.1:{}", cluster.members[joiner].peer_port)];
    common::add(&cluster.members[0], MemberAddRequest { peer_ur_ls, is_learner: false }).await;
    cluster.members[joiner].launch();
    cluster.members[joiner].wait_ready();
    cluster.members[1].kill();
    fs::remove_dir_all(&cluster.members[1].data_dir).unwrap();
    let revision = cluster.members[0].put("meanwhile", "1").await;
    import(&cluster.members[1], &other);
    cluster.members[1].launch();
    cluster.members[1].wait_ready();
    assert_eq!(cluster.members[1].get("meanwhile").await.as_deref(), Some("1"));
    cluster.assert_equal(revision).await;
}

/// Waits for CORRUPT alarms and returns them.
async fn alarms(cluster: &Cluster) -> Vec<AlarmMember> {
    let deadline = Instant::now() + PATIENCE;
    let mut client = cluster.members[0].client().await.maintenance();
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
    let refused = cluster.members[2].kv().await.put(put("a", "x")).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::DataLoss, "etcdserver: corrupt cluster"));
    write_on(&cluster.members[0], "a").await;
    assert_eq!(cluster.members[1].get("a").await.as_deref(), Some("v"), "reads go on as well");
}

/// Retries a put through a member until it succeeds.
async fn write_on(member: &Member, key: &str) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(status) = member.kv().await.put(put(key, "v")).await {
        assert!(Instant::now() < deadline, "no write goes on: {status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
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
async fn the_others_compare_compactions_without_a_member_that_is_named() {
    let flags = ["--feature-gates=CompactHashCheck=true", "--compact-hash-check-time=500ms"];
    let cluster = Cluster::started_with(3, &flags);
    let named = follower(&cluster).await;
    call_corrupt(&cluster, named).await;
    let leader = &cluster.members[cluster.leader().await];
    // Before the command level is raised, a CORRUPT alarm blocks all writes.
    write_on(leader, "a").await;
    let revision = leader.put("a", "1").await;
    leader.kv().await.compact(CompactionRequest { revision, physical: true }).await.unwrap();
    leader.running().wait_for("successfully checked hash on whole cluster");
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
    // A member with the same value starts.
    cluster.members[1].kill();
    cluster.members[1].launch();
    cluster.members[1].wait_ready();
    assert!(cluster.members[1].running().said().contains("initial corruption checking passed"));
}

#[tokio::test]
async fn a_whole_cluster_that_compares_at_its_start_does_not_wait_for_itself() {
    let mut cluster = unlike(RIGHT[1], &["--feature-gates=InitialCorruptCheck=true"]).await;
    cluster.start();
    // The first members find no serving peer: each peer is skipped after a probe, without waiting for its
    // hash.
    let said: Vec<String> = cluster.members.iter().map(|member| member.running().said()).collect();
    let left_out: Vec<&str> =
        said.iter().flat_map(|said| said.lines()).filter(|line| line.contains(NO_HASH)).collect();
    let are_probed = left_out.iter().all(|line| line.contains("it does not serve peers yet"));
    assert!(!left_out.is_empty() && are_probed, "{left_out:#?}");
    assert!(said.iter().all(|said| said.contains("initial corruption checking passed")), "{said:?}");
    // The other members serve by now, so that this member is compared.
    cluster.members[2].kill();
    cluster.members[2].launch();
    cluster.members[2].wait_ready();
    let said = cluster.members[2].running().said();
    assert!(!said.contains(NO_HASH), "{said}");
}

/// A learner that never starts does not count for the majority.
#[tokio::test]
async fn a_member_that_changes_something_else_serves_nothing_and_the_others_write_on() {
    let mut cluster = unlike(("x", "1"), &[]).await;
    cluster.start();
    let deadline = Instant::now() + PATIENCE;
    // The learner would prevent the raise of the command level, and with it this version's alarm handling.
    while !http(cluster.members[0].client_port, "GET /metrics").contains("kv_server_command_level 2") {
        assert!(Instant::now() < deadline, "the members are of one version");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let peer_ur_ls = vec!["http://127.0.0.1:1".to_owned()];
    common::add(&cluster.members[0], MemberAddRequest { peer_ur_ls, is_learner: true }).await;
    // Comparison starts with the first entry after the start.
    let corrupt = &cluster.members[2];
    loop {
        // The key exists on two members and is new on the third.
        let put = cluster.members[0].kv().await.put(put("b", "v")).await;
        let status = corrupt.kv().await.range(get("a")).await.err();
        if let (Ok(_), Some(status)) = (&put, &status)
            && status.code() == Code::DataLoss
        {
            assert_eq!(status.message(), "etcdserver: corrupt cluster");
            break;
        }
        assert!(Instant::now() < deadline, "not found: {put:?} {status:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let members: Vec<u64> = alarms(&cluster).await.iter().map(|alarm| alarm.member_id).collect();
    assert_eq!(members, [corrupt.id().await], "the one that differs, and Status still answers");
    assert_eq!(cluster.members[0].get("a").await.as_deref(), Some("same"), "the others go on with reads");
    for probe in ["GET /health", "GET /readyz"] {
        assert!(http(cluster.members[0].client_port, probe).starts_with("HTTP/1.1 200"), "{probe}");
        assert!(http(corrupt.client_port, probe).starts_with("HTTP/1.1 503"), "{probe}");
    }
    // The member's log still counts: without another member, writes need it. Its state is excluded from
    // comparisons, which each write triggers every 5 s.
    let corrupt = corrupt.id().await;
    cluster.members[1].kill();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(11) {
        write_on(&cluster.members[0], "b").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let members: Vec<u64> = alarms(&cluster).await.iter().map(|alarm| alarm.member_id).collect();
    assert_eq!(members, [corrupt]);
    cluster.members[1].launch();
    cluster.members[1].wait_ready();
    // The fence persists across a restart.
    cluster.members[2].kill();
    cluster.members[2].launch();
    cluster.members[2].wait_ready();
    let status = cluster.members[2].kv().await.range(get("a")).await.unwrap_err();
    assert_eq!(status.code(), Code::DataLoss);
}

/// Flips a bit of the last byte of each copy of `pattern` in the memory of a process. Returns the number of
/// copies.
fn flip_in_memory(pid: u32, pattern: &[u8]) -> usize {
    const PIECE: usize = 64 << 10;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = fs::File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
    // Pieces overlap, so that copies across their boundaries are found.
    let (mut piece, zeros) = (vec![0; PIECE + pattern.len()], vec![0; PIECE + pattern.len()]);
    let mut flipped = 0;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).unwrap());
        for at in (start..end).step_by(PIECE) {
            let bytes = &mut piece[..(end - at).min(PIECE + pattern.len())];
            // Pages may be unmapped concurrently. Most of the reserved memory was never used.
            if memory.read_exact_at(bytes, at as u64).is_err() || *bytes == zeros[..bytes.len()] {
                continue;
            }
            let mut from = 0;
            while let Some(found) = bytes[from..].windows(pattern.len()).position(|found| found == pattern) {
                let last = from + found + pattern.len() - 1;
                bytes[last] ^= 1;
                memory.write_all_at(&bytes[last..=last], (at + last) as u64).unwrap();
                (from, flipped) = (last, flipped + 1);
            }
        }
    }
    flipped
}

/// Raises an alarm CORRUPT for a member, regardless of its state.
async fn call_corrupt(cluster: &Cluster, at: usize) {
    let (action, alarm) = (AlarmAction::Activate as i32, AlarmType::Corrupt as i32);
    let request = AlarmRequest { action, member_id: cluster.members[at].id().await, alarm };
    let other = &cluster.members[(at + 1) % cluster.members.len()];
    other.client().await.maintenance().alarm(request).await.unwrap();
}

async fn follower(cluster: &Cluster) -> usize {
    (cluster.leader().await + 1) % 3
}

fn reseed(cluster: &Cluster, name: &str) -> Process {
    let endpoints: Vec<String> =
        cluster.members.iter().map(|member| format!("127.0.0.1:{}", member.client_port)).collect();
    start(&["member", "reseed", name, "--endpoints", &endpoints.join(","), "--timeout", "100"])
}

#[track_caller]
fn ends(run: Process, wanted: (i32, &str)) {
    let (status, said) = run.wait_end();
    assert!(status.code() == Some(wanted.0) && said.contains(wanted.1), "{status} {said}");
}

/// There are no other writes. Of the two client URLs of each member, the second is unreachable.
#[tokio::test]
async fn a_corrupt_leader_hands_over_and_is_reseeded_while_no_client_writes() {
    let mut cluster = Cluster::new(3);
    for member in &mut cluster.members {
        let urls = format!("http://127.0.0.1:{},http://127.0.0.2:1", member.client_port);
        member.extra.push(format!("--advertise-client-urls={urls}"));
    }
    cluster.start();
    cluster.members[0].put("key", "value").await;
    let at = cluster.leader().await;
    call_corrupt(&cluster, at).await;
    let deadline = Instant::now() + PATIENCE;
    while cluster.leader().await == at {
        assert!(Instant::now() < deadline, "it leads still");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let began = Instant::now();
    ends(reseed(&cluster, &cluster.members[at].name), (0, "and serves again"));
    println!("re-seeded after {:?}", began.elapsed());
    let deadline = Instant::now() + PATIENCE;
    while cluster.members[at].kv().await.range(get("key")).await.is_err() {
        assert!(Instant::now() < deadline, "it serves nothing");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.assert_equal(0).await;
}

/// A member serves no keys and compares no state while an alarm names it.
#[tokio::test]
async fn a_fenced_leader_hands_over_also_when_its_state_was_replaced() {
    let cluster = Cluster::started(3);
    cluster.members[0].put("key", "value").await;
    let at = follower(&cluster).await;
    call_corrupt(&cluster, at).await;
    let (member_id, deadline) = (cluster.members[at].id().await, Instant::now() + PATIENCE);
    let mut repair = cluster.members[at].client().await.repair();
    while repair.reseed(ReseedRequest { member_id }).await.map_or(0, |done| done.get_ref().installed) == 0 {
        assert!(Instant::now() < deadline, "its state is not replaced");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let leader = cluster.members[cluster.leader().await].client().await;
    leader.maintenance().move_leader(MoveLeaderRequest { target_id: member_id }).await.unwrap();
    while cluster.leader().await == at {
        assert!(Instant::now() < deadline, "it leads still");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_flipped_bit_in_memory_is_found_and_the_member_is_reseeded() {
    let mut cluster = Cluster::started(3);
    let value = format!("a value that is nowhere else: {}", std::process::id()).repeat(3);
    for number in 0..300 {
        cluster.members[0].put(&format!("key/{}", number % 40), &format!("value {number}")).await;
    }
    cluster.members[0].put("flipped", &value).await;
    let at = follower(&cluster).await;
    assert_eq!(cluster.members[at].get("flipped").await.as_deref(), Some(value.as_str()));
    // Recount passes repeat, even under continuous writes.
    let (leader, writing) = (cluster.leader().await, &cluster.members[(at + 1) % 3]);
    let passes = || common::metric(&cluster.members[leader], "kv_server_recount_passes_total");
    let (before, deadline) = (passes(), Instant::now() + PATIENCE);
    while passes() < before + 2.0 {
        assert!(Instant::now() < deadline, "no pass over the state ends");
        writing.put("busy", "value").await;
    }
    let flipped = Instant::now();
    assert!(
        flip_in_memory(cluster.members[at].running().pid(), value.as_bytes()) > 0,
        "the value is in memory"
    );
    let deadline = flipped + PATIENCE;
    while cluster.members[at].kv().await.range(get("flipped")).await.is_ok() {
        assert!(Instant::now() < deadline, "not found");
        writing.put("busy", "value").await;
    }
    println!("found after {:?}", flipped.elapsed());
    let members: Vec<u64> = alarms(&cluster).await.iter().map(|alarm| alarm.member_id).collect();
    assert_eq!(members, [cluster.members[at].id().await], "no other member differs");

    // A reseed is rejected while another member is down: only two members would remain, with a busy member
    // among them.
    let away = (0..3).find(|other| *other != at && *other != 0).unwrap();
    let name = cluster.members[at].name.clone();
    ends(reseed(&cluster, "absent"), (1, "absent is not a member of the cluster"));
    cluster.members[away].kill();
    ends(reseed(&cluster, &name), (1, "1/3 voters are up, which is not a quorum"));
    cluster.members[away].launch();
    cluster.members[away].wait_ready();
    ends(reseed(&cluster, &cluster.members[away].name), (0, ": nothing to do"));

    // Kill both the command and the member during the reseed.
    write_on(&cluster.members[away], "meanwhile").await;
    let run = reseed(&cluster, &name);
    run.wait_for("waiting for");
    run.kill();
    cluster.members[at].kill();
    let run = reseed(&cluster, &name);
    run.wait_for("waiting for");
    cluster.members[at].launch();
    ends(run, (0, "and serves again"));
    assert_eq!(cluster.members[at].get("flipped").await.as_deref(), Some(value.as_str()));
    let deadline = Instant::now() + PATIENCE;
    let revision = loop {
        // Leadership may move, since two members have just started.
        match cluster.members[0].kv().await.put(put("after", "1")).await {
            Ok(answer) => break answer.into_inner().header.unwrap().revision,
            Err(status) => assert!(Instant::now() < deadline, "{status}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    cluster.assert_equal(revision).await;
    ends(reseed(&cluster, &name), (0, ": nothing to do"));
}
