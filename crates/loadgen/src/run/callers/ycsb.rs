//! Callers of YCSB's operations, through tonic.
//!
//! Operations are distributed round-robin over the endpoints. All calls of a read-modify-write use the same
//! member.

use crate::client::admin::Channel;
use crate::client::failure::{CallFailure, Code};
use crate::run::callers::round_robin::RoundRobin;
use crate::run::callers::tasks::{AnsweredCall, CallerTask};
use crate::workload::ycsb::{Ycsb, YcsbStep};
use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::response_op::Response;
use api::etcdserverpb::{RangeRequest, RangeResponse};
use bytes::Bytes;

/// A caller. Its operations are sequential.
pub struct YcsbCaller {
    ycsb: Ycsb,
    members: RoundRobin,
}

impl YcsbCaller {
    pub fn new(ycsb: &Ycsb, members: RoundRobin) -> Self {
        Self { ycsb: ycsb.clone(), members }
    }
}

impl CallerTask for YcsbCaller {
    async fn call(&mut self, position: u64) -> Result<AnsweredCall, CallFailure> {
        let mut client = self.members.next_kv();
        match self.ycsb.step(position) {
            // The requested or first record exists.
            YcsbStep::Read(range) | YcsbStep::Scan(range) => {
                let answer = read(&mut client, range.clone()).await?;
                // A lagging member may lack the latest records.
                if answer.kvs.is_empty() && !range.serializable {
                    return Err(missing(&range));
                }
                Ok(AnsweredCall::of(&answer, 0))
            }
            YcsbStep::Update(put) => {
                let answer = client.put(put).await?;
                Ok(AnsweredCall::of(answer.get_ref(), 0))
            }
            YcsbStep::Insert(put, number) => {
                let insert = Insert { ycsb: &self.ycsb, number, acknowledged: false };
                let answer = client.put(put).await?;
                insert.acknowledged();
                Ok(AnsweredCall::of(answer.get_ref(), 0))
            }
            YcsbStep::ReadModifyWrite(range, value) => swap(&mut client, range, value).await,
        }
    }

    fn endpoint(&self) -> usize {
        self.members.upcoming()
    }

    fn kind(&self, position: u64) -> usize {
        self.ycsb.operation(position) as usize
    }
}

/// An insert in flight. Counts as failed unless it is acknowledged, even if its call is dropped.
struct Insert<'a> {
    ycsb: &'a Ycsb,
    number: u64,
    acknowledged: bool,
}

impl Insert<'_> {
    fn acknowledged(mut self) {
        self.acknowledged = true;
    }
}

impl Drop for Insert<'_> {
    fn drop(&mut self) {
        self.ycsb.inserted(self.number, self.acknowledged);
    }
}

/// Reads a record and writes its value, and retries on conflicts.
async fn swap(
    client: &mut KvClient<Channel>,
    range: RangeRequest,
    value: Bytes,
) -> Result<AnsweredCall, CallFailure> {
    let mut found = read(client, range.clone()).await?;
    let mut retries = 0;
    loop {
        let revision = found.kvs.first().ok_or_else(|| missing(&range))?.mod_revision;
        let answer = client.txn(Ycsb::swap(&range, revision, &value)).await?.into_inner();
        if answer.succeeded {
            return Ok(AnsweredCall::of(&answer, retries));
        }
        retries += 1;
        found = match answer.responses.into_iter().next().and_then(|op| op.response) {
            Some(Response::ResponseRange(range)) => range,
            _ => return Err(CallFailure::protocol("a transaction answers a range with something else")),
        };
    }
}

async fn read(client: &mut KvClient<Channel>, range: RangeRequest) -> Result<RangeResponse, CallFailure> {
    client.range(range).await.map(tonic::Response::into_inner).map_err(CallFailure::from)
}

fn missing(range: &RangeRequest) -> CallFailure {
    CallFailure::new(Code::NOT_FOUND, format!("no record {:?}", range.key))
}
