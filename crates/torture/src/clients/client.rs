//! The calls that experiments make. They are few compared with a load generator's, so tonic suffices.

use std::time::Duration;

use api::etcdserverpb::kv_client::KvClient;
use api::etcdserverpb::maintenance_client::MaintenanceClient;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, HashKvRequest, PutRequest, RangeRequest, RequestOp,
    ResponseHeader, TxnRequest,
};
use api::mvccpb::KeyValue;
use bytes::Bytes;
use client::{Channel, Client};

use super::claim::{Effect, KeyState, MemberKeys};
use crate::failure::{Attempt, ExperimentError, Result};

/// First byte of each key of a filling, and of no other key.
pub(super) const FILLING: u8 = b'~';
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// Connects to the member at `port`; calls time out after `timeout`.
pub async fn connect(port: u16, timeout: Duration) -> Result<Client> {
    let dialled = Client::connect(format!("http://127.0.0.1:{port}"), timeout).await;
    dialled.or_say(&format!("dial port {port}"))
}

#[derive(Clone)]
pub struct MemberClient {
    kv: KvClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
}

impl MemberClient {
    /// Connects to the member at `port`; calls time out after `timeout`.
    pub async fn connect(port: u16, timeout: Duration) -> Result<MemberClient> {
        let client = connect(port, timeout).await?;
        Ok(MemberClient {
            kv: client.kv().max_decoding_message_size(MESSAGE_BYTES_MAX),
            maintenance: client.maintenance(),
        })
    }

    /// Makes the change and returns its revision.
    pub async fn make(&mut self, effect: &Effect) -> Result<i64> {
        match effect {
            Effect::Put { key, value } => {
                let answer = self.kv.put(put(key, value)).await.or_say("put")?.into_inner();
                header_revision(answer.header)
            }
            Effect::Delete { key } => {
                let request = DeleteRangeRequest { key: key.clone(), ..DeleteRangeRequest::default() };
                let answer = self.kv.delete_range(request).await.or_say("delete")?.into_inner();
                header_revision(answer.header)
            }
            Effect::Txn { puts } => {
                let op = |(key, value): &(Bytes, Bytes)| RequestOp {
                    request: Some(Request::RequestPut(put(key, value))),
                };
                let request = TxnRequest { success: puts.iter().map(op).collect(), ..TxnRequest::default() };
                let answer = self.kv.txn(request).await.or_say("txn")?.into_inner();
                header_revision(answer.header)
            }
        }
    }

    pub async fn compact(&mut self, revision: i64) -> Result<()> {
        let request = CompactionRequest { revision, physical: false };
        self.kv.compact(request).await.or_say("compact").map(drop)
    }

    /// Reads all keys except a filling's at the current revision: linearizable.
    pub async fn everything(&mut self) -> Result<MemberKeys> {
        self.read_all(0, false).await
    }

    /// Reads all keys except a filling's at a revision that this member has applied: serializable.
    pub async fn applied(&mut self, revision: i64) -> Result<MemberKeys> {
        self.read_all(revision, true).await
    }

    async fn read_all(&mut self, revision: i64, serializable: bool) -> Result<MemberKeys> {
        let request = RangeRequest {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(&[FILLING]),
            revision,
            serializable,
            ..RangeRequest::default()
        };
        let answer = self.kv.range(request).await.or_say("read everything")?.into_inner();
        let keys = answer.kvs.into_iter().map(|pair| (pair.key.clone(), found(pair)));
        Ok(MemberKeys { revision: header_revision(answer.header)?, keys: keys.collect() })
    }

    /// Counts the keys of a filling: linearizable.
    pub async fn count_of_filling(&mut self) -> Result<u64> {
        let request = RangeRequest {
            key: Bytes::from_static(&[FILLING]),
            range_end: Bytes::from_static(&[FILLING + 1]),
            count_only: true,
            ..RangeRequest::default()
        };
        let answer = self.kv.range(request).await.or_say("count")?.into_inner();
        u64::try_from(answer.count).or_say("count")
    }

    /// Reads the current state of a key: linearizable.
    pub async fn now(&mut self, key: &Bytes) -> Result<Option<KeyState>> {
        self.at(key, 0).await.map_err(|failure| {
            failure.unwrap_or_else(|| ExperimentError::new("a read of the present was compacted"))
        })
    }

    /// Reads a key at a revision. `Err(None)`: the revision was compacted.
    pub async fn at(
        &mut self,
        key: &Bytes,
        revision: i64,
    ) -> std::result::Result<Option<KeyState>, Option<ExperimentError>> {
        let request = RangeRequest { key: key.clone(), revision, ..RangeRequest::default() };
        match self.kv.range(request).await {
            Ok(answer) => Ok(answer.into_inner().kvs.pop().map(found)),
            Err(status) if status.message().contains("compacted") => Err(None),
            Err(status) => {
                Err(Some(ExperimentError::new(format!("read at revision {revision}: {}", status.message()))))
            }
        }
    }

    /// Returns the hash of the remaining history with its compact revision and hash revision.
    pub async fn hash(&mut self, revision: i64) -> Result<(u32, i64, i64)> {
        let answer = self.maintenance.hash_kv(HashKvRequest { revision }).await.or_say("hash")?.into_inner();
        Ok((answer.hash, answer.compact_revision, answer.hash_revision))
    }
}

fn put(key: &Bytes, value: &Bytes) -> PutRequest {
    PutRequest { key: key.clone(), value: value.clone(), ..PutRequest::default() }
}

fn found(pair: KeyValue) -> KeyState {
    let KeyValue { value, create_revision: created, mod_revision: modified, version, .. } = pair;
    KeyState { value, created, modified, version }
}

fn header_revision(header: Option<ResponseHeader>) -> Result<i64> {
    header.map(|header| header.revision).ok_or_else(|| ExperimentError::new("a response without a header"))
}
