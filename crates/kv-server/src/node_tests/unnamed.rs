//! With authentication enabled, calls without a token do not append to the log.

use api::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthUserAddRequest, AuthUserGrantRoleRequest, CompactionRequest,
    DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, TxnRequest,
};
use api::v3electionpb::{CampaignRequest, LeaderKey, ProclaimRequest, ResignRequest};
use api::v3lockpb::{LockRequest, UnlockRequest};
use prost::Message;

use super::at_once::{Nothing, Way};
use super::*;

fn of(message: &impl Message) -> Vec<u8> {
    prefixed(&message.encode_to_vec())
}

#[test]
fn a_call_without_a_token_writes_no_entry() {
    let directory = tempfile::tempdir().unwrap();
    let alone = start(directory.path(), &[]);
    let inside = alone.runtimes.clients.enter();
    let mut connection = PolledConnection::open(&alone);
    let root = || "root".to_owned();
    let user = AuthUserAddRequest { name: root(), password: "p".to_owned(), ..Default::default() };
    let _: Nothing = connection.call("/etcdserverpb.Auth/UserAdd", b"", &user);
    let role = AuthRoleAddRequest { name: root() };
    let _: Nothing = connection.call("/etcdserverpb.Auth/RoleAdd", b"", &role);
    let granted = AuthUserGrantRoleRequest { user: root(), role: root() };
    let _: Nothing = connection.call("/etcdserverpb.Auth/UserGrantRole", b"", &granted);
    let _: Nothing = connection.call("/etcdserverpb.Auth/AuthEnable", b"", &AuthEnableRequest {});

    let key = || bytes::Bytes::from_static(b"k");
    let leader = || Some(LeaderKey { name: key(), key: key(), rev: 1, lease: 0 });
    let kv = "/etcdserverpb.KV";
    let (lease, election) = ("/etcdserverpb.Lease", "/v3electionpb.Election");
    let lock = "/v3lockpb.Lock";
    let put = PutRequest { key: key(), ..PutRequest::default() };
    let delete = DeleteRangeRequest { key: key(), ..DeleteRangeRequest::default() };
    let txn = TxnRequest {
        success: vec![api::etcdserverpb::RequestOp {
            request: Some(api::etcdserverpb::request_op::Request::RequestPut(put.clone())),
        }],
        ..TxnRequest::default()
    };
    for (path, body) in [
        (format!("{kv}/Put"), of(&put)),
        (format!("{kv}/DeleteRange"), of(&delete)),
        (format!("{kv}/Txn"), of(&txn)),
        (format!("{kv}/Compact"), of(&CompactionRequest { revision: 1, physical: false })),
        (format!("{lease}/LeaseGrant"), of(&LeaseGrantRequest { ttl: 9, id: 0 })),
        (format!("{lease}/LeaseRevoke"), of(&LeaseRevokeRequest { id: 1 })),
        (format!("{lock}/Lock"), of(&LockRequest { name: key(), lease: 0 })),
        (format!("{lock}/Lock"), of(&LockRequest { name: key(), lease: 7 })),
        (format!("{lock}/Unlock"), of(&UnlockRequest { key: key() })),
        (format!("{election}/Campaign"), of(&CampaignRequest { name: key(), ..Default::default() })),
        (format!("{election}/Proclaim"), of(&ProclaimRequest { leader: leader(), value: key() })),
        (format!("{election}/Resign"), of(&ResignRequest { leader: leader() })),
    ] {
        let before = alone.running.member.status().last_index;
        let answer = connection.exchange(Way::Whole, &head(&path, &[]), &body);
        assert!(answer.iter().all(|frame| frame.0 != DATA), "{path}: {answer:?}");
        assert_eq!(alone.running.member.status().last_index, before, "{path}");
    }
    drop((connection, inside));
    alone.stop();
}
