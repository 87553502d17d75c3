//! Strangers on the peer port: without TLS, any client with the public ids can send a hello there.
//!
//! * All messages are malformed or out of range: random bytes, commits and indexes beyond the log,
//!   terms near the maximum, forged read responses, tiny messages without a sequence number.
//! * The attack never sends a well-formed message with a plausible term: without TLS no server can
//!   tell it from a member's.

use std::io;
use std::time::Duration;

use api::peer::peer_client::PeerClient;
use api::peer::{Hello, MessageBatch};
use bytes::Bytes;
use prost::encoding::encode_varint;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

use super::ground::{AttackPace, Ground};
use crate::attack::http2::connection::dial;
use crate::attack::target::ProgramKind;

const STRANGERS: usize = 4;
const MESSAGES_PER_SECOND: u64 = 2_000;
const TINY_MESSAGES: usize = 1_000;
const RANDOM_BYTES_MAX: usize = 4096;
/// Messages that may wait for the server's window.
const WAITING_MAX: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);

/// Numbers of Raft's messages, the same in raft-rs and etcd.
const APPEND: u8 = 3;
const APPEND_RESPONSE: u8 = 4;
const VOTE: u8 = 5;
const SNAPSHOT: u8 = 7;
const HEARTBEAT: u8 = 8;
const HEARTBEAT_RESPONSE: u8 = 9;
const READ_INDEX: u8 = 15;
const READ_INDEX_RESPONSE: u8 = 16;
const KINDS: [u8; 8] =
    [APPEND, APPEND_RESPONSE, VOTE, SNAPSHOT, HEARTBEAT, HEARTBEAT_RESPONSE, READ_INDEX, READ_INDEX_RESPONSE];
/// Far beyond the last index that a log reaches during an attack.
const INDEX_BEYOND: u64 = 1 << 40;

pub async fn garbage(ground: Ground) {
    let strangers = ground.clone();
    match ground.kind {
        ProgramKind::KvServer => strangers.keep(STRANGERS, stream_of_garbage).await,
        ProgramKind::Etcd => strangers.keep(STRANGERS, posts_of_garbage).await,
    }
}

/// The roles in forged messages: the stranger poses as the leader and addresses a follower.
#[derive(Clone, Copy, Debug)]
struct Roles {
    from: u64,
    to: u64,
    port: u16,
    term: u64,
}

impl Roles {
    fn of(ground: &Ground) -> Roles {
        let ids = &ground.ids;
        let follower = ids.members.iter().position(|id| *id != ids.leader).unwrap_or(0);
        Roles { from: ids.leader, to: ids.members[follower], port: ground.ports[follower].1, term: ids.term }
    }
}

/// A message that no member would send.
#[derive(Clone, Copy, Debug)]
struct ForgedMessage {
    kind: u8,
    term: u64,
    index: u64,
    commit: u64,
}

impl ForgedMessage {
    fn any(chance: &mut SmallRng, term: u64) -> ForgedMessage {
        let kind = KINDS[chance.random_range(0..KINDS.len())];
        match chance.random_range(0..3) {
            0 => ForgedMessage { kind, term: u64::MAX - chance.random_range(0..3), index: 1, commit: 1 },
            1 => ForgedMessage { kind, term, index: u64::MAX - 1, commit: u64::MAX },
            _ => ForgedMessage { kind: HEARTBEAT, term, index: 0, commit: INDEX_BEYOND },
        }
    }
}

async fn stream_of_garbage(ground: Ground) -> io::Result<()> {
    let roles = Roles::of(&ground);
    let address = format!("http://127.0.0.1:{}", roles.port);
    let endpoint = Endpoint::from_shared(address).map_err(io::Error::other)?.connect_timeout(TIMEOUT);
    let mut client = PeerClient::new(endpoint.connect().await.map_err(io::Error::other)?);
    let (sender, receiver) = mpsc::channel::<MessageBatch>(WAITING_MAX);
    let batches = ReceiverStream::new(receiver);
    let hello = Hello {
        cluster_id: ground.ids.cluster,
        from: roles.from,
        to: roles.to,
        encoding: 1,
        // Enough for any cluster.
        command_level: u32::MAX,
        ..Hello::default()
    };
    let hello = MessageBatch { hello: Some(hello), ..MessageBatch::default() };
    let feed = async {
        let mut chance = SmallRng::seed_from_u64(ground.ledger.acts());
        let mut pace = AttackPace::new(MESSAGES_PER_SECOND);
        let mut next = Some(hello);
        loop {
            let batch = next.take().unwrap_or_else(|| batch(&mut chance, &roles));
            if sender.send(batch).await.is_err() {
                return;
            }
            ground.ledger.add_acts(1);
            pace.take(1).await;
        }
    };
    tokio::select! {
        answer = client.messages(batches) => answer.map(drop).map_err(io::Error::other),
        () = feed => Ok(()),
    }
}

fn batch(chance: &mut SmallRng, roles: &Roles) -> MessageBatch {
    let messages = match chance.random_range(0..10) {
        0 => vec![Bytes::from_static(&[1]); TINY_MESSAGES],
        1..5 => vec![random(chance)],
        _ => vec![ours(roles, &ForgedMessage::any(chance, roles.term)).into()],
    };
    MessageBatch { messages, ..MessageBatch::default() }
}

fn random(chance: &mut SmallRng) -> Bytes {
    let mut bytes = vec![0; chance.random_range(0..RANDOM_BYTES_MAX)];
    chance.fill(&mut bytes[..]);
    Bytes::from(bytes)
}

/// The encoding of crates/raft-node/src/wire/message.rs.
fn ours(roles: &Roles, forged: &ForgedMessage) -> Vec<u8> {
    let is_snapshot = forged.kind == SNAPSHOT;
    let is_read = matches!(forged.kind, READ_INDEX | READ_INDEX_RESPONSE);
    let mut out = vec![1, forged.kind, if is_snapshot { 4 } else { 0 }];
    let term = if forged.kind == READ_INDEX { 0 } else { forged.term };
    for number in [roles.from, term, forged.term, forged.index, forged.commit, 0, 0, 0] {
        encode_varint(number, &mut out);
    }
    encode_varint(u64::from(is_read), &mut out);
    if is_read {
        // A single entry; its payload is the reader's context.
        out.extend_from_slice(&[0, 0, 0, 16]);
        out.extend_from_slice(&[7; 16]);
    }
    if is_snapshot {
        encode_varint(forged.index, &mut out);
        encode_varint(forged.term, &mut out);
        // One voter, no learner.
        out.extend_from_slice(&[1]);
        encode_varint(roles.from, &mut out);
        out.extend_from_slice(&[0, 0, 0, 0]);
    }
    out
}

/// etcd takes each message as a separate POST.
async fn posts_of_garbage(ground: Ground) -> io::Result<()> {
    let roles = Roles::of(&ground);
    let mut chance = SmallRng::seed_from_u64(ground.ledger.acts());
    let mut pace = AttackPace::new(MESSAGES_PER_SECOND);
    loop {
        let body = match chance.random_range(0..2) {
            0 => random(&mut chance).to_vec(),
            _ => etcds(&roles, &ForgedMessage::any(&mut chance, roles.term)),
        };
        let head = format!(
            "POST /raft HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/protobuf\r\n\
             X-Etcd-Cluster-ID: {:x}\r\nX-Server-From: {:x}\r\nX-Raft-To: {:x}\r\nX-Server-Version: 3.7.0\r\n\
             X-Min-Cluster-Version: 3.0.0\r\nContent-Length: {}\r\n\r\n",
            ground.ids.cluster,
            roles.from,
            roles.to,
            body.len()
        );
        let mut stream = dial(roles.port).await?;
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body).await?;
        ground.ledger.add_acts(1);
        let mut answer = Vec::new();
        // Some messages make etcd wait for Raft. The stranger does not wait.
        if let Ok(read) = tokio::time::timeout(ANSWER_TIMEOUT, stream.read_to_end(&mut answer)).await {
            read?;
        }
        pace.take(1).await;
    }
}

/// `raftpb.Message`: type 1, to 2, from 3, term 4, logTerm 5, index 6, commit 8.
fn etcds(roles: &Roles, forged: &ForgedMessage) -> Vec<u8> {
    let ForgedMessage { kind, term, index, commit } = *forged;
    let fields =
        [(1, u64::from(kind)), (2, roles.to), (3, roles.from), (4, term), (5, term), (6, index), (8, commit)];
    let mut out = Vec::new();
    for (field, value) in fields {
        out.push(field << 3);
        encode_varint(value, &mut out);
    }
    out
}
