//! Lessees: each grants a lease, puts two keys with it, renews it through members at random, and then revokes
//! it or lets it expire.

use super::client::{ClientShared, op, put, revision};
use crate::client::admin::Channel;
use crate::verify::leases::{LeaseGrant, LeaseInput};
use crate::verify::operation::{CallOutcome, LEASED, Request, Write};
use crate::verify::verdict::Input;
use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::lease_client::LeaseClient;
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest, TxnRequest,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
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
/// After a grant that failed.
const REST: Duration = Duration::from_millis(500);

/// See the module's head.
pub struct Lessee {
    /// As that of a client.
    number: usize,
    /// One per member.
    channels: Vec<Channel>,
    shared: Arc<ClientShared>,
    random: SmallRng,
}

impl Lessee {
    pub fn new(number: usize, channels: &[Channel], shared: Arc<ClientShared>, seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed.wrapping_add(number as u64));
        Self { number, channels: channels.to_vec(), shared, random }
    }

    /// Uses one lease after the other until the task is aborted or the checker has ended.
    pub async fn run(mut self) {
        while self.use_one().await.is_some() {}
    }

    async fn use_one(&mut self) -> Option<()> {
        let Some((id, kept)) = self.grant().await else {
            sleep(REST).await;
            return Some(());
        };
        let ttl = kept.ttl;
        let first = LEASED | self.shared.leased.fetch_add(2, Relaxed);
        let keys = vec![first, first + 1];
        self.shared.send(Input::Lease(id, LeaseInput::Granted { keys: keys.clone(), kept })).await?;
        self.put(id, &keys).await?;
        for _ in 0..self.random.random_range(RENEWALS) {
            sleep(ttl.mul_f64(self.random.random_range(PAUSES))).await;
            if let Some(kept) = self.renew(id).await {
                self.shared.send(Input::Lease(id, LeaseInput::Renewed(kept))).await?;
            }
        }
        if self.random.random_bool(REVOKED) {
            self.shared.send(Input::Lease(id, LeaseInput::Revoking)).await?;
            let mut client = LeaseClient::new(self.any().1);
            // Whether it arrives does not matter: from here on the lease may end at any time.
            let _ =
                timeout(self.shared.request_timeout, client.lease_revoke(LeaseRevokeRequest { id })).await;
        }
        self.shared.send(Input::Lease(id, LeaseInput::Left)).await?;
        sleep(ttl.mul_f64(self.random.random_range(PAUSES))).await;
        Some(())
    }

    fn any(&mut self) -> (usize, Channel) {
        let member = self.random.random_range(0..self.channels.len());
        (member, self.channels[member].clone())
    }

    /// A new lease and what it is granted for; `None` if there is no answer that grants one.
    async fn grant(&mut self) -> Option<(i64, LeaseGrant)> {
        let ttl = self.random.random_range(TTLS);
        let (member, channel) = self.any();
        let sent = self.shared.start.elapsed();
        let mut client = LeaseClient::new(channel);
        let granted = client.lease_grant(LeaseGrantRequest { ttl, id: 0 });
        let answer = timeout(self.shared.request_timeout, granted).await.ok()?.ok()?.into_inner();
        Some((answer.id, LeaseGrant { member, sent, ttl: seconds(answer.ttl)? }))
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
            let answer = KvClient::new(channel).txn(txn).await?.into_inner();
            Ok::<_, Status>(CallOutcome::Written { revision: revision(answer.header), previous: None })
        };
        shared.operate(self.number, member, &Request::Put(writes), call).await
    }

    /// What a renewal keeps the lease for; `None` if there is no answer, or the lease has ended.
    async fn renew(&mut self, id: i64) -> Option<LeaseGrant> {
        let (member, channel) = self.any();
        let sent = self.shared.start.elapsed();
        let renewed = async {
            let requests = tokio_stream::once(LeaseKeepAliveRequest { id });
            let mut answers = LeaseClient::new(channel).lease_keep_alive(requests).await?.into_inner();
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
