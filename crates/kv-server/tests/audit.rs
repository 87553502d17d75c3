//! The audit log of a real process: which requests are logged, their fields, and omitted data.

use crate::common::{Cluster, Member, get, metric, put};
use api::Method;
use api::authpb::Permission;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::*;
use api::v3electionpb::LeaderRequest;
use api::v3lockpb::LockRequest;
use bytes::Buf;
use client::Client;
use prost::Message;
use serde_json::Value;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status};

const PASSWORD: &str = "pa55w0rd";

/// Sends requests of a unary method as a stream.
struct Alarms;

impl Codec for Alarms {
    type Encode = AlarmRequest;
    type Decode = ();
    type Encoder = Alarms;
    type Decoder = Alarms;

    fn encoder(&mut self) -> Alarms {
        Alarms
    }

    fn decoder(&mut self) -> Alarms {
        Alarms
    }
}

impl Encoder for Alarms {
    type Item = AlarmRequest;
    type Error = Status;

    fn encode(&mut self, item: AlarmRequest, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(to).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for Alarms {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        from.advance(from.remaining());
        Ok(Some(()))
    }
}

fn by<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("token", token.parse().unwrap());
    request
}

fn started(flags: &[&str]) -> Cluster {
    Cluster::started_with(1, &[&["--bcrypt-cost=4"], flags].concat())
}

/// Enables auth for `root` and for `alice`, who has READWRITE permission for the key `k`. Returns their
/// tokens.
async fn enable_auth(client: &Client) -> [String; 2] {
    let mut client = client.auth();
    for name in ["root", "alice"] {
        let (name, password) = (name.to_owned(), PASSWORD.to_owned());
        client.user_add(AuthUserAddRequest { name, password, ..Default::default() }).await.unwrap();
    }
    client.role_add(AuthRoleAddRequest { name: "k".to_owned() }).await.unwrap();
    let perm = Permission { perm_type: 2, key: "k".into(), range_end: Default::default() };
    let grant = AuthRoleGrantPermissionRequest { name: "k".to_owned(), perm: Some(perm) };
    client.role_grant_permission(grant).await.unwrap();
    for (user, role) in [("root", "root"), ("alice", "k")] {
        let request = AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() };
        client.user_grant_role(request).await.unwrap();
    }
    client.auth_enable(AuthEnableRequest {}).await.unwrap();
    let mut tokens = Vec::new();
    for name in ["root", "alice"] {
        let request = AuthenticateRequest { name: name.to_owned(), password: PASSWORD.to_owned() };
        tokens.push(client.authenticate(request).await.unwrap().into_inner().token);
    }
    tokens.try_into().unwrap()
}

/// Returns a transaction with 1,000 permitted ranges, followed by a delete that `alice` is not permitted.
fn hidden() -> TxnRequest {
    let op = |request| RequestOp { request: Some(request) };
    let delete = DeleteRangeRequest { key: "x".into(), range_end: "y".into(), ..Default::default() };
    let own = TxnRequest {
        success: vec![op(request_op::Request::RequestRange(get("k"))); 50],
        ..Default::default()
    };
    let mut success = vec![op(request_op::Request::RequestTxn(own)); 10];
    success.push(op(request_op::Request::RequestDeleteRange(delete)));
    TxnRequest { success, ..Default::default() }
}

/// Sends permitted and denied calls through every interface of the member.
async fn use_it(client: &Client, alice: &str) {
    let mut kv = client.kv();
    kv.put(by(alice, put("k", "v4lue"))).await.unwrap();
    kv.range(by(alice, get("k"))).await.unwrap();
    kv.range(by(alice, get("z"))).await.unwrap_err();
    kv.put(by("garbage.1", put("k", "v4lue"))).await.unwrap_err();
    kv.delete_range(DeleteRangeRequest { key: "k".into(), ..Default::default() }).await.unwrap_err();
    kv.compact(by(alice, CompactionRequest { revision: 1, physical: false })).await.unwrap_err();
    kv.txn(by(alice, hidden())).await.unwrap_err();
    let mut auth = client.auth();
    let wrong = AuthenticateRequest { name: "alice".to_owned(), password: "wr0ng".to_owned() };
    auth.authenticate(wrong).await.unwrap_err();
    client.lease().lease_leases(LeaseLeasesRequest {}).await.unwrap_err();
    let create = WatchCreateRequest { key: "a".into(), range_end: "b".into(), ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let creates = tokio_stream::StreamExt::chain(tokio_stream::once(create), tokio_stream::pending());
    let mut watch = client.watch().watch(by(alice, creates)).await.unwrap().into_inner();
    assert!(watch.message().await.unwrap().unwrap().canceled);
    let observe = LeaderRequest { name: "e".into() };
    let observed = client.election().observe(by(alice, observe)).await.unwrap();
    assert!(observed.into_inner().message().await.unwrap().is_none());
}

/// Parses the lines of an audit log, and removes the fields that differ between runs.
fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| {
            let mut line: Value =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            let fields = line.as_object_mut().unwrap();
            assert!(fields.remove("ts").unwrap().as_str().unwrap().ends_with('Z'));
            let address = fields.remove("address").unwrap();
            assert!(address.as_str().unwrap().starts_with("127.0.0.1:"), "{address}");
            line
        })
        .collect()
}

fn line(method: &str, user: Option<&str>, rest: Value) -> Value {
    let mut line = serde_json::json!({ "user": user, "method": method, "refused": false, "result": "OK" });
    let fields = line.as_object_mut().unwrap();
    fields.extend(rest.as_object().unwrap().clone());
    line
}

fn refused(method: &str, user: Option<&str>, (code, text): (&str, &str), mut rest: Value) -> Value {
    rest["refused"] = true.into();
    rest["result"] = code.into();
    rest["error"] = format!("etcdserver: {text}").into();
    line(method, user, rest)
}

fn refusals() -> Vec<Value> {
    let (alice, denied) = (Some("alice"), ("PermissionDenied", "permission denied"));
    let no_name = ("InvalidArgument", "user name is empty");
    let failed = ("InvalidArgument", "authentication failed, invalid user ID or password");
    let keys = |access: &str, key: &str| serde_json::json!({ "keys": [{ "access": access, "key": key }] });
    let ranges = |key: &str, end: &str| serde_json::json!({ "keys": [{ "access": "read", "key": key, "range_end": end }] });
    let invalid = ("Unauthenticated", "invalid auth token");
    let z = serde_json::json!({ "access": "read", "key": "eg==" });
    let txn = serde_json::json!({
        "keys": vec![serde_json::json!({ "access": "read", "key": "aw==" }); 16],
        "denied": { "access": "delete", "key": "eA==", "range_end": "eQ==" },
        "truncated": true,
    });
    vec![
        refused("/etcdserverpb.KV/Range", alice, denied, serde_json::json!({ "keys": [z], "denied": z })),
        refused("/etcdserverpb.KV/Put", None, invalid, keys("write", "aw==")),
        refused("/etcdserverpb.KV/DeleteRange", None, no_name, keys("delete", "aw==")),
        refused("/etcdserverpb.KV/Compact", alice, denied, serde_json::json!({})),
        refused("/etcdserverpb.KV/Txn", alice, denied, txn),
        refused("/etcdserverpb.Auth/Authenticate", None, failed, serde_json::json!({ "of_user": "alice" })),
        refused("/etcdserverpb.Lease/LeaseLeases", None, no_name, serde_json::json!({})),
        refused("/etcdserverpb.Watch/Watch", alice, denied, ranges("YQ==", "Yg==")),
        refused(
            "/v3electionpb.Election/Observe",
            alice,
            ("Unknown", "permission denied"),
            ranges("ZS8=", "ZTA="),
        ),
    ]
}

async fn log_of(flags: &[&str]) -> (String, [String; 2]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let to_file = format!("--audit-log={}", path.display());
    let mut cluster = started(&[&[to_file.as_str()], flags].concat());
    let member = &mut cluster.members[0];
    let client = member.client().await;
    let tokens = enable_auth(&client).await;
    use_it(&client, &tokens[1]).await;
    drop(client);
    let process = member.process.take().unwrap();
    process.terminate();
    let (status, said) = process.wait_end();
    assert!(status.success(), "{said}");
    (std::fs::read_to_string(&path).unwrap(), tokens)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_has_a_line_on_every_way_into_the_member() {
    let (text, _) = log_of(&[]).await;
    assert_eq!(lines(&text), refusals());
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_have_a_line_by_choice_and_no_line_has_a_secret() {
    let (text, tokens) = log_of(&["--audit-log-level=changes"]).await;
    let all = lines(&text);
    let users = |name: &str| serde_json::json!({ "of_user": name, "revision": 1 });
    assert_eq!(all[0], line("/etcdserverpb.Auth/UserAdd", None, users("root")));
    let granted = serde_json::json!({
        "keys": [{ "access": "permission", "key": "aw==" }], "of_role": "k", "revision": 1,
    });
    assert_eq!(all[3], line("/etcdserverpb.Auth/RoleGrantPermission", None, granted));
    let written = serde_json::json!({ "keys": [{ "access": "write", "key": "aw==" }], "revision": 2 });
    assert_eq!(all[9], line("/etcdserverpb.KV/Put", Some("alice"), written));
    // A permitted read is not a change.
    assert_eq!(all[10..], refusals());
    for secret in [PASSWORD, "v4lue", "wr0ng", "garbage", &tokens[0], &tokens[1]] {
        assert!(!text.contains(secret), "{secret}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authenticate_that_fails_without_its_callers_fault_is_no_refusal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let to_file = format!("--audit-log={}", path.display());
    let mut cluster = started(&[&to_file, "--audit-log-level=changes"]);
    let member = &mut cluster.members[0];
    let mut client = member.client().await.auth();
    let request = AuthenticateRequest { name: "alice".to_owned(), password: PASSWORD.to_owned() };
    client.authenticate(request).await.unwrap_err();
    drop(client);
    let all = lines_at_the_end(member, &path);
    let failed = serde_json::json!({
        "of_user": "alice",
        "result": "FailedPrecondition",
        "error": "etcdserver: authentication is not enabled",
    });
    assert_eq!(all, [line("/etcdserverpb.Auth/Authenticate", None, failed)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_have_a_line_by_choice() {
    let (text, _) = log_of(&["--audit-log-level=requests"]).await;
    let read = serde_json::json!({ "keys": [{ "access": "read", "key": "aw==" }], "revision": 2 });
    let all = lines(&text);
    assert!(all.contains(&line("/etcdserverpb.KV/Range", Some("alice"), read)), "{text}");
    assert!(refusals().iter().all(|refusal| all.contains(refusal)), "{text}");
}

/// Stops the member and returns its lines.
fn lines_at_the_end(member: &mut Member, path: &std::path::Path) -> Vec<Value> {
    let process = member.process.take().unwrap();
    process.terminate();
    let (status, said) = process.wait_end();
    assert!(status.success(), "{said}");
    lines(&std::fs::read_to_string(path).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_after_the_first_and_long_ones_hide_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let to_file = format!("--audit-log={}", path.display());
    let mut cluster = started(&[&to_file, "--audit-log-level=changes"]);
    let member = &mut cluster.members[0];
    let mut client = tonic::client::Grpc::new(member.client().await.channel());
    client.ready().await.unwrap();
    let disarm = AlarmRequest { action: 2, member_id: 0xab, ..AlarmRequest::default() };
    let requests = Request::new(tokio_stream::iter([disarm, AlarmRequest::default()]));
    let alarm = http::uri::PathAndQuery::from_static(Method::MaintenanceAlarm.path());
    client.client_streaming(requests, alarm, Alarms).await.unwrap();
    drop(client);
    // Of a long request, the key is logged up to a limit.
    let name = vec![b'n'; 100 << 10];
    let request = LockRequest { name: name.clone().into(), lease: 0 };
    member.client().await.lock().lock(request).await.unwrap();
    let all = lines_at_the_end(member, &path);
    let [line, long] = &all[..] else { panic!("{all:?}") };
    let start = "bm5u".repeat(85) + "bg=="; // 256 bytes.
    assert_eq!((&long["keys"][0]["key"], &long["truncated"]), (&start.into(), &true.into()), "{long}");
    assert_eq!((&line["member"], &line["result"]), (&"ab".into(), &"OK".into()), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_its_client_resets_names_what_it_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let to_file = format!("--audit-log={}", path.display());
    let mut cluster = started(&[&to_file, "--audit-log-level=changes"]);
    let member = &mut cluster.members[0];
    let client = member.client().await;
    let mut locks = client.lock();
    locks.lock(LockRequest { name: "l".into(), lease: 0 }).await.unwrap();
    let create = WatchCreateRequest { key: "l/".into(), range_end: "l0".into(), ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let creates = tokio_stream::StreamExt::chain(tokio_stream::once(create), tokio_stream::pending());
    let mut keys = client.watch().watch(creates).await.unwrap().into_inner();
    assert!(keys.message().await.unwrap().unwrap().created);
    let waiting =
        tokio::spawn(async move { locks.lock(LockRequest { name: "l".into(), lease: 0 }).await.map(drop) });
    assert_eq!(keys.message().await.unwrap().unwrap().events[0].r#type, 0, "the call waits with a key");
    waiting.abort();
    assert_eq!(keys.message().await.unwrap().unwrap().events[0].r#type, 1, "its client has reset it");
    drop((keys, client));
    let all = lines_at_the_end(member, &path);
    let written = serde_json::json!([{ "access": "write", "key": "bA==" }]);
    let results: Vec<(&Value, &Value)> = all.iter().map(|line| (&line["keys"], &line["result"])).collect();
    assert_eq!(results, [(&written, &"OK".into()), (&written, &"Canceled".into())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_device_stops_no_request_and_losses_are_counted() {
    let mut cluster = started(&["--audit-log=/dev/full", "--audit-log-level=requests"]);
    let member = &mut cluster.members[0];
    for n in 0..20 {
        member.put(&format!("k{n}"), "1").await;
    }
    // The thread writes the queued lines. It logs the failure once.
    member.running().wait_for("audit log cannot be written");
    assert_eq!(member.get("k0").await.as_deref(), Some("1"));
    let lost = metric(member, "kv_server_audit_log_lost_lines_total");
    let written = metric(member, "kv_server_audit_log_lines_total");
    assert!(lost >= 1.0 && written == 0.0, "{lost} lost, {written} written");
    let said = member.running().said();
    assert_eq!(said.matches("audit log cannot be written").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_may_be_the_standard_error() {
    let mut cluster = started(&["--audit-log=stderr", "--audit-log-level=changes"]);
    let member = &mut cluster.members[0];
    member.put("k", "v4lue").await;
    member.running().wait_for(r#""method":"/etcdserverpb.KV/Put","keys":[{"access":"write","key":"aw=="}]"#);
    assert!(!member.running().said().contains("v4lue"));
}
