//! Lessees: each grants a lease, puts two keys with it, renews it or queries its TTL through random members,
//! and then revokes it or lets it expire. After a revocation, and long after its expiry, it reads whether
//! the keys are deleted.

use super::client::{ClientShared, call, op, put, revision};
use crate::Input;
use crate::leases::{LeaseGrant, LeaseInput};
use crate::operation::{CallOutcome, LEASED, Request, Write};
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, TxnRequest,
};
use client::Client;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::Status;

/// Requested TTLs in seconds. etcd grants at least 2.
const TTLS: Range<i64> = 2..5;
/// Pause between two requests, as a fraction of the TTL.
const PAUSES: Range<f64> = 0.1..0.8;
const RENEWALS: Range<u32> = 0..4;
/// Probability of a revocation.
const REVOKED: f64 = 0.25;
/// Probability that a step queries the remaining TTL instead of renewing.
const ASKS: f64 = 0.5;
/// Delay after the expiry of a lease until its keys must be deleted. A new leader restarts the TTL at its
/// election.
const LONG_DELAY: Duration = Duration::from_secs(10);
/// Delay of a second read: a suspended machine did not make progress before the first.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// Delay after a failed grant.
const REST: Duration = Duration::from_millis(500);

pub struct Lessee {
    /// Number, in the same range as the numbers of clients.
    number: usize,
    channels: Vec<Client>,
    shared: Arc<ClientShared>,
    random: SmallRng,
    /// Leases that should expire.
    ending: VecDeque<EndingLease>,
}

/// A lease that is left to expire.
struct EndingLease {
    id: i64,
    key: u32,
    ttl: Duration,
    /// Time of expiry, or of the first read.
    until: Duration,
    was_read: bool,
}

impl Lessee {
    pub fn new(number: usize, channels: &[Client], shared: Arc<ClientShared>, seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed.wrapping_add(number as u64));
        Self { number, channels: channels.to_vec(), shared, random, ending: VecDeque::new() }
    }

    /// Uses leases sequentially until the task is aborted or the checker has stopped.
    pub async fn run(mut self) {
        while self.use_one().await.is_some() {}
    }

    async fn use_one(&mut self) -> Option<()> {
        self.look_at_ending().await?;
        let Some((id, mut kept, asked)) = self.grant().await else {
            sleep(REST).await;
            return Some(());
        };
        let ttl = kept.ttl;
        let first = LEASED | self.shared.leased.fetch_add(2, Relaxed);
        let keys = vec![first, first + 1];
        self.shared
            .send(Input::Lease(id, LeaseInput::Granted { keys: keys.clone(), kept: kept.clone(), asked }))
            .await?;
        let put = self.put(id, &keys).await?;
        if matches!(put, CallOutcome::Written { .. }) {
            self.shared.send(Input::Lease(id, LeaseInput::Attached)).await?;
        }
        for _ in 0..self.random.random_range(RENEWALS) {
            sleep(ttl.mul_f64(self.random.random_range(PAUSES))).await;
            if self.random.random_bool(ASKS) {
                if let Some(lifetime) = self.lifetime(id).await {
                    self.shared.send(Input::Lease(id, lifetime)).await?;
                }
            } else if let Some(renewed) = self.renew(id).await {
                kept = renewed.clone();
                self.shared.send(Input::Lease(id, LeaseInput::Renewed(renewed))).await?;
            }
        }
        if self.random.random_bool(REVOKED) {
            self.shared.send(Input::Lease(id, LeaseInput::Revoking)).await?;
            let mut client = self.any().1.lease();
            // Without a response, the lease may be revoked at any later time.
            let revoked =
                timeout(self.shared.request_timeout, client.lease_revoke(LeaseRevokeRequest { id })).await;
            if matches!(revoked, Ok(Ok(_))) {
                self.shared.send(Input::Lease(id, LeaseInput::Revoked)).await?;
                self.exists(id, first).await?;
            }
        }
        let until = kept.sent + kept.ttl;
        self.ending.push_back(EndingLease { id, key: first, ttl, until, was_read: false });
        self.shared.send(Input::Lease(id, LeaseInput::Left)).await?;
        sleep(ttl.mul_f64(self.random.random_range(PAUSES))).await;
        Some(())
    }

    /// Reads the keys of leases that expired long ago.
    async fn look_at_ending(&mut self) -> Option<()> {
        for _ in 0..self.ending.len() {
            let Some(mut lease) = self.ending.pop_front() else { break };
            let changed = Duration::from_millis(self.shared.leader_changed_ms.load(Relaxed));
            let begun = self.shared.start.elapsed();
            let wait = if lease.was_read { READ_AGAIN } else { LONG_DELAY };
            if begun < lease.until + wait || begun < changed + lease.ttl + LONG_DELAY {
                self.ending.push_back(lease);
                continue;
            }
            match self.read(lease.key).await? {
                Some(false) => {}
                Some(true) if lease.was_read => {
                    self.shared.send(Input::Lease(lease.id, LeaseInput::Exists(begun))).await?;
                }
                Some(true) => {
                    (lease.until, lease.was_read) = (self.shared.start.elapsed(), true);
                    self.ending.push_back(lease);
                }
                None => self.ending.push_back(lease),
            }
        }
        Some(())
    }

    /// Reports the keys of an expired or revoked lease, if a read returns them.
    async fn exists(&mut self, id: i64, key: u32) -> Option<()> {
        let begun = self.shared.start.elapsed();
        if self.read(key).await? == Some(true) {
            self.shared.send(Input::Lease(id, LeaseInput::Exists(begun))).await?;
        }
        Some(())
    }

    /// Reads linearizably whether a key exists; inside, `None` without a response.
    async fn read(&mut self, key: u32) -> Option<Option<bool>> {
        let (member, channel) = self.any();
        let (request, mut client) = (Request::Read { keys: vec![key], serializable: false }, channel.kv());
        let shared = self.shared.clone();
        let reading = call(&mut client, &shared.names, &request);
        Some(match shared.operate(self.number, member, &request, reading).await? {
            CallOutcome::Page { records, .. } => Some(!records.is_empty()),
            _ => None,
        })
    }

    fn any(&mut self) -> (usize, Client) {
        let member = self.random.random_range(0..self.channels.len());
        (member, self.channels[member].clone())
    }

    /// Grants a lease. Returns its id, the granted and the requested TTL; `None` if the call failed.
    async fn grant(&mut self) -> Option<(i64, LeaseGrant, Duration)> {
        let ttl = self.random.random_range(TTLS);
        let (member, channel) = self.any();
        let sent = self.shared.start.elapsed();
        let mut client = channel.lease();
        let granted = client.lease_grant(LeaseGrantRequest { ttl, id: 0 });
        let answer = timeout(self.shared.request_timeout, granted).await.ok()?.ok()?.into_inner();
        Some((answer.id, LeaseGrant { member, sent, ttl: seconds(answer.ttl)? }, seconds(ttl)?))
    }

    async fn put(&mut self, lease: i64, keys: &[u32]) -> Option<CallOutcome> {
        let (member, channel) = self.any();
        let shared = self.shared.clone();
        let write = |&key: &u32| Write { key, value: shared.values.fetch_add(1, Relaxed), lease };
        let writes: Vec<_> = keys.iter().map(write).collect();
        let success = writes.iter().map(|&write| op(Op::RequestPut(put(&shared.names, write)))).collect();
        let call = async move {
            let txn = TxnRequest { success, ..Default::default() };
            let answer = channel.kv().txn(txn).await?.into_inner();
            Ok::<_, Status>(CallOutcome::Written { revision: revision(answer.header), previous: None })
        };
        shared.operate(self.number, member, &Request::Put(writes), call).await
    }

    /// Queries the remaining TTL of a lease.
    async fn lifetime(&mut self, id: i64) -> Option<LeaseInput> {
        let mut client = self.any().1.lease();
        let asked = client.lease_time_to_live(LeaseTimeToLiveRequest { id, keys: true });
        let answer = timeout(self.shared.request_timeout, asked).await.ok()?.ok()?.into_inner();
        let at = self.shared.start.elapsed();
        let keys = answer.keys.iter().map(|key| self.shared.names.number(key)).collect();
        Some(LeaseInput::Lifetime { at, granted: answer.granted_ttl, left: answer.ttl, keys })
    }

    /// Renews a lease and returns the new TTL; `None` if the call failed, or the lease does not exist.
    async fn renew(&mut self, id: i64) -> Option<LeaseGrant> {
        let (member, channel) = self.any();
        let sent = self.shared.start.elapsed();
        let renewed = async {
            let requests = tokio_stream::once(LeaseKeepAliveRequest { id });
            let mut answers = channel.lease().lease_keep_alive(requests).await?.into_inner();
            answers.message().await
        };
        let answer = timeout(self.shared.request_timeout, renewed).await.ok()?.ok()??;
        Some(LeaseGrant { member, sent, ttl: seconds(answer.ttl)? })
    }
}

/// Converts a TTL; `None` if the lease does not exist.
fn seconds(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().filter(|&ttl| ttl > 0).map(Duration::from_secs)
}
