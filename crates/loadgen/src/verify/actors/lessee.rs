//! Lessees: each grants a lease, puts two keys with it, renews it or asks for its time through members at
//! random, and then revokes it or lets it expire. After a revocation, and long after its time, it reads
//! whether the keys are gone.

use super::client::{ClientShared, call, op, put, revision};
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest,
    TxnRequest,
};
use checker::Input;
use checker::leases::{LeaseGrant, LeaseInput};
use checker::operation::{CallOutcome, LEASED, Request, Write};
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

/// Seconds that leases are asked for. etcd grants 2 at least.
const TTLS: Range<i64> = 2..5;
/// Parts of the TTL between two requests.
const PAUSES: Range<f64> = 0.1..0.8;
const RENEWALS: Range<u32> = 0..4;
/// Of four leases, one is revoked.
const REVOKED: f64 = 0.25;
/// Of two steps, one asks for the time that is left, and does not renew.
const ASKS: f64 = 0.5;
/// Keys that a read shows so long after the time of their lease should be gone. A new leader begins to count
/// from its election.
const LONG_AFTER: Duration = Duration::from_secs(10);
/// They are read twice, with this time in between: a machine that stood still has done nothing meanwhile.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// After a grant that failed.
const REST: Duration = Duration::from_millis(500);

/// See the module's head.
pub struct Lessee {
    /// As that of a client.
    number: usize,
    /// One per member.
    channels: Vec<Client>,
    shared: Arc<ClientShared>,
    random: SmallRng,
    /// Leases that should end by themselves.
    ending: VecDeque<EndingLease>,
}

/// A lease of which nothing more is wanted.
struct EndingLease {
    id: i64,
    key: u32,
    ttl: Duration,
    /// When its time is over, or its keys were read.
    until: Duration,
    was_read: bool,
}

impl Lessee {
    pub fn new(number: usize, channels: &[Client], shared: Arc<ClientShared>, seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed.wrapping_add(number as u64));
        Self { number, channels: channels.to_vec(), shared, random, ending: VecDeque::new() }
    }

    /// Uses one lease after the other until the task is aborted or the checker has ended.
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
        self.put(id, &keys).await?;
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
            // If there is no answer, the lease may end at any time from here on.
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

    /// Reads the keys of leases whose time has been over for long.
    async fn look_at_ending(&mut self) -> Option<()> {
        for _ in 0..self.ending.len() {
            let Some(mut lease) = self.ending.pop_front() else { break };
            let changed = Duration::from_millis(self.shared.leader_changed_ms.load(Relaxed));
            let begun = self.shared.start.elapsed();
            let wait = if lease.was_read { READ_AGAIN } else { LONG_AFTER };
            if begun < lease.until + wait || begun < changed + lease.ttl + LONG_AFTER {
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

    /// Reports the keys of a lease that has ended, if a read shows them.
    async fn exists(&mut self, id: i64, key: u32) -> Option<()> {
        let begun = self.shared.start.elapsed();
        if self.read(key).await? == Some(true) {
            self.shared.send(Input::Lease(id, LeaseInput::Exists(begun))).await?;
        }
        Some(())
    }

    /// Whether a key exists, by a linearizable read; inside, `None` if it has no answer.
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

    /// A new lease, what it is granted for and what was asked for; `None` without an answer that grants one.
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
        let write = |&key: &u32| Write { key, value: shared.values.fetch_add(1, Relaxed) };
        let writes: Vec<_> = keys.iter().map(write).collect();
        let put = |&write: &Write| Op::RequestPut(PutRequest { lease, ..put(&shared.names, write) });
        let success = writes.iter().map(|write| op(put(write))).collect();
        let call = async move {
            let txn = TxnRequest { success, ..Default::default() };
            let answer = channel.kv().txn(txn).await?.into_inner();
            Ok::<_, Status>(CallOutcome::Written { revision: revision(answer.header), previous: None })
        };
        shared.operate(self.number, member, &Request::Put(writes), call).await
    }

    /// What an answer says of the time of a lease.
    async fn lifetime(&mut self, id: i64) -> Option<LeaseInput> {
        let mut client = self.any().1.lease();
        let asked = client.lease_time_to_live(LeaseTimeToLiveRequest { id, keys: false });
        let answer = timeout(self.shared.request_timeout, asked).await.ok()?.ok()?.into_inner();
        let at = self.shared.start.elapsed();
        Some(LeaseInput::Lifetime { at, granted: answer.granted_ttl, left: answer.ttl })
    }

    /// What a renewal keeps the lease for; `None` if there is no answer, or the lease has ended.
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

/// A TTL; `None` for a lease that has ended.
fn seconds(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().filter(|&ttl| ttl > 0).map(Duration::from_secs)
}
