//! Maintenance.Snapshot: messages as etcd sends them, and a file that holds what was written.

use std::collections::BTreeMap;

use crate::common::Cluster;
use api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, PutRequest, SnapshotRequest, SnapshotResponse,
};
use client::Client;
use sha2::{Digest, Sha256};
use tonic::Streaming;

const MESSAGE_BYTES: usize = 32 << 10;

/// All messages of one call.
async fn snapshot(client: &Client) -> Vec<SnapshotResponse> {
    let stream = client.maintenance().snapshot(SnapshotRequest {}).await;
    let mut stream = stream.expect("a snapshot begins").into_inner();
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await.expect("a snapshot goes on") {
        messages.push(message);
    }
    messages
}

/// The keys and values of each bucket, as text.
fn buckets(file: &[u8]) -> BTreeMap<String, Vec<String>> {
    let database = snapshot_file::bbolt::Database::open(file, file.len() as u64).expect("a bbolt file");
    let mut found = BTreeMap::new();
    for bucket in database.buckets().expect("buckets") {
        let (mut cursor, mut lines) = (database.cursor(&bucket).expect("a tree"), Vec::new());
        while let Some((key, value)) = cursor.next_pair().expect("pages") {
            lines.push(format!("{} => {}", key.escape_ascii(), value.escape_ascii()));
        }
        found.insert(bucket.name().escape_ascii().to_string(), lines);
    }
    found
}

#[tokio::test]
async fn a_snapshot_has_etcds_messages_and_buckets() {
    let cluster = Cluster::started(1);
    let client = cluster.members[0].endless_client().await;
    let mut kv = client.kv();
    let put = |key: &'static str, value: Vec<u8>, lease| PutRequest {
        key: key.into(),
        value: value.into(),
        lease,
        ..PutRequest::default()
    };
    let mut lease = client.lease();
    lease.lease_grant(LeaseGrantRequest { id: 7, ttl: 1000 }).await.expect("a lease is granted");
    for request in [put("a", b"1".into(), 0), put("a", b"2".into(), 7), put("large", vec![7; 100_000], 0)] {
        kv.put(request).await.expect("a put succeeds");
    }
    let delete = DeleteRangeRequest { key: "large".into(), ..DeleteRangeRequest::default() };
    kv.delete_range(delete).await.expect("a delete succeeds");
    kv.compact(CompactionRequest { revision: 3, physical: true }).await.expect("a compaction succeeds");

    let messages = snapshot(&client).await;
    let (hash, blobs) = messages.split_last().expect("messages");
    let file: Vec<u8> = blobs.iter().flat_map(|message| message.blob.clone()).collect();
    let mut remaining = file.len();
    for message in blobs {
        remaining -= message.blob.len();
        assert_eq!(message.remaining_bytes, remaining as u64);
        assert_eq!((message.header.as_ref(), message.version.as_str()), (None, "3.7.0"));
    }
    let (_, whole) = blobs.split_last().expect("a file");
    assert!(whole.iter().all(|message| message.blob.len() == MESSAGE_BYTES));
    assert_eq!((hash.remaining_bytes, hash.version.as_str()), (0, "3.7.0"));
    assert_eq!(hash.blob, Sha256::digest(&file)[..]);
    assert_eq!(file.len() % 4096, 0);

    let buckets = buckets(&file);
    let revision = |main: u8| format!(r"\x00\x00\x00\x00\x00\x00\x00\x{main:02x}_{}", r"\x00".repeat(8));
    let keys: Vec<_> = buckets["key"].iter().map(|line| line[..line.len().min(120)].to_owned()).collect();
    assert_eq!(keys[0], format!(r"{} => \n\x01a\x10\x02\x18\x03 \x02*\x0120\x07", revision(3)));
    assert!(keys[1].starts_with(&format!(r"{} => \n\x05large\x10\x04", revision(4))), "{keys:?}");
    assert_eq!(keys[2], format!(r"{}t => \n\x05large", revision(5)));
    assert_eq!(buckets["lease"], [r"\x00\x00\x00\x00\x00\x00\x00\x07 => \x08\x07\x10\xe8\x07"]);
    assert_eq!(buckets["cluster"], ["clusterVersion => 3.7.0"]);
    let meta = &buckets["meta"];
    assert!(meta.contains(&format!("finishedCompactRev => {}", revision(3))), "{meta:?}");
    assert!(meta.contains(&format!("scheduledCompactRev => {}", revision(3))), "{meta:?}");
    let names: Vec<_> = buckets.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "alarm",
            "auth",
            "authRoles",
            "authUsers",
            "cluster",
            "key",
            "lease",
            "members",
            "members_removed",
            "meta"
        ]
    );
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_snapshot() {
    let cluster = Cluster::started(1);
    let client = cluster.members[0].endless_client().await;
    put_mebibytes(&client, 12).await;
    // More than a connection may have at one time: each that is dropped gives its place to another one.
    for _ in 0..40 {
        let (message, _stream) = begun(&client).await;
        assert!(message.remaining_bytes > 12 << 20);
    }
    let messages = snapshot(&client).await;
    let (_, blobs) = messages.split_last().expect("messages");
    let (_, whole) = blobs.split_last().expect("a file");
    assert!(whole.len() > 12 * 32 && whole.iter().all(|message| message.blob.len() == MESSAGE_BYTES));
}

#[tokio::test]
async fn a_backup_is_made_beside_slow_readers_of_snapshots() {
    let cluster = Cluster::started(1);
    let client = cluster.members[0].endless_client().await;
    // More than a client buffers of a stream that it does not read.
    put_mebibytes(&client, 12).await;
    let mut unread = Vec::new();
    for _ in 0..20 {
        let other = cluster.members[0].endless_client().await;
        unread.push((begun(&other).await, other));
    }
    let messages = snapshot(&client).await;
    assert!(messages.len() > 12 * 32);
    for ((_, stream), _) in &mut unread {
        stream.message().await.expect("a snapshot goes on").expect("more of it");
    }
}

async fn put_mebibytes(client: &Client, count: usize) {
    for number in 0..count {
        let (key, value) = (format!("{number}").into(), vec![7; 1 << 20].into());
        client.kv().put(PutRequest { key, value, ..PutRequest::default() }).await.expect("a put succeeds");
    }
}

/// The first message of a snapshot, and the rest.
async fn begun(client: &Client) -> (SnapshotResponse, Streaming<SnapshotResponse>) {
    let answer = client.maintenance().snapshot(SnapshotRequest {}).await;
    let mut stream = answer.expect("a snapshot begins").into_inner();
    let message = stream.message().await.expect("a snapshot goes on").expect("a message");
    (message, stream)
}
