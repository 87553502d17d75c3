//! Three members as processes, a lagging member among them, after the loss of its store or a trim of the log.
//! It receives the leader's store, even after an interruption at any point.
//!
//! The fast tests need a few seconds each; the slow ones write hundreds of megabytes, since a log is trimmed
//! by whole segments.

use crate::common;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Cluster, Member, PATIENCE, READY};
use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::{MemberAddRequest, PutRequest};
use client::Channel;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Flags that trim the log as early as its segments permit.
const EAGER: [&str; 2] = ["--snapshot-count=10", "--snapshot-catchup-entries=5"];
/// More than a log segment: after these bytes, at least one can be trimmed.
const SEGMENT_AND_MORE: usize = 80 << 20;
const VALUE_BYTES: usize = 512 << 10;

fn eager(size: usize) -> Cluster {
    Cluster::started_with(size, &EAGER)
}

/// Writes `bytes` of incompressible values, a few concurrently.
async fn fill(member: &Member, seed: u64, bytes: usize) {
    let client = member.kv().await;
    let mut random = SmallRng::seed_from_u64(seed);
    let puts = bytes / VALUE_BYTES;
    for first in (0..puts).step_by(8) {
        let writing = (first..puts.min(first + 8)).map(|number| {
            let mut value = vec![0; VALUE_BYTES];
            random.fill(&mut value[..]);
            put(client.clone(), format!("fill/{seed}/{number}"), value)
        });
        for written in writing.collect::<Vec<_>>() {
            written.await.unwrap();
        }
    }
}

fn put(mut client: KvClient<Channel>, key: String, value: Vec<u8>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let put = PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() };
        // On a busy machine, a leader may lose leadership, and with it the client's request.
        let began = Instant::now();
        while let Err(error) = client.put(put.clone()).await {
            assert!(began.elapsed() < PATIENCE, "nothing could be written: {error}");
        }
    })
}

/// Sequential small puts, until stopped.
struct Load {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Load {
    async fn on(member: &Member) -> Load {
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (client, ending, count) = (member.kv().await, Arc::clone(&stop), Arc::clone(&written));
        let task = tokio::spawn(async move {
            while !ending.load(Ordering::SeqCst) {
                let number = count.fetch_add(1, Ordering::SeqCst);
                put(client.clone(), format!("load/{}", number % 100), vec![1; 100]).await.unwrap();
            }
        });
        Load { stop, written, task }
    }

    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.expect("no put failed");
        self.written.load(Ordering::SeqCst)
    }
}

fn said(member: &Member, text: &str) -> bool {
    member.running().said().contains(text)
}

/// Returns the indexes of the leader and of a follower.
async fn roles(cluster: &Cluster) -> (usize, usize) {
    let leader = cluster.leader().await;
    (leader, (leader + 1) % cluster.members.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_removed_is_rebuilt_from_a_whole_log_under_load() {
    let mut cluster = Cluster::started(3);
    let (leader, follower) = roles(&cluster).await;
    let load = Load::on(&cluster.members[leader]).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let member = &mut cluster.members[follower];
    member.kill();
    std::fs::remove_dir_all(member.data_dir.join("store")).unwrap();
    member.launch();
    member.wait_ready();
    assert!(said(member, "rebuilding the store from the log"), "{}", member.running().said());
    assert!(load.end().await > 0);
    cluster.assert_equal(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_store_is_set_aside_and_rebuilt() {
    let mut cluster = Cluster::started(1);
    let member = &mut cluster.members[0];
    member.put("a", "1").await;
    member.running().terminate();
    member.process.take().unwrap().wait_end();
    let block = member.data_dir.join("store/blocks/000001.blk");
    let mut bytes = std::fs::read(&block).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&block, bytes).unwrap();
    member.launch();
    member.wait_ready();
    let said = member.running().said();
    for text in ["000001.blk is corrupt at byte", "store.damaged-1", "rebuilding the store from the log"] {
        assert!(said.contains(text), "{text:?} is not in {said}");
    }
    assert_eq!(member.get("a").await.as_deref(), Some("1"));
}

async fn trimmed() -> (Cluster, usize, usize) {
    let cluster = eager(3);
    let (leader, follower) = roles(&cluster).await;
    fill(&cluster.members[leader], 1, SEGMENT_AND_MORE).await;
    (cluster, leader, follower)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes 80 MiB; half a minute"]
async fn a_store_that_was_removed_behind_a_trimmed_log_comes_from_the_leader_under_load() {
    let (mut cluster, leader, follower) = trimmed().await;
    let load = Load::on(&cluster.members[leader]).await;
    let member = &mut cluster.members[follower];
    member.kill();
    std::fs::remove_dir_all(member.data_dir.join("store")).unwrap();
    member.launch();
    member.wait_ready();
    assert!(said(member, "the store is lost"), "{}", member.running().said());
    assert!(said(member, "installed a snapshot"), "{}", member.running().said());
    assert!(load.end().await > 0);
    cluster.assert_equal(0).await;
    // Repeat: two installs within a short time, the second over an installed store.
    let member = &mut cluster.members[follower];
    member.kill();
    std::fs::remove_dir_all(member.data_dir.join("store")).unwrap();
    member.launch();
    member.wait_ready();
    cluster.assert_equal(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes 80 MiB; half a minute"]
async fn a_founder_that_lost_its_store_hears_members_that_were_added_later() {
    let mut cluster = eager(1);
    let joiner = cluster.joiner(&[0]);
    let url = format!("http://127.0.0.1:{}", cluster.members[joiner].peer_port);
    let request = MemberAddRequest { peer_ur_ls: vec![url], is_learner: false };
    cluster.members[0].client().await.cluster().member_add(request).await.unwrap();
    cluster.members[joiner].extra.extend(EAGER.map(str::to_owned));
    cluster.members[joiner].launch();
    cluster.members[joiner].wait_ready();
    fill(&cluster.members[0], 1, SEGMENT_AND_MORE).await;
    let first_segment = cluster.members[0].data_dir.join("wal/0000000000000001.wal");
    let began = Instant::now();
    while first_segment.exists() {
        assert!(began.elapsed() < PATIENCE, "the log was not trimmed");
        cluster.members[0].put("more", "1").await;
    }
    // The founder's identity lists only itself, and the joiner needs its vote to lead.
    let founder = &mut cluster.members[0];
    founder.kill();
    std::fs::remove_dir_all(founder.data_dir.join("store")).unwrap();
    founder.launch();
    founder.wait_ready();
    assert!(said(founder, "the store is lost"), "{}", founder.running().said());
    assert!(said(founder, "installed a snapshot"), "{}", founder.running().said());
    cluster.assert_equal(0).await;
}

/// Stops a follower while the log is written and trimmed, and restarts it.
async fn far_behind() -> (Cluster, usize, usize) {
    let mut cluster = eager(3);
    let (leader, follower) = roles(&cluster).await;
    cluster.members[leader].put("before", "1").await;
    cluster.members[follower].kill();
    fill(&cluster.members[leader], 1, SEGMENT_AND_MORE).await;
    fill(&cluster.members[leader], 2, SEGMENT_AND_MORE).await;
    cluster.members[follower].launch();
    (cluster, leader, follower)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes 160 MiB; half a minute"]
async fn a_follower_behind_the_trimmed_log_catches_up_by_snapshot() {
    let (cluster, leader, follower) = far_behind().await;
    let load = Load::on(&cluster.members[leader]).await;
    cluster.members[follower].running().wait_for("installed a snapshot");
    cluster.members[follower].wait_ready();
    assert!(load.end().await > 0);
    assert_eq!(cluster.members[follower].get("before").await.as_deref(), Some("1"));
    cluster.assert_equal(0).await;
    let names = std::fs::read_dir(&cluster.members[follower].data_dir).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with("store.")), "{names:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes 160 MiB; a minute"]
async fn a_follower_killed_in_the_middle_of_a_snapshot_gets_another() {
    let (mut cluster, leader, follower) = far_behind().await;
    for _ in 0..2 {
        wait_for_partial(&cluster.members[follower]);
        cluster.members[follower].kill();
        cluster.members[leader].running().wait_for("sending a snapshot failed");
        cluster.members[follower].launch();
    }
    cluster.members[follower].running().wait_for("installed a snapshot");
    cluster.members[follower].wait_ready();
    cluster.assert_equal(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes 160 MiB; a minute"]
async fn a_leader_killed_in_the_middle_of_a_snapshot_is_replaced_by_one_that_sends_another() {
    let (mut cluster, leader, follower) = far_behind().await;
    wait_for_partial(&cluster.members[follower]);
    cluster.members[leader].kill();
    cluster.members[follower].running().wait_for("installed a snapshot");
    cluster.members[follower].wait_ready();
    cluster.members[leader].launch();
    cluster.members[leader].wait_ready();
    cluster.assert_equal(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes 160 MiB and waits through pauses; a minute"]
async fn a_pause_in_the_middle_of_a_snapshot_ends_well_on_either_side() {
    for who in ["follower", "leader"] {
        let (cluster, leader, follower) = far_behind().await;
        wait_for_partial(&cluster.members[follower]);
        let paused = if who == "leader" { leader } else { follower };
        cluster.members[paused].running().pause();
        // Longer than the election timeout and the connection timeout.
        tokio::time::sleep(Duration::from_secs(6)).await;
        cluster.members[paused].running().resume();
        cluster.members[follower].running().wait_for("installed a snapshot");
        cluster.members[follower].wait_ready();
        cluster.assert_equal(0).await;
    }
}

/// A corrupt block is not sent to any member: the member that detects it stops, the cluster continues, and
/// its next start rebuilds the store. The first block is in the leader's cache, so that a recount does not
/// detect the corruption on disk first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes 80 MiB; half a minute"]
async fn a_leader_that_finds_damage_while_it_sends_stops_and_is_rebuilt() {
    let (mut cluster, _, _) = trimmed().await;
    let (leader, follower) = roles(&cluster).await;
    cluster.members[follower].kill();
    std::fs::remove_dir_all(cluster.members[follower].data_dir.join("store")).unwrap();
    // `fill` wrote the first eight concurrently, in any order.
    for number in 0..8 {
        let key = format!("fill/1/{number}");
        cluster.members[leader].kv().await.range(common::get(&key)).await.unwrap();
    }
    flip_a_byte(&cluster.members[leader].data_dir.join("store/blocks"));
    cluster.members[follower].launch();
    let (status, said) = cluster.members[leader].process.take().unwrap().wait_end();
    assert_eq!(status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.contains("read the store to send it") && last.contains(".blk is corrupt at byte"), "{last}");
    cluster.members[follower].running().wait_for("installed a snapshot");
    cluster.members[follower].wait_ready();
    cluster.members[leader].launch();
    cluster.members[leader].wait_ready();
    assert!(self::said(&cluster.members[leader], "store.damaged-1"));
    cluster.assert_equal(0).await;
}

/// Flips a byte in the first value of the oldest block file.
fn flip_a_byte(blocks: &std::path::Path) {
    use std::os::unix::fs::FileExt;
    let files = std::fs::read_dir(blocks).unwrap().map(|entry| entry.unwrap().path());
    let oldest = files.min().expect("a store with blocks");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(oldest).unwrap();
    let (at, mut byte) = (VALUE_BYTES as u64 / 2, [0]);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Waits until a part of the snapshot's blocks has arrived.
fn wait_for_partial(member: &Member) {
    let blocks = member.data_dir.join("store.incoming/blocks");
    let deadline = Instant::now() + PATIENCE;
    let arrived = || std::fs::read_dir(&blocks).map_or(0, Iterator::count);
    while arrived() == 0 {
        assert!(Instant::now() < deadline, "no snapshot came:\n{}", member.running().said());
        assert!(!said(member, READY), "it became ready without a snapshot:\n{}", member.running().said());
        std::thread::sleep(Duration::from_millis(5));
    }
}
