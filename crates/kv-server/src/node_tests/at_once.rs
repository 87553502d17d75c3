//! Calls served inline while their request is decoded. They differ from the regular path only in latency:
//! responses and metrics are equal.

use api::authpb::Permission;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest,
    AuthUserAddRequest, AuthUserGrantRoleRequest, AuthenticateRequest, AuthenticateResponse,
    CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest,
};
use prost::Message;

use super::*;

const RANGE: &str = "/etcdserverpb.KV/Range";

/// Maximum payload of a frame.
const FRAME_BYTES_MAX: usize = 16 << 10;

/// Frames received on a stream up to `END_STREAM`. Window updates are omitted.
pub(super) type Answer = Vec<(u8, u8, Vec<u8>)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// In one read, so that it may be served inline.
    Whole,
    /// In two reads: the message arrives after the head was processed, so that it is never served inline.
    InParts,
}

impl PolledConnection {
    pub(super) fn exchange(&mut self, way: Way, head: &HeaderBlock, body: &[u8]) -> Answer {
        let stream = self.stream;
        self.stream += 2;
        self.socket.0.lock().received.clear();
        self.send(&frame(HEADERS, END_HEADERS, stream, head.bytes()));
        if way == Way::InParts {
            self.poll();
        }
        let mut rest = body;
        while let Some((part, after)) = rest.split_at_checked(FRAME_BYTES_MAX) {
            self.send(&frame(DATA, 0, stream, part));
            rest = after;
        }
        self.send(&frame(DATA, END_STREAM, stream, rest));
        self.answer(stream)
    }

    fn answer(&mut self, stream: u32) -> Answer {
        let began = std::time::Instant::now();
        loop {
            self.poll();
            let frames = self.received().into_iter().filter(|frame| frame.2 == stream);
            let frames = frames.filter(|frame| frame.0 != WINDOW_UPDATE);
            let mut answer: Answer = frames.map(|(kind, flags, _, payload)| (kind, flags, payload)).collect();
            let end = answer.iter().position(|(kind, flags, _)| {
                *kind == RST_STREAM || (*kind <= HEADERS && flags & END_STREAM != 0)
            });
            if let Some(end) = end {
                answer.truncate(end + 1);
                return answer;
            }
            assert!(began.elapsed() < PATIENCE, "{answer:?}");
            std::thread::yield_now();
        }
    }

    /// Makes a call and panics unless it succeeds.
    pub(super) fn call<T: Message + Default>(
        &mut self,
        path: &str,
        token: &[u8],
        message: &impl Message,
    ) -> T {
        let token = [("token", token)];
        let head = head(path, if token[0].1.is_empty() { &[] } else { &token });
        let answer = self.exchange(Way::Whole, &head, &prefixed(&message.encode_to_vec()));
        let data: Vec<u8> =
            answer.iter().filter(|frame| frame.0 == DATA).flat_map(|frame| frame.2.clone()).collect();
        assert!(data.len() >= 5, "{path}: {answer:?}");
        T::decode(&data[5..]).unwrap()
    }
}

/// Counters of calls: finished, failed, bytes received, bytes sent, ranges.
fn counted(alone: &Alone) -> [u64; 5] {
    let metrics = &alone.running.member.metrics;
    let calls = metrics.calls.counts();
    let (received, sent) = metrics.calls.bytes();
    let (ended, failed) =
        (calls.iter().map(|call| call.ended).sum(), calls.iter().map(|call| call.failed).sum());
    [ended, failed, received, sent, metrics.keys.ranges.get()]
}

fn range(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), serializable: true, ..RangeRequest::default() }
}

fn bodies() -> Vec<(&'static str, Vec<u8>)> {
    let of = |request: RangeRequest| prefixed(&request.encode_to_vec());
    let get = range("a").encode_to_vec();
    let with = |change: &dyn Fn(&mut RangeRequest)| {
        let mut request = range("a");
        change(&mut request);
        of(request)
    };
    let announced = |length: u32| [&[0], &length.to_be_bytes()[..], &get].concat();
    let length = get.len() as u32;
    vec![
        ("a key", of(range("a"))),
        ("no key of that name", of(range("none"))),
        ("a deleted key", of(range("gone"))),
        ("an empty value", of(range("empty"))),
        ("a value with a lease", of(range("leased"))),
        ("an answer of 16 KiB", of(range("16k"))),
        ("an answer of some more", of(range("17k"))),
        ("an answer above a frame", of(range("100k"))),
        ("an empty key", of(range(""))),
        ("an older revision", with(&|request| request.revision = 6)),
        ("a compacted revision", with(&|request| request.revision = 2)),
        ("a future revision", with(&|request| request.revision = 1 << 40)),
        ("a revision below 0", with(&|request| request.revision = -1)),
        ("a limit", with(&|request| request.limit = 1)),
        ("a limit below 0", with(&|request| request.limit = -1)),
        ("an order", with(&|request| request.set_sort_order(SortOrder::Descend))),
        ("an order that is none", with(&|request| request.sort_order = 7)),
        ("a target", with(&|request| request.set_sort_target(SortTarget::Value))),
        ("a target that is none", with(&|request| request.sort_target = -1)),
        ("a count", with(&|request| request.count_only = true)),
        ("a key alone", with(&|request| request.keys_only = true)),
        ("a filter", with(&|request| request.min_mod_revision = 1 << 40)),
        ("a range", with(&|request| request.range_end = b"z".as_slice().into())),
        ("a linearizable range", with(&|request| request.serializable = false)),
        ("a field that is not known", prefixed(&[&get[..], &[0xfa, 0x07, 1, 7]].concat())),
        ("no message", Vec::new()),
        ("a part of a prefix", vec![0, 0, 0]),
        ("an empty message", prefixed(&[])),
        ("bytes that are no message", prefixed(&[0xff; 12])),
        ("a message that ends early", prefixed(&get[..get.len() - 1])),
        ("a length above the bytes", announced(length + 1)),
        ("a length below the bytes", announced(length - 1)),
        ("a length of 4 GiB", announced(u32::MAX)),
        ("two messages", [prefixed(&get), prefixed(&get)].concat()),
        ("a byte after the message", [prefixed(&get), vec![0]].concat()),
        ("a compressed message", [&[1], &prefixed(&get)[1..]].concat()),
        ("a flag that is none", [&[2], &prefixed(&get)[1..]].concat()),
    ]
}

type HeadFields = &'static [(&'static str, &'static [u8])];

/// Header fields, and whether the response has a message.
const HEADS: [(HeadFields, bool); 11] = [
    (&[], true),
    (&[("grpc-timeout", b"1H")], true),
    (&[("grpc-timeout", b"1")], false),
    (&[("grpc-timeout", b"x")], false),
    (&[("grpc-timeout", b"-1S")], false),
    (&[("hasleader", b"true")], true),
    (&[("client-api-version", b"\xff")], false),
    (&[("grpc-encoding", b"identity")], true),
    (&[("grpc-encoding", b"gzip")], false),
    (&[("grpc-encoding", b"")], false),
    (&[("token", b"nonsense.1"), ("authorization", b"nonsense")], true),
];

fn fill(connection: &mut PolledConnection) {
    let put = |key: &str, bytes: usize| PutRequest {
        key: key.to_owned().into(),
        value: vec![b'v'; bytes].into(),
        ..PutRequest::default()
    };
    let lease: api::etcdserverpb::LeaseGrantResponse =
        connection.call("/etcdserverpb.Lease/LeaseGrant", b"", &LeaseGrantRequest { ttl: 3600, id: 7 });
    assert_eq!(lease.id, 7);
    let leased = PutRequest { lease: 7, ..put("leased", 9) };
    // About 50 bytes of a 16 KiB response are not the value.
    let sizes = [
        ("a", 3),
        ("gone", 1),
        ("empty", 0),
        ("a", 4),
        ("16k", (16 << 10) - 60),
        ("17k", 17 << 10),
        ("100k", 100 << 10),
    ];
    for put in sizes.map(|(key, bytes)| put(key, bytes)).into_iter().chain([leased]) {
        let _: api::etcdserverpb::PutResponse = connection.call("/etcdserverpb.KV/Put", b"", &put);
    }
    let gone = DeleteRangeRequest { key: b"gone".as_slice().into(), ..DeleteRangeRequest::default() };
    let _: api::etcdserverpb::DeleteRangeResponse =
        connection.call("/etcdserverpb.KV/DeleteRange", b"", &gone);
    let _: api::etcdserverpb::CompactionResponse =
        connection.call("/etcdserverpb.KV/Compact", b"", &CompactionRequest { revision: 4, physical: false });
}

/// Sends a request. Returns the response and the counter increments.
fn step(
    alone: &Alone,
    connection: &mut PolledConnection,
    way: Way,
    head: &HeaderBlock,
    body: &[u8],
) -> (Answer, [u64; 5]) {
    let before = counted(alone);
    let answer = connection.exchange(way, head, body);
    let after = counted(alone);
    (answer, std::array::from_fn(|n| after[n] - before[n]))
}

/// Sends a request by either delivery, and checks that responses and counters are equal.
fn checked(
    alone: &Alone,
    connection: &mut PolledConnection,
    name: &str,
    head: &HeaderBlock,
    body: &[u8],
) -> Answer {
    let mut step = |way| step(alone, connection, way, head, body);
    let in_parts = step(Way::InParts);
    assert_eq!(step(Way::Whole), in_parts, "{name}");
    assert_eq!(step(Way::Whole), in_parts, "{name}, again");
    in_parts.0
}

fn is_answered(answer: &Answer) -> bool {
    answer.iter().any(|frame| frame.0 == DATA && !frame.2.is_empty())
}

#[test]
fn an_answer_has_the_same_bytes_and_is_counted_alike_however_its_request_arrives() {
    let directory = tempfile::tempdir().unwrap();
    let alone = start(directory.path(), &[]);
    let inside = alone.runtimes.clients.enter();
    let mut connection = PolledConnection::open(&alone);
    fill(&mut connection);
    for (name, body) in bodies() {
        checked(&alone, &mut connection, name, &head(RANGE, &[]), &body);
    }
    let body = prefixed(&range("a").encode_to_vec());
    for (fields, has_answer) in HEADS {
        let name = format!("{fields:?}");
        let answer = checked(&alone, &mut connection, &name, &head(RANGE, fields), &body);
        assert_eq!(is_answered(&answer), has_answer, "{name}: {answer:?}");
    }
    // If the message arrives after the deadline, the response is the same, but the call is not counted.
    for timeout in [b"0n", b"0H"] {
        let late = head(RANGE, &[("grpc-timeout", timeout)]);
        let ways = [Way::InParts, Way::Whole, Way::Whole];
        let [in_parts, whole, again] = ways.map(|way| step(&alone, &mut connection, way, &late, &body));
        assert_eq!((&again, &whole.0), (&whole, &in_parts.0));
        assert!(!is_answered(&whole.0), "{whole:?}");
    }
    drop((connection, inside));
    alone.stop();
}

#[test]
fn permissions_and_tokens_are_those_of_the_moment() {
    let directory = tempfile::tempdir().unwrap();
    let alone = start(directory.path(), &[]);
    let inside = alone.runtimes.clients.enter();
    let (mut connection, mut root) = (PolledConnection::open(&alone), PolledConnection::open(&alone));
    fill(&mut root);
    let permission =
        Permission { perm_type: 0, key: b"a".as_slice().into(), range_end: b"b".as_slice().into() };
    let named = |name: &str| AuthUserAddRequest {
        name: name.to_owned(),
        password: "p".to_owned(),
        ..AuthUserAddRequest::default()
    };
    let granted =
        |user: &str, role: &str| AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() };
    let to_r = AuthRoleGrantPermissionRequest { name: "r".to_owned(), perm: Some(permission) };
    let role = |name: &str| AuthRoleAddRequest { name: name.to_owned() };
    let auth = |method: &str| format!("/etcdserverpb.Auth/{method}");
    let _: Nothing = root.call(&auth("UserAdd"), b"", &named("root"));
    let _: Nothing = root.call(&auth("UserAdd"), b"", &named("u"));
    let _: Nothing = root.call(&auth("RoleAdd"), b"", &role("root"));
    let _: Nothing = root.call(&auth("RoleAdd"), b"", &role("r"));
    let _: Nothing = root.call(&auth("RoleGrantPermission"), b"", &to_r);
    let _: Nothing = root.call(&auth("UserGrantRole"), b"", &granted("root", "root"));
    let _: Nothing = root.call(&auth("UserGrantRole"), b"", &granted("u", "r"));
    let _: Nothing = root.call(&auth("AuthEnable"), b"", &AuthEnableRequest {});
    let mut token_of = |name: &str| {
        let request = AuthenticateRequest { name: name.to_owned(), password: "p".to_owned() };
        let response: AuthenticateResponse = root.call(&auth("Authenticate"), b"", &request);
        response.token.into_bytes()
    };
    let (user, administrator) = (token_of("u"), token_of("root"));
    let mut check = |token: &[u8], wanted: [bool; 2]| {
        let fields = [("token", token)];
        let head = head(RANGE, if token.is_empty() { &[] } else { &fields });
        for (key, wanted) in ["a", "16k"].into_iter().zip(wanted) {
            let body = prefixed(&range(key).encode_to_vec());
            let answer = checked(&alone, &mut connection, key, &head, &body);
            assert_eq!(is_answered(&answer), wanted, "{key}: {answer:?}");
        }
    };
    check(&user, [true, false]);
    check(b"", [false, false]);
    check(b"nonsense.1", [false, false]);
    check(&administrator, [true, true]);
    let revoked = AuthRoleRevokePermissionRequest {
        role: "r".to_owned(),
        key: b"a".as_slice().into(),
        range_end: b"b".as_slice().into(),
    };
    let _: Nothing = root.call(&auth("RoleRevokePermission"), &administrator, &revoked);
    check(&user, [false, false]);
    let _: Nothing = root.call(&auth("RoleGrantPermission"), &administrator, &to_r);
    check(&user, [true, false]);
    let password = api::etcdserverpb::AuthUserChangePasswordRequest {
        name: "u".to_owned(),
        password: "q".to_owned(),
        ..Default::default()
    };
    let _: Nothing = root.call(&auth("UserChangePassword"), &administrator, &password);
    check(&user, [false, false]);
    let _: Nothing =
        root.call(&auth("AuthDisable"), &administrator, &api::etcdserverpb::AuthDisableRequest {});
    check(&user, [true, true]);
    check(b"", [true, true]);
    drop((connection, root, inside));
    alone.stop();
}

/// Response that is not inspected.
pub(super) type Nothing = api::etcdserverpb::AuthEnableResponse;

#[test]
fn a_member_that_must_not_answer_refuses_however_a_request_arrives() {
    let directory = tempfile::tempdir().unwrap();
    let alone = start(directory.path(), &[]);
    let inside = alone.runtimes.clients.enter();
    let mut connection = PolledConnection::open(&alone);
    fill(&mut connection);
    let body = prefixed(&range("a").encode_to_vec());
    assert!(is_answered(&checked(&alone, &mut connection, "intact", &head(RANGE, &[]), &body)));
    let member_id = alone.running.member.ids.member;
    let alarm = api::etcdserverpb::AlarmRequest { action: 1, member_id, alarm: 2 };
    let _: api::etcdserverpb::AlarmResponse = connection.call("/etcdserverpb.Maintenance/Alarm", b"", &alarm);
    assert!(!is_answered(&checked(&alone, &mut connection, "corrupt", &head(RANGE, &[]), &body)));
    drop((connection, inside));
    alone.stop();
}

fn requests(connection: &mut PolledConnection, count: usize, key: &str) -> Vec<u8> {
    let (head, body) = (head(RANGE, &[]), prefixed(&range(key).encode_to_vec()));
    let request = |_| {
        let stream = connection.stream;
        connection.stream += 2;
        [frame(HEADERS, END_HEADERS, stream, head.bytes()), frame(DATA, END_STREAM, stream, &body)].concat()
    };
    (0..count).flat_map(request).collect()
}

#[test]
fn a_burst_is_answered_in_bounded_rounds_and_held_within_bounds() {
    const REQUESTS: usize = 900;
    /// Maximum number of calls served per poll of the task.
    const TURN_MAX: u64 = 32;
    let directory = tempfile::tempdir().unwrap();
    let alone = start(directory.path(), &[]);
    let inside = alone.runtimes.clients.enter();
    let mut connection = PolledConnection::open(&alone);
    fill(&mut connection);
    for (key, bytes_max) in [("a", 2 << 20), ("16k", 18 << 20)] {
        let bytes = requests(&mut connection, REQUESTS, key);
        connection.socket.0.lock().received.clear();
        connection.socket.0.lock().is_full = true;
        connection.send(&bytes);
        let held = allocation_counter::measure(|| {
            for _ in 0..3 * REQUESTS {
                let before = counted(&alone)[0];
                connection.poll();
                assert!(
                    counted(&alone)[0] - before <= TURN_MAX,
                    "{key}: {} calls",
                    counted(&alone)[0] - before
                );
            }
        });
        assert!(held.bytes_max < bytes_max, "{key}: {held:?}");
        connection.socket.0.lock().is_full = false;
        let is_end = |frame: &(u8, u8, u32, Vec<u8>)| frame.0 == HEADERS && frame.1 & END_STREAM != 0;
        let began = std::time::Instant::now();
        while connection.received().iter().filter(|frame| is_end(frame)).count() < REQUESTS {
            assert!(began.elapsed() < PATIENCE);
            connection.poll();
        }
    }
    drop((connection, inside));
    alone.stop();
}

#[test]
fn a_request_that_is_reset_with_the_same_read_is_not_made_and_others_are() {
    let directory = tempfile::tempdir().unwrap();
    let alone = start(directory.path(), &[]);
    let inside = alone.runtimes.clients.enter();
    let mut connection = PolledConnection::open(&alone);
    fill(&mut connection);
    let before = counted(&alone)[0];
    let stream = connection.stream;
    let reset = requests(&mut connection, 1, "a");
    let after = requests(&mut connection, 1, "a");
    connection.send(&[reset, frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]), after].concat());
    assert!(is_answered(&connection.answer(stream + 2)));
    assert_eq!(counted(&alone)[0] - before, 1);
    assert!(connection.received().iter().all(|frame| frame.2 != stream));
    drop((connection, inside));
    alone.stop();
}

#[test]
fn an_answer_that_its_window_does_not_take_is_sent_later_and_counted_once() {
    let directory = tempfile::tempdir().unwrap();
    let alone = start(directory.path(), &[]);
    let inside = alone.runtimes.clients.enter();
    let mut connection = PolledConnection::open(&alone);
    fill(&mut connection);
    let at_once = connection.exchange(Way::Whole, &head(RANGE, &[]), &prefixed(&range("a").encode_to_vec()));
    let before = counted(&alone);
    connection.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    let stream = connection.stream;
    let request = requests(&mut connection, 1, "a");
    connection.send(&request);
    (0..10).for_each(|_| connection.poll());
    let has_data = |connection: &PolledConnection| {
        connection.received().iter().any(|frame| (frame.0, frame.2) == (DATA, stream))
    };
    assert!(!has_data(&connection));
    connection.send(&frame(WINDOW_UPDATE, 0, stream, &1000u32.to_be_bytes()));
    assert_eq!(connection.answer(stream), at_once);
    let after = counted(&alone);
    assert_eq!([after[0] - before[0], after[1] - before[1], after[4] - before[4]], [1, 0, 1]);
    drop((connection, inside));
    alone.stop();
}
