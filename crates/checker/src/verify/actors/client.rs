//! Clients: each sends operations sequentially, round-robin over all members, and reports start and outcome
//! to the checker.

use super::names::{KeyNames, value};
use super::{CheckerMessage, Messages};
use crate::Input;
use crate::operation::{CallOutcome, ClientOperation, KeyRecord, Request, Revision, Write};
use crate::verify::pace::Pace;
use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::response_op::Response;
use api::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, ResponseHeader, TxnRequest,
};
use client::{Channel, Client};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tonic::Status;

/// Limit of operations that no watcher has caught up with, including their keys and records: above it, some
/// hundred megabytes, clients wait.
const WAITING_MAX: usize = 1 << 20;
/// Maximum age, in revisions, of reads of old revisions.
pub const OLD_MAX: i64 = 1000;
/// Interval of checking whether the watchers have caught up.
const LOOK: Duration = Duration::from_millis(10);

pub struct ClientShared {
    pub names: KeyNames,
    pub keys: u32,
    pub request_timeout: Duration,
    pub pace: Pace,
    pub messages: Messages,
    pub start: Instant,
    pub operations: AtomicU64,
    pub values: AtomicU64,
    /// Operations that no watcher has caught up with, and their weight, as reported by the checker.
    pub waiting: AtomicUsize,
    /// Revision at which none of the keys existed.
    pub first: Revision,
    /// Time of the last reported leader change, since the start.
    pub leader_changed_ms: AtomicU64,
    /// Latest observed revision.
    pub newest: AtomicI64,
    /// Revision up to which every watcher has received everything.
    pub received_by_all: AtomicI64,
    /// Number of keys that were put with leases.
    pub leased: AtomicU32,
}

pub struct VerifyClient {
    number: usize,
    members: Vec<KvClient<Channel>>,
    shared: Arc<ClientShared>,
    random: SmallRng,
    /// Last observed mod revision of each key.
    modified: HashMap<u32, Revision>,
}

impl ClientShared {
    /// Runs an operation of a client, from its start to its outcome; `None` if the checker has stopped.
    pub async fn operate(
        &self,
        client: usize,
        member: usize,
        request: &Request,
        call: impl Future<Output = Result<CallOutcome, Status>>,
    ) -> Option<CallOutcome> {
        let permit = self.messages.reserve().await.ok()?;
        // Numbered and sent without a pause: the checker sees operations in the order of their numbers.
        let number = self.operations.fetch_add(1, Relaxed);
        let (request, began) = (request.clone(), self.start.elapsed());
        let operation =
            ClientOperation { number, client, member, request, began, ended: None, outcome: None };
        permit.send(CheckerMessage::Input(Input::Began(operation)));
        let outcome = match tokio::time::timeout(self.request_timeout, call).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(status)) => CallOutcome::Unknown(format!("{:?}: {}", status.code(), status.message())),
            Err(_) => CallOutcome::Unknown(format!("no answer within {:?}", self.request_timeout)),
        };
        self.send(Input::Ended(number, self.start.elapsed(), outcome.clone())).await?;
        Some(outcome)
    }

    /// Sends an input; `None` if the checker has stopped.
    pub async fn send(&self, input: Input) -> Option<()> {
        self.messages.send(CheckerMessage::Input(input)).await.ok()
    }
}

impl VerifyClient {
    pub fn new(number: usize, channels: &[Client], shared: Arc<ClientShared>, seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed.wrapping_add(number as u64));
        let members = channels.iter().map(Client::kv).collect();
        Self { number, members, shared, random, modified: HashMap::new() }
    }

    /// Sends operations until the run is over or the checker stops.
    pub async fn run(mut self) {
        let mut member = self.number;
        while let Some(due) = self.shared.pace.next(Instant::now()) {
            tokio::time::sleep_until(due.into()).await;
            while self.shared.waiting.load(Relaxed) > WAITING_MAX {
                tokio::time::sleep(LOOK).await;
            }
            member = (member + 1) % self.members.len();
            if self.operate(member).await.is_none() {
                return;
            }
        }
    }

    /// Runs an operation; `None` if the checker has stopped.
    async fn operate(&mut self, member: usize) -> Option<()> {
        let request = self.choose();
        let call = call(&mut self.members[member], &self.shared.names, &request);
        let outcome = self.shared.operate(self.number, member, &request, call).await?;
        self.learn(&request, &outcome);
        Some(())
    }

    fn choose(&mut self) -> Request {
        let keys = self.shared.keys;
        let key = self.random.random_range(0..keys);
        let write = |key| Write { key, value: self.shared.values.fetch_add(1, Relaxed), lease: 0 };
        match self.random.random_range(0..100) {
            0..25 => Request::Put(vec![write(key)]),
            25..35 => Request::Put((0..keys.min(3)).map(|n| write((key + n) % keys)).collect()),
            35..45 => Request::Delete(key),
            45..60 => Request::Swap(write(key), self.modified.get(&key).copied().unwrap_or(0)),
            60..70 => Request::Read { keys: vec![key], serializable: false },
            70..75 => {
                let newest = self.shared.newest.load(Relaxed);
                let oldest = (newest - OLD_MAX).max(self.shared.first);
                let revision = self.random.random_bool(0.5);
                let revision = revision.then(|| self.random.random_range(oldest..=newest));
                let limit = self.random.random_range(0..=keys as usize);
                Request::Page { keys: (0..keys).collect(), limit, revision }
            }
            75..80 => Request::Read { keys: (0..keys).collect(), serializable: false },
            80..95 => Request::Read { keys: vec![key], serializable: true },
            _ => Request::Read { keys: (0..keys).collect(), serializable: true },
        }
    }

    /// Records revisions for the next compare-and-swap.
    fn learn(&mut self, request: &Request, outcome: &CallOutcome) {
        match outcome {
            CallOutcome::Written { revision, .. } => {
                for key in request.keys() {
                    let exists = !matches!(request, Request::Delete(_));
                    self.modified.insert(key, if exists { *revision } else { 0 });
                }
            }
            CallOutcome::Found { records, .. } | CallOutcome::Page { records, .. }
                if !matches!(request, Request::Page { .. }) =>
            {
                let asked = request.keys();
                self.modified.retain(|key, _| !asked.contains(key));
                self.modified.extend(records.iter().map(|record| (record.key, record.modified)));
            }
            CallOutcome::Found { .. }
            | CallOutcome::Page { .. }
            | CallOutcome::Compacted
            | CallOutcome::Unknown(_) => {}
        }
    }
}

/// Sends a request and reads its response.
pub async fn call(
    client: &mut KvClient<Channel>,
    names: &KeyNames,
    request: &Request,
) -> Result<CallOutcome, Status> {
    match request {
        Request::Put(writes) => match writes[..] {
            [write] => {
                let put = PutRequest { prev_kv: true, ..put(names, write) };
                let answer = client.put(put).await?.into_inner();
                let previous = answer.prev_kv.iter().map(|kv| names.record(kv)).collect();
                Ok(CallOutcome::Written { revision: revision(answer.header), previous: Some(previous) })
            }
            _ => {
                let success = writes.iter().map(|&write| op(Op::RequestPut(put(names, write)))).collect();
                let txn = TxnRequest { success, ..Default::default() };
                let answer = client.txn(txn).await?.into_inner();
                Ok(CallOutcome::Written { revision: revision(answer.header), previous: None })
            }
        },
        Request::Delete(key) => {
            let key = names.key(*key);
            let delete = DeleteRangeRequest { key, prev_kv: true, ..Default::default() };
            let answer = client.delete_range(delete).await?.into_inner();
            let revision = revision(answer.header);
            let previous: Vec<KeyRecord> = answer.prev_kvs.iter().map(|kv| names.record(kv)).collect();
            Ok(match answer.deleted {
                0 => CallOutcome::Found { revision, records: previous },
                _ => CallOutcome::Written { revision, previous: Some(previous) },
            })
        }
        Request::Swap(write, expected) => swap(client, names, *write, *expected).await,
        Request::Read { keys, serializable } => {
            let (key, range_end) = match keys[..] {
                [key] => (names.key(key), Default::default()),
                _ => names.all(),
            };
            range(
                client,
                names,
                RangeRequest { key, range_end, serializable: *serializable, ..Default::default() },
            )
            .await
        }
        Request::Page { limit, revision, .. } => {
            let (key, range_end) = names.all();
            let (limit, revision) = (*limit as i64, revision.unwrap_or(0));
            let asked = RangeRequest { key, range_end, limit, revision, ..Default::default() };
            match range(client, names, asked).await {
                // A future revision, in contrast, remains a failed call.
                Err(status) if status.message() == api::Error::Compacted.message() => {
                    Ok(CallOutcome::Compacted)
                }
                answer => answer,
            }
        }
    }
}

async fn range(
    client: &mut KvClient<Channel>,
    names: &KeyNames,
    asked: RangeRequest,
) -> Result<CallOutcome, Status> {
    let answer = client.range(asked).await?.into_inner();
    let records = answer.kvs.iter().map(|kv| names.record(kv)).collect();
    let (revision, count, more) = (revision(answer.header), answer.count, answer.more);
    Ok(CallOutcome::Page { revision, records, count, more })
}

async fn swap(
    client: &mut KvClient<Channel>,
    names: &KeyNames,
    write: Write,
    expected: Revision,
) -> Result<CallOutcome, Status> {
    let key = names.key(write.key);
    let compare = Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.clone(),
        target_union: Some(TargetUnion::ModRevision(expected)),
        ..Default::default()
    };
    let txn = TxnRequest {
        compare: vec![compare],
        success: vec![op(Op::RequestPut(put(names, write)))],
        failure: vec![op(Op::RequestRange(RangeRequest { key, ..Default::default() }))],
    };
    let answer = client.txn(txn).await?.into_inner();
    let revision = revision(answer.header);
    if answer.succeeded {
        return Ok(CallOutcome::Written { revision, previous: None });
    }
    let records = answer.responses.iter().flat_map(|op| match &op.response {
        Some(Response::ResponseRange(range)) => range.kvs.as_slice(),
        _ => &[],
    });
    Ok(CallOutcome::Found { revision, records: records.map(|kv| names.record(kv)).collect() })
}

pub fn put(names: &KeyNames, write: Write) -> PutRequest {
    PutRequest {
        key: names.key(write.key),
        value: value(write.value),
        lease: write.lease,
        ..Default::default()
    }
}

pub fn op(request: Op) -> RequestOp {
    RequestOp { request: Some(request) }
}

pub fn revision(header: Option<ResponseHeader>) -> Revision {
    header.map_or(0, |header| header.revision)
}
