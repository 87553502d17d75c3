//! Calls that no client library makes: every method rejects them in the same way, with grpc-go's status.

use std::time::Duration;

use crate::common::{Cluster, Member};
use api::etcdserverpb::{
    LeaseGrantRequest, MemberListRequest, PutRequest, RangeRequest, SnapshotRequest, StatusRequest,
};
use api::v3electionpb::LeaderRequest;
use bytes::{BufMut, Bytes, BytesMut};
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use prost::Message;
use tokio::time::timeout;

/// A call without a status by then has none.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts the binary under test, by default that of this build. etcd's is compared by hand.
fn started() -> Cluster {
    let mut cluster = Cluster::new(1);
    if let Ok(program) = std::env::var("KV_SERVER_UNDER_TEST") {
        cluster.members[0].program = vec![program];
    }
    cluster.start();
    cluster
}

async fn connected(member: &Member) -> SendRequest<Bytes> {
    let socket = tokio::net::TcpStream::connect(("127.0.0.1", member.client_port)).await.unwrap();
    let (client, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    client
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.put_slice(message);
    frame.to_vec()
}

/// A request with additional header fields.
struct RawCall {
    fields: &'static [(&'static str, &'static str)],
    body: Vec<u8>,
    ends: bool,
}

impl RawCall {
    /// Makes the call on a new connection. Returns code and text of its status.
    async fn status(&self, member: &Member, path: &str) -> (String, String) {
        let open = OpenCall::new(member, path, self.fields).await;
        open.status(&self.body, self.ends).await
    }
}

/// A call whose headers are sent.
struct OpenCall {
    response: ResponseFuture,
    stream: SendStream<Bytes>,
}

impl OpenCall {
    /// Opens the call on a new connection.
    async fn new(member: &Member, path: &str, fields: &[(&str, &str)]) -> OpenCall {
        let mut call = http::Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in fields {
            call = call.header(*name, *value);
        }
        let mut client = connected(member).await.ready().await.unwrap();
        let (response, stream) = client.send_request(call.body(()).unwrap(), false).unwrap();
        OpenCall { response, stream }
    }

    /// Sends the body. Returns code and text of the status.
    async fn status(mut self, body: &[u8], ends: bool) -> (String, String) {
        // A call may be rejected by its headers: then its stream takes no data.
        drop(self.stream.send_data(Bytes::copy_from_slice(body), ends));
        let answered = async {
            let (parts, mut body) = self.response.await.unwrap().into_parts();
            let mut headers = parts.headers;
            if !headers.contains_key("grpc-status") {
                while let Some(data) = body.data().await {
                    body.flow_control().release_capacity(data.unwrap().len()).unwrap();
                }
                headers = body.trailers().await.unwrap().expect("trailers");
            }
            headers
        };
        let Ok(headers) = timeout(ANSWER_TIMEOUT, answered).await else {
            return ("none".to_owned(), String::new());
        };
        let text = |name| headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        (
            text("grpc-status"),
            text("grpc-message").replace("%20", " ").replace("%22", "\"").replace("%60", "`"),
        )
    }
}

/// Paths with valid messages.
fn methods() -> [(&'static str, Vec<u8>); 7] {
    let put = PutRequest { key: "k".into(), ..PutRequest::default() };
    let range = RangeRequest { key: "k".into(), ..RangeRequest::default() };
    [
        ("/etcdserverpb.KV/Put", put.encode_to_vec()),
        ("/etcdserverpb.KV/Range", range.encode_to_vec()),
        ("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl: 60, id: 0 }.encode_to_vec()),
        ("/etcdserverpb.Maintenance/Status", StatusRequest {}.encode_to_vec()),
        ("/etcdserverpb.Cluster/MemberList", MemberListRequest::default().encode_to_vec()),
        ("/etcdserverpb.Maintenance/Snapshot", SnapshotRequest {}.encode_to_vec()),
        ("/v3electionpb.Election/Observe", LeaderRequest { name: "n".into() }.encode_to_vec()),
    ]
}

/// Status texts of grpc-go for a streaming call without exactly one request.
const NO_MESSAGE: &str = "cardinality violation: received no request message from non-client-streaming RPC";
const TWO_MESSAGES: &str =
    "cardinality violation: received multiple request messages for non-client-streaming RPC";

#[tokio::test]
async fn every_method_rejects_a_malformed_call_with_the_same_status() {
    let cluster = started();
    let member = &cluster.members[0];
    let mut wrong = Vec::new();
    let raw = |fields, body: &[u8], ends| RawCall { fields, body: body.to_vec(), ends };
    for (path, message) in methods() {
        let is_stream = path.ends_with("Snapshot") || path.ends_with("Observe");
        let message = framed(&message);
        let too_large = [&[0][..], &(4u32 << 20).to_be_bytes()].concat();
        let undecodable = match is_stream {
            true => {
                "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data"
            }
            false => "grpc: error unmarshalling request: proto: cannot parse invalid wire-format data",
        };
        let limit = 2 << 20;
        let cut = if is_stream { ("13", "unexpected EOF") } else { ("2", "unexpected EOF") };
        let (none, two) = match is_stream {
            true => (("13", NO_MESSAGE), ("13", TWO_MESSAGES)),
            false => (("2", "EOF"), ("0", "")),
        };
        for (name, call, code, text) in [
            ("no message", raw(&[], b"", true), none.0, none.1.to_owned()),
            ("a cut message", raw(&[], &framed(&[0; 9])[..9], true), cut.0, cut.1.to_owned()),
            ("two messages", raw(&[], &[&message[..], &message].concat(), true), two.0, two.1.to_owned()),
            ("trailing bytes", raw(&[], &[&message[..], &[0, 0]].concat(), true), "0", String::new()),
            (
                "compressed without a name",
                raw(&[], &[&[1][..], &message[1..]].concat(), true),
                "13",
                "grpc: compressed flag set with identity or empty encoding".to_owned(),
            ),
            // etcd reads compressed messages.
            (
                "compressed",
                raw(&[("grpc-encoding", "gzip")], &[&[1][..], &message[1..]].concat(), false),
                "12",
                "Content is compressed with `gzip` which isn't supported".to_owned(),
            ),
            (
                "too large",
                raw(&[], &too_large, false),
                "8",
                format!("grpc: received message larger than max ({} vs. {limit})", 4 << 20),
            ),
            (
                "a malformed deadline",
                raw(&[("grpc-timeout", "5x")], &message, false),
                "13",
                "malformed grpc-timeout: transport: timeout unit is not recognized: \"5x\"".to_owned(),
            ),
            (
                "a deadline that has passed",
                raw(&[("grpc-timeout", "0n")], &message, true),
                "4",
                "context deadline exceeded".to_owned(),
            ),
            ("undecodable", raw(&[], &framed(&[0x0a, 0x05, b'a']), true), "13", undecodable.to_owned()),
        ] {
            if path.ends_with("Observe") && code == "0" {
                continue; // It has no end.
            }
            let status = call.status(member, path).await;
            if status.0 != code || !status.1.starts_with(&text) {
                wrong.push(format!("{path}, {name}: {status:?}, not {code}, {text}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn a_unary_call_is_served_before_its_request_ends() {
    let cluster = started();
    for (path, message) in methods().into_iter().take(5) {
        let call = RawCall { fields: &[], body: framed(&message), ends: false };
        assert_eq!(call.status(&cluster.members[0], path).await.0, "0", "{path}");
    }
}

#[tokio::test]
async fn the_leader_that_a_call_needs_may_be_lost_between_its_headers_and_its_message() {
    let mut cluster = Cluster::started(2);
    let range = RangeRequest { key: "k".into(), serializable: true, ..RangeRequest::default() };
    let path = "/etcdserverpb.KV/Range";
    let call = OpenCall::new(&cluster.members[0], path, &[("hasleader", "true")]).await;
    cluster.members[1].kill();
    cluster.members[0].running().wait_for("lost leader");
    let status = call.status(&framed(&range.encode_to_vec()), true).await;
    assert_eq!(status, ("14".to_owned(), "etcdserver: no leader".to_owned()));
}
