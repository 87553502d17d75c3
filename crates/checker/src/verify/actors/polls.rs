//! Periodic queries to all members: the leader, the membership, the hash of the key space, and old events;
//! and compactions, if enabled.

use super::client::{ClientShared, OLD_MAX};
use super::names::KeyNames;
use super::{CheckerMessage, LeaderSeen};
use crate::hashes::Hash;
use crate::members::MemberIds;
use crate::operation::{KeyChange, Revision};
use crate::{Input, Replay};
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    CompactionRequest, HashKvRequest, MemberListRequest, StatusResponse, WatchCreateRequest,
    WatchProgressRequest, WatchRequest,
};
use client::Client;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::IntervalStream;

/// Interval of querying the leader.
const LEADER: Duration = Duration::from_millis(200);
/// Interval of querying the membership, and of watches from old revisions.
const SECOND: Duration = Duration::from_secs(1);
/// Interval between two requests for progress.
const PROGRESS: Duration = Duration::from_millis(200);
/// Timeout of a query; it is retried later.
const PATIENCE: Duration = Duration::from_secs(1);
/// Timeout of a hash, which reads the whole key space.
const HASH_PATIENCE: Duration = Duration::from_secs(30);
/// Attempts to get a hash from a lagging member, which lacks the revision.
const HASH_TRIES: u32 = 20;
/// Delay between two attempts.
const HASH_REST: Duration = Duration::from_millis(250);

/// Reports each leader change, until the task is aborted or the checker has stopped.
pub async fn leaders(channels: Vec<Client>, shared: Arc<ClientShared>) {
    let mut known = None;
    let mut ids = vec![None; channels.len()];
    let mut ticks = ticks(LEADER);
    loop {
        ticks.tick().await;
        let statuses =
            all(&channels, |channel| async move { timeout(PATIENCE, channel.status()).await.ok()?.ok() });
        let statuses: Vec<Option<StatusResponse>> = statuses.await;
        for (id, status) in ids.iter_mut().zip(&statuses) {
            let header = status.as_ref().and_then(|status| status.header.as_ref());
            *id = header.map(|header| header.member_id).or(*id);
        }
        let newest = statuses.iter().flatten().max_by_key(|status| status.raft_term);
        let leader = newest.map(|status| {
            (ids.iter().position(|id| status.leader != 0 && *id == Some(status.leader)), status.raft_term)
        });
        let Some((member, term)) = leader.filter(|leader| known != Some(*leader)) else { continue };
        known = leader;
        shared.leader_changed_ms.store(shared.start.elapsed().as_millis() as u64, Relaxed);
        let seen = LeaderSeen { at: shared.start.elapsed(), member, term };
        if shared.messages.send(CheckerMessage::Leader(seen)).await.is_err() {
            return;
        }
    }
}

/// Queries the hash of all members at the same revision, periodically.
pub async fn hashes(channels: Vec<Client>, shared: Arc<ClientShared>, every: Duration) {
    let mut ticks = ticks(every);
    loop {
        ticks.tick().await;
        let revision = shared.newest.load(Relaxed);
        let answers = all(&channels, |channel| timeout(HASH_PATIENCE, hash(channel, revision)));
        for (member, answer) in answers.await.into_iter().enumerate() {
            let Ok(Some((compacted, hash))) = answer else { continue };
            let hash = Hash { member, at: shared.start.elapsed(), revision, compacted, hash };
            if shared.send(Input::Hashed(hash)).await.is_none() {
                return;
            }
        }
    }
}

/// Returns the compacted revision and the hash; `None` if the member fails.
async fn hash(channel: Client, revision: Revision) -> Option<(Revision, u32)> {
    let mut client = channel.maintenance();
    for _ in 0..HASH_TRIES {
        match client.hash_kv(HashKvRequest { revision }).await.map(tonic::Response::into_inner) {
            Ok(answer) => return Some((answer.compact_revision, answer.hash)),
            // The member may be down or lagging.
            Err(_) => sleep(HASH_REST).await,
        }
    }
    None
}

/// Queries the membership from every member, periodically.
pub async fn members(channels: Vec<Client>, shared: Arc<ClientShared>) {
    let mut ticks = ticks(SECOND);
    for round in 0.. {
        ticks.tick().await;
        let list = MemberListRequest { linearizable: true };
        let answers =
            all(
                &channels,
                |channel| async move { timeout(PATIENCE, channel.cluster().member_list(list)).await },
            );
        for (member, answer) in answers.await.into_iter().enumerate() {
            let Ok(Ok(answer)) = answer else { continue };
            let answer = answer.into_inner();
            let ids = answer.members.iter().map(|member| member.id).collect();
            let (cluster, term) =
                answer.header.map_or((0, 0), |header| (header.cluster_id, header.raft_term));
            let list = MemberIds { round, member, at: shared.start.elapsed(), ids, cluster, term };
            if shared.send(Input::Members(list)).await.is_none() {
                return;
            }
        }
    }
}

/// Watches from an old revision up to the revision that all watchers have received, round-robin over the
/// members.
pub async fn replays(channels: Vec<Client>, shared: Arc<ClientShared>, seed: u64) {
    let (mut ticks, mut random) = (ticks(SECOND), SmallRng::seed_from_u64(seed));
    for (member, channel) in channels.iter().enumerate().cycle() {
        ticks.tick().await;
        let to = shared.received_by_all.load(Relaxed);
        let from = random.random_range((to - OLD_MAX).max(shared.first)..=to) + 1;
        // The member may be down, or have compacted.
        let received = timeout(HASH_PATIENCE, replay(channel.clone(), &shared.names, from, to)).await;
        let Ok(Some(changes)) = received else { continue };
        let replay = Replay { member, at: shared.start.elapsed(), from, to, changes };
        if shared.send(Input::Replayed(replay)).await.is_none() {
            return;
        }
    }
}

/// Returns at least all changes from one revision to another; `None` if they are not available.
async fn replay(channel: Client, names: &KeyNames, from: Revision, to: Revision) -> Option<Vec<KeyChange>> {
    let (key, range_end) = names.watched();
    let create = WatchCreateRequest { key, range_end, start_revision: from, ..Default::default() };
    let progress = IntervalStream::new(ticks(PROGRESS));
    let progress = progress.map(|_| RequestUnion::ProgressRequest(WatchProgressRequest {}));
    let requests = tokio_stream::once(RequestUnion::CreateRequest(create)).chain(progress);
    let requests = requests.map(|union| WatchRequest { request_union: Some(union) });
    let mut client = channel.watch();
    let mut responses = client.watch(requests).await.ok()?.into_inner();
    let mut changes = Vec::new();
    loop {
        let response = responses.message().await.ok()??;
        if response.canceled || response.compact_revision > 0 {
            return None;
        }
        changes.extend(response.events.iter().map(|event| names.change(event)));
        let reached = match response.events.is_empty() {
            true if response.created => 0,
            true => response.header.map_or(0, |header| header.revision),
            false => changes.last().map_or(0, |change| change.revision - 1),
        };
        if reached >= to {
            return Some(changes);
        }
    }
}

/// Periodically compacts up to the revision that every watcher has received.
pub async fn compactions(channels: Vec<Client>, shared: Arc<ClientShared>, every: Duration) {
    let mut ticks = ticks(every);
    ticks.tick().await;
    for channel in channels.iter().cycle() {
        ticks.tick().await;
        let revision = shared.received_by_all.load(Relaxed);
        let mut client = channel.kv();
        let compaction = CompactionRequest { revision, physical: false };
        // After a failure, the next compaction covers more.
        if matches!(timeout(PATIENCE, client.compact(compaction)).await, Ok(Ok(_)))
            && shared.send(Input::Compacted(revision)).await.is_none()
        {
            return;
        }
    }
}

fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Queries all members concurrently; returns the results in member order.
async fn all<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    channels: &[Client],
    ask: impl Fn(Client) -> F,
) -> Vec<T> {
    let mut tasks = JoinSet::new();
    for (member, channel) in channels.iter().enumerate() {
        let answer = ask(channel.clone());
        tasks.spawn(async move { (member, answer.await) });
    }
    let mut answers = tasks.join_all().await;
    answers.sort_by_key(|(member, _)| *member);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
