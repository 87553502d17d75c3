//! Holders: each acquires a lock or wins an election through a random member, reads which key is the oldest,
//! and releases it, or revokes the lease of its key.

use super::client::ClientShared;
use crate::Input;
use crate::holders::{Hold, HolderInput};
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest, RangeRequest};
use api::mvccpb::KeyValue;
use api::v3electionpb::{CampaignRequest, LeaderKey, LeaderRequest, ResignRequest};
use api::v3lockpb::{LockRequest, UnlockRequest};
use bytes::Bytes;
use client::Client;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::Status;

/// TTL of key leases in seconds: longer than a leader election.
const TTL: i64 = 10;
/// Maximum hold time of a lock, and minimum pause between locks.
const HELD_MS: u64 = 300;

pub struct Holder {
    channels: Vec<Client>,
    shared: Arc<ClientShared>,
    random: SmallRng,
}

/// An acquired lock or election.
enum Given {
    Lock(Bytes),
    Election(LeaderKey),
}

impl Holder {
    pub fn new(number: usize, channels: &[Client], shared: Arc<ClientShared>, seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed.wrapping_add(number as u64));
        Self { channels: channels.to_vec(), shared, random }
    }

    /// Acquires repeatedly until the task is aborted or the checker has stopped.
    pub async fn run(mut self) {
        loop {
            let pause = Duration::from_millis(self.random.random_range(HELD_MS..2 * HELD_MS));
            sleep(pause).await;
            let leased = self.shared.start.elapsed();
            let lease = LeaseGrantRequest { ttl: TTL, id: 0 };
            let mut leases = self.any().1.lease();
            let Some(lease) = self.answer(leases.lease_grant(lease)).await.filter(|lease| lease.ttl > 0)
            else {
                continue;
            };
            let held = self.hold(leased, lease.id, Duration::from_secs(lease.ttl.unsigned_abs())).await;
            // Without a response, the lease expires by itself.
            let revoke = LeaseRevokeRequest { id: lease.id };
            let _ = self.answer(leases.lease_revoke(revoke)).await;
            if held.is_none() {
                return;
            }
        }
    }

    /// Acquires once; `None` if the checker has stopped.
    async fn hold(&mut self, leased: Duration, lease: i64, ttl: Duration) -> Option<()> {
        let is_lock = self.random.random_bool(0.5);
        let name = self.shared.names.held(if is_lock { "lock" } else { "election" });
        let (member, channel) = self.any();
        let (given, key) = if is_lock {
            let lock = LockRequest { name: name.clone(), lease };
            let answer = self.answer(channel.lock().lock(lock)).await;
            let Some(answer) = answer else { return Some(()) };
            (Given::Lock(answer.key.clone()), answer.key)
        } else {
            let campaign = CampaignRequest { name: name.clone(), lease, value: Bytes::new() };
            let answer = self.answer(channel.election().campaign(campaign)).await;
            let Some(leader) = answer.and_then(|answer| answer.leader) else { return Some(()) };
            (Given::Election(leader.clone()), leader.key)
        };
        let (key, lock) = (text(&key), text(&name));
        let at = self.shared.start.elapsed();
        let hold = Hold { member, leased, ttl, at, key: key.clone() };
        self.send(&lock, HolderInput::Held(hold)).await?;
        if let Some(oldest) = self.oldest(&name).await {
            self.said(&lock, &key, oldest).await?;
        }
        if !is_lock {
            let mut elections = self.any().1.election();
            if let Some(answer) = self.answer(elections.leader(LeaderRequest { name })).await {
                self.said(&lock, &key, answer.kv).await?;
            }
        }
        sleep(Duration::from_millis(self.random.random_range(0..HELD_MS))).await;
        self.send(&lock, HolderInput::Releasing(key.clone())).await?;
        if self.random.random_bool(0.5) && self.release(given).await {
            let at = self.shared.start.elapsed();
            let mut client = self.any().1.kv();
            let range = RangeRequest { key: key.clone().into(), ..Default::default() };
            if self.answer(client.range(range)).await.is_some_and(|reply| !reply.kvs.is_empty()) {
                self.send(&lock, HolderInput::Exists { key, at }).await?;
            }
        }
        Some(())
    }

    async fn oldest(&mut self, name: &[u8]) -> Option<Option<KeyValue>> {
        let range = RangeRequest {
            key: [name, b"/"].concat().into(),
            range_end: [name, b"0"].concat().into(),
            limit: 1,
            sort_order: SortOrder::Ascend.into(),
            sort_target: SortTarget::Create.into(),
            ..Default::default()
        };
        let mut client = self.any().1.kv();
        self.answer(client.range(range)).await.map(|mut answer| answer.kvs.pop())
    }

    async fn said(&self, lock: &str, key: &str, kv: Option<KeyValue>) -> Option<()> {
        let oldest = kv.map(|kv| (text(&kv.key), kv.create_revision));
        let at = self.shared.start.elapsed();
        self.send(lock, HolderInput::Oldest { key: key.to_owned(), at, oldest }).await
    }

    /// Releases and returns whether this was acknowledged. Otherwise, revoking the lease releases it.
    async fn release(&mut self, given: Given) -> bool {
        let channel = self.any().1;
        match given {
            Given::Lock(key) => self.answer(channel.lock().unlock(UnlockRequest { key })).await.is_some(),
            Given::Election(leader) => {
                let resign = ResignRequest { leader: Some(leader) };
                self.answer(channel.election().resign(resign)).await.is_some()
            }
        }
    }

    async fn answer<T>(&self, call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Option<T> {
        timeout(self.shared.request_timeout, call).await.ok()?.ok().map(tonic::Response::into_inner)
    }

    async fn send(&self, name: &str, input: HolderInput) -> Option<()> {
        self.shared.send(Input::Holder(name.to_owned(), input)).await
    }

    fn any(&mut self) -> (usize, Client) {
        let member = self.random.random_range(0..self.channels.len());
        (member, self.channels[member].clone())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
