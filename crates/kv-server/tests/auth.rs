//! Users and permissions over real processes: every method with every kind of token.

use crate::common;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use api::Method;
use api::authpb::Permission;
use api::etcdserverpb::auth_client::AuthClient;
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::*;
use api::v3electionpb::{CampaignRequest, LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest};
use api::v3lockpb::{LockRequest, UnlockRequest};
use base64::Engine;
use bytes::{Buf, BufMut, Bytes};
use client::{Channel, Client};
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status, Streaming};

use crate::common::{Cluster, Member, PATIENCE, get, http, put};

/// Messages as bytes, so that one function calls every method.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

fn with_token<T>(message: T, field: &'static str, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        request.metadata_mut().insert(field, token.parse().unwrap());
    }
    request
}

/// Calls any method with one message, and returns the first of the answer; none if the call ends before.
async fn call(client: &Client, method: Method, token: &str, message: &[u8]) -> Result<Option<Bytes>, Status> {
    let mut grpc = tonic::client::Grpc::new(client.channel());
    grpc.ready().await.unwrap();
    // A stream of requests stays open, so that its end ends no call.
    let messages =
        tokio_stream::StreamExt::chain(tokio_stream::once(message.to_vec()), tokio_stream::pending());
    let path = http::uri::PathAndQuery::from_static(method.path());
    let mut answers = match method.kind() {
        api::CallKind::BidiStream => grpc.streaming(with_token(messages, "token", token), path, Raw).await?,
        _ => grpc.server_streaming(with_token(message.to_vec(), "token", token), path, Raw).await?,
    }
    .into_inner();
    let answer = tokio::time::timeout(PATIENCE, answers.message()).await;
    answer.unwrap_or_else(|_| panic!("{method:?} does not answer"))
}

/// A member where auth is on, with users and their tokens.
struct Guarded {
    cluster: Cluster,
    tokens: Vec<(&'static str, String)>,
}

const PASSWORD: &str = "pa55w0rd-of-";

async fn users(member: &Member) -> AuthClient<Channel> {
    member.client().await.auth()
}

async fn login(member: &Member, user: &str) -> String {
    let request = AuthenticateRequest { name: user.to_owned(), password: format!("{PASSWORD}{user}") };
    users(member).await.authenticate(request).await.unwrap().into_inner().token
}

/// `u` has READWRITE of [b, d), `r` READ and `w` WRITE of it, `o` READWRITE of [x, y), `n` no role.
async fn guarded(members: usize) -> Guarded {
    guarded_with(members, &[]).await
}

async fn guarded_with(members: usize, flags: &[&str]) -> Guarded {
    let cluster = Cluster::started_with(members, &[&["--bcrypt-cost=4"], flags].concat());
    let member = &cluster.members[0];
    let mut client = users(member).await;
    for user in ["root", "u", "r", "w", "o", "n"] {
        let (name, password) = (user.to_owned(), format!("{PASSWORD}{user}"));
        client.user_add(AuthUserAddRequest { name, password, ..Default::default() }).await.unwrap();
    }
    for (role, perm_type, key, range_end) in
        [("u", 2, "b", "d"), ("r", 0, "b", "d"), ("w", 1, "b", "d"), ("o", 2, "x", "y")]
    {
        client.role_add(AuthRoleAddRequest { name: role.to_owned() }).await.unwrap();
        let perm = Permission { perm_type, key: key.into(), range_end: range_end.into() };
        let request = AuthRoleGrantPermissionRequest { name: role.to_owned(), perm: Some(perm) };
        client.role_grant_permission(request).await.unwrap();
    }
    for user in ["root", "u", "r", "w", "o"] {
        let request = AuthUserGrantRoleRequest { user: user.to_owned(), role: user.to_owned() };
        client.user_grant_role(request).await.unwrap();
    }
    client.auth_enable(AuthEnableRequest {}).await.unwrap();
    let mut tokens = vec![("none", String::new()), ("garbage", "garbage.1".to_owned())];
    for user in ["n", "r", "w", "o", "u", "root"] {
        tokens.push((user, login(member, user).await));
    }
    Guarded { cluster, tokens }
}

impl Guarded {
    fn token(&self, of: &str) -> &str {
        &self.tokens.iter().find(|(name, _)| *name == of).unwrap().1
    }
}

fn op(op: Op) -> RequestOp {
    RequestOp { request: Some(op) }
}

fn bytes(text: &str) -> Bytes {
    text.to_owned().into()
}

/// A transaction at the third level.
fn nested(leaf: Op) -> Vec<u8> {
    let inner = TxnRequest { failure: vec![op(leaf)], ..Default::default() };
    let middle = TxnRequest { success: vec![op(Op::RequestTxn(inner))], ..Default::default() };
    TxnRequest { failure: vec![op(Op::RequestTxn(middle))], ..Default::default() }.encode_to_vec()
}

/// A method, a request, and the users who may make it; root always may, `*` means any caller, with or without
/// a token.
type Case = (Method, Vec<u8>, &'static str);

fn key_cases() -> Vec<Case> {
    use Method::*;
    let write = PutRequest { prev_kv: true, ..put("c", "1") };
    let delete = |prev_kv| DeleteRangeRequest { key: bytes("c"), range_end: bytes("cz"), prev_kv };
    let range = |end: &str| RangeRequest { key: bytes("b"), range_end: bytes(end), ..Default::default() };
    let compare = |key: &str| TxnRequest {
        compare: vec![Compare { key: bytes(key), ..Default::default() }],
        ..Default::default()
    };
    let watch = |key: &str, end: &str| {
        let create = WatchCreateRequest { key: bytes(key), range_end: bytes(end), ..Default::default() };
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }.encode_to_vec()
    };
    let attach = |key, lease| PutRequest { lease, ..put(key, "1") };
    vec![
        (KvPut, put("c", "1").encode_to_vec(), "w u"),
        (KvPut, write.encode_to_vec(), "u"),
        (KvPut, put("a", "1").encode_to_vec(), ""),
        // A key of root's is attached to lease 99.
        (KvPut, attach("c", 99).encode_to_vec(), ""),
        (KvRange, get("b").encode_to_vec(), "r u"),
        (KvRange, RangeRequest { serializable: true, ..get("b") }.encode_to_vec(), "r u"),
        (KvRange, range("d").encode_to_vec(), "r u"),
        (KvRange, range("e").encode_to_vec(), ""),
        (KvRange, range("\0").encode_to_vec(), ""),
        (KvRangeStream, range("d").encode_to_vec(), "r u"),
        (KvRangeStream, range("\0").encode_to_vec(), ""),
        (KvDeleteRange, delete(false).encode_to_vec(), "w u"),
        (KvDeleteRange, delete(true).encode_to_vec(), "u"),
        (KvTxn, compare("b").encode_to_vec(), "r u"),
        (KvTxn, compare("a").encode_to_vec(), ""),
        (KvTxn, nested(Op::RequestRange(get("b"))), "r u"),
        (KvTxn, nested(Op::RequestRange(get("z"))), ""),
        (KvTxn, nested(Op::RequestPut(put("c", "1"))), "w u"),
        (KvTxn, nested(Op::RequestPut(write)), "u"),
        (KvTxn, nested(Op::RequestPut(attach("c", 99))), ""),
        (KvTxn, nested(Op::RequestDeleteRange(delete(true))), "u"),
        (Watch, watch("b", "d"), "r u"),
        (Watch, watch("b", "\0"), ""),
        (Watch, watch("", "\0"), ""),
        (KvCompact, CompactionRequest { revision: 1, physical: false }.encode_to_vec(), ""),
        (LeaseGrant, LeaseGrantRequest { id: 0, ttl: 60 }.encode_to_vec(), "n r w o u"),
        (LeaseKeepAlive, LeaseKeepAliveRequest { id: 70 }.encode_to_vec(), "w u"),
        (LeaseKeepAlive, LeaseKeepAliveRequest { id: 99 }.encode_to_vec(), ""),
        (LeaseTimeToLive, LeaseTimeToLiveRequest { id: 70, keys: false }.encode_to_vec(), "n r w o u"),
        (LeaseTimeToLive, LeaseTimeToLiveRequest { id: 70, keys: true }.encode_to_vec(), "r u"),
        (LeaseTimeToLive, LeaseTimeToLiveRequest { id: 99, keys: true }.encode_to_vec(), ""),
        (LeaseLeases, LeaseLeasesRequest {}.encode_to_vec(), ""),
        (LeaseRevoke, LeaseRevokeRequest { id: 71 }.encode_to_vec(), "w u"),
        (LeaseRevoke, LeaseRevokeRequest { id: 99 }.encode_to_vec(), ""),
    ]
}

/// `who` makes names that no two callers share: a lock that one has would make the other wait.
fn concurrency_cases(who: &str) -> Vec<Case> {
    use Method::*;
    let leader = LeaderKey { name: bytes("bobs"), key: bytes("bobs/0"), ..Default::default() };
    let [lock, election] = ["b", "c"].map(|key| bytes(&format!("{key}-{who}")));
    vec![
        (Lock, LockRequest { name: lock, lease: 0 }.encode_to_vec(), "u"),
        (LockUnlock, UnlockRequest { key: bytes("b-x/1") }.encode_to_vec(), "w u"),
        (ElectionCampaign, CampaignRequest { name: election, ..Default::default() }.encode_to_vec(), "u"),
        (
            ElectionProclaim,
            ProclaimRequest { leader: Some(leader.clone()), ..Default::default() }.encode_to_vec(),
            "u",
        ),
        (ElectionLeader, LeaderRequest { name: bytes("bobs") }.encode_to_vec(), "r u"),
        (ElectionObserve, LeaderRequest { name: bytes("bobs") }.encode_to_vec(), "r u"),
        (ElectionResign, ResignRequest { leader: Some(leader) }.encode_to_vec(), "u"),
    ]
}

fn member_cases() -> Vec<Case> {
    use Method::*;
    let alarm = |action| AlarmRequest { action, member_id: 7, alarm: 1 }.encode_to_vec();
    vec![
        (ClusterMemberAdd, Vec::new(), ""),
        (ClusterMemberRemove, Vec::new(), ""),
        (ClusterMemberUpdate, Vec::new(), ""),
        (ClusterMemberPromote, Vec::new(), ""),
        (ClusterMemberList, Vec::new(), "n r w o u"),
        (MaintenanceStatus, Vec::new(), "n r w o u"),
        (MaintenanceAlarm, alarm(0), "n r w o u"),
        (MaintenanceAlarm, alarm(1), ""),
        (MaintenanceAlarm, alarm(2), ""),
        (MaintenanceDefragment, Vec::new(), ""),
        (MaintenanceHash, Vec::new(), ""),
        (MaintenanceHashKV, Vec::new(), ""),
        (MaintenanceSnapshot, Vec::new(), ""),
        (MaintenanceMoveLeader, MoveLeaderRequest { target_id: 1 }.encode_to_vec(), ""),
        (MaintenanceDowngrade, Vec::new(), ""),
        (RepairReseed, Vec::new(), ""),
        (HealthCheck, Vec::new(), "*"),
        (HealthList, Vec::new(), "*"),
        (HealthWatch, Vec::new(), "*"),
    ]
}

fn auth_cases() -> Vec<Case> {
    use Method::*;
    let name = |name: &str| AuthUserGetRequest { name: name.to_owned() }.encode_to_vec();
    let role =
        |user: &str| AuthUserGrantRoleRequest { user: user.to_owned(), role: "r".to_owned() }.encode_to_vec();
    vec![
        (AuthStatus, Vec::new(), "none n r w o u"),
        (Authenticate, AuthenticateRequest { name: "u".into(), password: "x".into() }.encode_to_vec(), "*"),
        (AuthEnable, Vec::new(), ""),
        (AuthUserAdd, name("u"), ""),
        (AuthUserGet, name("u"), "u"),
        (AuthUserGet, name("absent"), ""),
        (AuthUserList, Vec::new(), ""),
        (AuthUserDelete, name("absent"), ""),
        (AuthUserChangePassword, name("absent"), ""),
        (AuthUserGrantRole, role("absent"), ""),
        (AuthUserRevokeRole, role("absent"), ""),
        (AuthRoleAdd, name("r"), ""),
        (AuthRoleGet, name("r"), "r"),
        (AuthRoleGet, name("nothing"), ""),
        (AuthRoleList, Vec::new(), ""),
        (AuthRoleDelete, name("nothing"), ""),
        (AuthRoleGrantPermission, name("r"), ""),
        (AuthRoleRevokePermission, role("nothing"), ""),
        // The last one: root disables auth.
        (AuthDisable, Vec::new(), ""),
    ]
}

/// Why a call is refused because of who makes it, in etcd's words; `None` if it is not.
fn denial(method: Method, answer: &Result<Option<Bytes>, Status>) -> Option<String> {
    const DENIALS: [&str; 3] =
        ["etcdserver: user name is empty", "etcdserver: invalid auth token", "etcdserver: permission denied"];
    let text = match answer {
        Err(status) => status.message().to_owned(),
        // Observe has no way to say why there is no leader.
        Ok(None) => return Some("ended".to_owned()),
        Ok(Some(message)) if method == Method::Watch => {
            WatchResponse::decode(message.clone()).unwrap().cancel_reason
        }
        Ok(Some(_)) => return None,
    };
    DENIALS.iter().find(|denial| text.ends_with(**denial)).map(|denial| (*denial).to_owned())
}

#[tokio::test]
async fn each_method_serves_those_who_may_call_it_and_refuses_all_others() {
    let guarded = guarded(1).await;
    let member = &guarded.cluster.members[0];
    let (client, root) = (member.client().await, guarded.token("root").to_owned());
    let attach = async |id, key| {
        let grant = LeaseGrantRequest { id, ttl: 600 }.encode_to_vec();
        drop(call(&client, Method::LeaseGrant, &root, &grant).await); // It may be there already.
        let attach = PutRequest { lease: id, ..put(key, "1") }.encode_to_vec();
        call(&client, Method::KvPut, &root, &attach).await.unwrap();
    };
    attach(70, "b1").await;
    attach(99, "z").await;
    let campaign = CampaignRequest { name: bytes("bobs"), ..Default::default() }.encode_to_vec();
    call(&client, Method::ElectionCampaign, &root, &campaign).await.unwrap();
    let mut called = BTreeSet::new();
    for (who, token) in &guarded.tokens {
        attach(71, "b2").await; // The last one may have revoked it.
        let cases = [key_cases(), concurrency_cases(who), member_cases(), auth_cases()].concat();
        for (method, message, allowed) in cases {
            called.insert(method.number());
            let answer = call(&client, method, token, &message).await;
            let denial = denial(method, &answer);
            let is_allowed = *who == "root" || allowed == "*" || allowed.split(' ').any(|name| name == *who);
            let shown = format!("{who}: {method:?} {:?}: {answer:?}", message.escape_ascii().to_string());
            match (denial.as_deref(), *who) {
                (None, _) => assert!(is_allowed, "{shown}"),
                (Some("ended"), _) => assert!(!is_allowed && method == Method::ElectionObserve, "{shown}"),
                (Some(text), "none") => assert_eq!(text, "etcdserver: user name is empty", "{shown}"),
                (Some(text), "garbage") => assert_eq!(text, "etcdserver: invalid auth token", "{shown}"),
                (Some(text), _) => assert_eq!(text, "etcdserver: permission denied", "{shown}"),
            }
            assert!(denial.is_none() || !is_allowed, "{shown}");
        }
    }
    let missing: Vec<_> = Method::ALL.iter().filter(|method| !called.contains(&method.number())).collect();
    assert!(missing.is_empty(), "no case calls {missing:?}");
}

/// A stream with a token of no user is canceled as by etcd, and ends. It does not have to send a request.
#[tokio::test]
async fn a_watch_with_a_bad_token_ends() {
    let guarded = guarded(1).await;
    let client = guarded.cluster.members[0].client().await;
    let create = WatchCreateRequest { key: "b".into(), ..WatchCreateRequest::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    for (token, messages) in
        [("x".repeat(50_000), vec![]), ("garbage.1".to_owned(), vec![create.encode_to_vec()])]
    {
        let (is_silent, mut ended) = (messages.is_empty(), None);
        let messages = tokio_stream::StreamExt::chain(tokio_stream::iter(messages), tokio_stream::pending());
        let mut grpc = tonic::client::Grpc::new(client.channel());
        grpc.ready().await.unwrap();
        let path = http::uri::PathAndQuery::from_static(Method::Watch.path());
        let reading = async {
            let answers = grpc.streaming(with_token(messages, "token", &token), path, Raw).await;
            let mut read = Vec::new();
            match answers {
                Err(status) => ended = Some(status),
                Ok(answers) => {
                    let mut answers = answers.into_inner();
                    while ended.is_none() {
                        match answers.message().await {
                            Ok(message) => read.push(message.expect("a status")),
                            Err(status) => ended = Some(status),
                        }
                    }
                }
            }
            read
        };
        let read = tokio::time::timeout(PATIENCE, reading).await.expect("an end");
        assert_eq!(ended.map(|status| status.code()), Some(Code::Unauthenticated));
        let canceled: Vec<bool> =
            read.into_iter().map(|message| WatchResponse::decode(message).unwrap().canceled).collect();
        assert_eq!(canceled, vec![true; usize::from(!is_silent)]);
    }
}

/// Each grant is an entry of the log.
#[tokio::test]
async fn a_lock_or_election_that_is_denied_grants_no_lease() {
    use Method::*;
    let guarded = guarded(1).await;
    let client = guarded.cluster.members[0].client().await;
    let leases = async || {
        let listed = call(&client, LeaseLeases, guarded.token("root"), &[]).await.unwrap().unwrap();
        LeaseLeasesResponse::decode(listed).unwrap().leases.len()
    };
    let leader = LeaderKey { name: bytes("bobs"), key: bytes("bobs/0"), ..Default::default() };
    let calls = [
        (Lock, LockRequest { name: bytes("b"), lease: 0 }.encode_to_vec()),
        (ElectionCampaign, CampaignRequest { name: bytes("b"), ..Default::default() }.encode_to_vec()),
        (ElectionProclaim, ProclaimRequest { leader: Some(leader), ..Default::default() }.encode_to_vec()),
    ];
    for who in ["n", "r", "w", "o"] {
        for (method, message) in &calls {
            let denied = call(&client, *method, guarded.token(who), message).await.unwrap_err();
            assert!(denied.message().ends_with("permission denied"), "{who}: {method:?}: {denied}");
            assert_eq!(leases().await, 0, "{who}: {method:?}");
        }
    }
    call(&client, Lock, guarded.token("u"), &calls[0].1).await.unwrap();
    assert_eq!(leases().await, 1);
}

async fn read(member: &Member, field: &'static str, token: &str, key: &str) -> Result<(), String> {
    let answer = member.kv().await.range(with_token(get(key), field, token)).await;
    answer.map(drop).map_err(|status| status.message().to_owned())
}

#[tokio::test]
async fn tokens_and_changes_count_on_every_member_and_no_secret_is_written() {
    let mut guarded = guarded(3).await;
    let (token, root) = (guarded.token("u").to_owned(), guarded.token("root").to_owned());
    let denied = Err("etcdserver: permission denied".to_owned());
    let invalid = Err("etcdserver: invalid auth token".to_owned());
    for member in &guarded.cluster.members {
        assert_eq!(read(member, "token", &token, "b").await, Ok(()));
        assert_eq!(read(member, "authorization", &format!("Bearer {token}"), "b").await, Ok(()));
        assert_eq!(read(member, "authorization", &token, "z").await, denied);
    }
    let revoke = AuthRoleRevokePermissionRequest { role: "u".into(), key: bytes("b"), range_end: bytes("d") };
    let mut first = users(&guarded.cluster.members[0]).await;
    first.role_revoke_permission(with_token(revoke, "token", &root)).await.unwrap();
    for member in &guarded.cluster.members {
        assert_eq!(read(member, "token", &token, "b").await, denied, "a change counts for the next request");
    }
    let other = AuthUserChangePasswordRequest {
        name: "u".into(),
        password: "n3w-s3cret".into(),
        ..Default::default()
    };
    first.user_change_password(with_token(other, "token", &root)).await.unwrap();
    for member in &guarded.cluster.members {
        assert_eq!(read(member, "token", &token, "b").await, invalid, "a new password ends tokens");
    }
    // A member that was restarted knows the users, and no token.
    guarded.cluster.members[2].kill();
    guarded.cluster.members[2].launch();
    guarded.cluster.members[2].wait_ready();
    let restarted = &guarded.cluster.members[2];
    assert_eq!(read(restarted, "token", &root, "b").await, invalid);
    let again = login(restarted, "root").await;
    for member in &guarded.cluster.members {
        assert_eq!(read(member, "token", &again, "b").await, Ok(()));
    }
    // Without their index: each entry of the log has another one.
    let [token, root, again] = [&token, &root, &again].map(|token| token.split_once('.').unwrap().0);
    let secrets = [PASSWORD, "n3w-s3cret", token, root, again];
    for member in &guarded.cluster.members {
        // Nor is an image of the memory, which has what requests had.
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", member.running().pid())).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
        let mut written = vec![(member.name.clone(), member.running().said().into_bytes())];
        for (path, _) in common::modes(&member.data_dir) {
            if path.is_file() {
                written.push((path.display().to_string(), std::fs::read(&path).unwrap()));
            }
        }
        for (place, content) in written {
            for secret in secrets {
                let found = content.windows(secret.len()).any(|window| window == secret.as_bytes());
                assert!(!found, "{place} holds {secret}");
            }
        }
    }
}

/// The quota is reached by any put. Only a caller who may write is answered so, and only then is there an
/// alarm.
#[tokio::test]
async fn who_may_not_write_takes_no_room_and_raises_no_alarm() {
    let guarded = guarded_with(1, &["--quota-backend-bytes=1"]).await;
    let (member, root) = (&guarded.cluster.members[0], guarded.token("root").to_owned());
    let client = member.client().await;
    let alarms = async || {
        let list = AlarmRequest { action: 0, member_id: 0, alarm: 0 }.encode_to_vec();
        let answer = call(&client, Method::MaintenanceAlarm, &root, &list).await.unwrap().unwrap();
        AlarmResponse::decode(answer).unwrap().alarms.len()
    };
    let txn = |keys: u8| {
        let puts = (0..keys).map(|key| op(Op::RequestPut(put(&format!("c{key}"), "1"))));
        TxnRequest { success: puts.collect(), ..Default::default() }.encode_to_vec()
    };
    let reading = |request: PutRequest| PutRequest { prev_kv: true, ..request }.encode_to_vec();
    let (name, denied) = ("etcdserver: user name is empty", "etcdserver: permission denied");
    let (full, empty) = ("etcdserver: mvcc: database space exceeded", "etcdserver: key is not provided");
    let cases = [
        (Method::KvPut, "none", put("c", "1").encode_to_vec(), name, 0),
        (Method::KvPut, "none", put("", "1").encode_to_vec(), empty, 0),
        (Method::KvPut, "garbage", put("c", "1").encode_to_vec(), "etcdserver: invalid auth token", 0),
        (Method::KvPut, "n", put("c", "1").encode_to_vec(), denied, 0),
        (Method::KvPut, "w", reading(put("c", "1")), denied, 0),
        (Method::KvTxn, "none", txn(1), name, 0),
        (Method::KvTxn, "none", txn(200), "etcdserver: too many operations in txn request", 0),
        (Method::KvTxn, "root", txn(200), "etcdserver: too many operations in txn request", 0),
        (Method::KvTxn, "r", txn(1), denied, 0),
        (Method::KvTxn, "u", txn(1), full, 1),
        (Method::KvPut, "n", put("c", "1").encode_to_vec(), denied, 1),
        (Method::KvPut, "u", put("c", "1").encode_to_vec(), full, 1),
    ];
    for (method, who, message, refusal, raised) in cases {
        let answer = call(&client, method, guarded.token(who), &message).await;
        assert_eq!(answer.unwrap_err().message(), refusal, "{who}: {method:?}");
        assert_eq!(alarms().await, raised, "{who}: {method:?}");
    }
}

/// A thousand requests may wait for a hash. They are not to hold names of 2 MiB meanwhile.
#[tokio::test]
async fn a_name_that_no_user_can_have_does_not_wait_for_a_hash() {
    // A hash takes longer than this test.
    let cluster = Cluster::started_with(1, &["--bcrypt-cost=24"]);
    let mut users = users(&cluster.members[0]).await;
    let (name, password) = ("n".repeat(247), "p".to_owned());
    let add = AuthUserAddRequest { name: name.clone(), password: password.clone(), ..Default::default() };
    let refused = users.user_add(add).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: request is too large");
    let change = AuthUserChangePasswordRequest { name, password, ..Default::default() };
    let refused = users.user_change_password(change).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: user name not found");
}

#[tokio::test]
async fn a_hashed_password_that_takes_too_long_to_verify_is_refused() {
    let guarded = guarded(1).await;
    let member = &guarded.cluster.members[0];
    let rest = "N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy";
    for (prefix, refusal) in [
        ("$2a$31$", Some("kv-server: the bcrypt cost of a hashed password is 20 at most")),
        ("$2a$20$", None),
    ] {
        let hash = format!("{prefix}{rest}");
        let request = AuthUserChangePasswordRequest {
            name: "n".to_owned(),
            hashed_password: base64::engine::general_purpose::STANDARD.encode(hash),
            ..Default::default()
        };
        let request = with_token(request, "token", guarded.token("root"));
        let answer = users(member).await.user_change_password(request).await;
        assert_eq!(answer.as_ref().err().map(Status::message), refusal, "{prefix}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_token_counts_on_every_member_until_permissions_change() {
    let key = |name: &str| format!("{}/../auth/src/jwt/tests/{name}", env!("CARGO_MANIFEST_DIR"));
    let flag = |key: String| format!("--auth-token=jwt,sign-method=ES256,ttl=1h,{key}");
    let signs = flag(format!("priv-key={}", key("ec256.pem")));
    let mut guarded = guarded_with(3, &[&signs]).await;
    let verifies = flag(format!("pub-key={}", key("ec256-pub.pem")));
    for (at, own) in [(0, &signs), (2, &verifies)] {
        let member = &mut guarded.cluster.members[at];
        member.kill();
        *member.extra.last_mut().unwrap() = own.clone();
        member.launch();
        member.wait_ready();
    }
    let members = &guarded.cluster.members;
    let put = put("b", "1").encode_to_vec();
    let get = get("b").encode_to_vec();
    for member in members {
        let client = member.client().await;
        for (method, message) in [(Method::KvPut, &put), (Method::KvRange, &get)] {
            call(&client, method, guarded.token("u"), message).await.unwrap();
            let denied = call(&client, method, guarded.token("o"), message).await.unwrap_err();
            assert_eq!(denied.message(), "etcdserver: permission denied");
        }
    }
    let request = AuthenticateRequest { name: "u".to_owned(), password: format!("{PASSWORD}u") };
    let refused = users(&members[2]).await.authenticate(request).await.unwrap_err();
    assert_eq!(refused.message(), "auth: token signing attempted with verify-only key");

    let add = AuthRoleAddRequest { name: "later".to_owned() };
    let request = with_token(add, "authorization", &format!("Bearer {}", guarded.token("root")));
    users(&members[1]).await.role_add(request).await.unwrap();
    for member in members {
        let client = member.client().await;
        // Waits until the change is applied here. Calls of root ask for no revision.
        let list = AuthRoleListRequest {}.encode_to_vec();
        call(&client, Method::AuthRoleList, guarded.token("root"), &list).await.unwrap();
        for (method, message) in [(Method::KvPut, &put), (Method::KvRange, &get)] {
            let old = call(&client, method, guarded.token("u"), message).await.unwrap_err();
            assert_eq!(old.message(), "etcdserver: revision of auth store is old", "{method:?}");
            let new = login(&members[1], "u").await;
            call(&client, method, &new, message).await.unwrap();
        }
    }
}

/// A stream of a user that watches ranges, after their watchers were made: the first has the id 1.
async fn watches(member: &Member, token: &str, ranges: &[(&str, &str)]) -> Streaming<WatchResponse> {
    let creates: Vec<WatchRequest> = (1..)
        .zip(ranges)
        .map(|(watch_id, (key, end))| {
            let create =
                WatchCreateRequest { key: bytes(key), range_end: bytes(end), watch_id, ..Default::default() };
            WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
        })
        .collect();
    let requests = tokio_stream::StreamExt::chain(tokio_stream::iter(creates), tokio_stream::pending());
    let request = with_token(requests, "token", token);
    let mut client = member.client().await.watch();
    let mut answers = client.watch(request).await.unwrap().into_inner();
    for _ in ranges {
        let created = next(&mut answers).await;
        assert!(created.created && !created.canceled, "{created:?}");
    }
    answers
}

async fn next(answers: &mut Streaming<WatchResponse>) -> WatchResponse {
    tokio::time::timeout(PATIENCE, answers.message()).await.expect("a response").unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_of_a_client_that_does_not_read_are_canceled_as_well() {
    let guarded = guarded_with(1, &["--auth-recheck-watchers"]).await;
    let member = &guarded.cluster.members[0];
    let watchers = || -> usize {
        let text = http(member.client_port, "GET /metrics");
        let line = text.lines().find_map(|line| line.strip_prefix("etcd_debugging_mvcc_watcher_total "));
        line.expect("a gauge").parse().unwrap()
    };
    let wait_for = async |is_reached: &dyn Fn(usize) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !is_reached(watchers()) {
            assert!(Instant::now() < deadline, "{} watchers", watchers());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // More than the answers that a client need not have read.
    let create = |_| {
        let create = WatchCreateRequest { key: bytes("c"), ..Default::default() };
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
    };
    let creates = tokio_stream::iter((0..8000).map(create));
    let requests = tokio_stream::StreamExt::chain(creates, tokio_stream::pending());
    let mut client = member.client().await.watch();
    let _unread = client.watch(with_token(requests, "token", guarded.token("u"))).await.unwrap();
    wait_for(&|watchers| watchers >= 2000).await;
    let (role, key, range_end) = ("u".to_owned(), bytes("b"), bytes("d"));
    let revoke = AuthRoleRevokePermissionRequest { role, key, range_end };
    let root = guarded.token("root");
    users(member).await.role_revoke_permission(with_token(revoke, "token", root)).await.unwrap();
    wait_for(&|watchers| watchers == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_whose_user_loses_a_permission_end_only_where_the_flag_says_so() {
    const DENIED: &str = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
    for is_checked in [false, true] {
        let flags: &[&str] = if is_checked { &["--auth-recheck-watchers"] } else { &[] };
        let guarded = guarded_with(2, flags).await;
        let members = &guarded.cluster.members;
        let root = guarded.token("root");
        let client = members[0].client().await;
        let write = async |key, value| {
            call(&client, Method::KvPut, root, &put(key, value).encode_to_vec()).await.unwrap();
        };
        write("c/1", "1").await;
        // The watchers begin after that write, at the other member too.
        let other = members[1].client().await;
        call(&other, Method::KvRange, root, &get("c/1").encode_to_vec()).await.unwrap();
        let mut of_u = watches(&members[1], guarded.token("u"), &[("b", "d"), ("c", ""), ("b", "c")]).await;
        let mut of_r = watches(&members[1], guarded.token("r"), &[("b", "d")]).await;
        let observe = LeaderRequest { name: bytes("c") };
        let mut election = members[1].client().await.election();
        let observed = election.observe(with_token(observe, "token", guarded.token("u"))).await;
        let mut observed = observed.unwrap().into_inner();
        let mut leads = async || {
            let response = tokio::time::timeout(PATIENCE, observed.message()).await.expect("an answer");
            response.unwrap().map(|leader| leader.kv.unwrap().value)
        };
        assert_eq!(leads().await, Some(bytes("1")));
        // The user `u` keeps [b, c) only. The change comes from another member.
        let mut client = users(&members[0]).await;
        let perm = Permission { perm_type: 2, key: "b".into(), range_end: "c".into() };
        let grant = AuthRoleGrantPermissionRequest { name: "u".to_owned(), perm: Some(perm) };
        client.role_grant_permission(with_token(grant, "token", root)).await.unwrap();
        let (role, key, range_end) = ("u".to_owned(), bytes("b"), bytes("d"));
        let revoke = AuthRoleRevokePermissionRequest { role, key, range_end };
        client.role_revoke_permission(with_token(revoke, "token", root)).await.unwrap();
        if is_checked {
            for watch_id in [1, 2] {
                let canceled = next(&mut of_u).await;
                assert!(canceled.canceled && !canceled.created, "{canceled:?}");
                assert_eq!((canceled.watch_id, canceled.cancel_reason.as_str()), (watch_id, DENIED));
            }
        }
        for (key, value) in [("c/1", "2"), ("c", "1"), ("bb", "1")] {
            write(key, value).await;
        }
        assert_eq!(leads().await, (!is_checked).then(|| bytes("2")));
        let mut seen = Vec::new();
        for _ in 0..if is_checked { 1 } else { 5 } {
            let response = next(&mut of_u).await;
            assert!(!response.canceled && response.events.len() == 1, "{response:?}");
            seen.push(response.watch_id);
        }
        seen.sort_unstable();
        assert_eq!(seen, if is_checked { vec![3] } else { vec![1, 1, 1, 2, 3] });
        assert_eq!(next(&mut of_r).await.events.len(), 1, "another user is not concerned");
    }
}
