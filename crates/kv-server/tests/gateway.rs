//! The JSON gateway against what etcd's answered.
//!
//! `tests/gateway/*.txt` are golden scripts. `RECORD_FROM=/path/to/etcd UPDATE_SCRIPTS=1` records them again
//! from etcd. Each script has a separate member, and each command is one of
//!
//!   POST /v3/kv/put {"key":"YQ=="}     the answer's code and body; ids, terms and sizes are left out
//!   LINES 2 /v3/watch {…}              a stream, until so many lines have come
//!   HEAD /v3/kv/put {…}                code and headers of the answer to a POST
//!   GET /v3/kv/put                     another method
//!   HEADERS /readyz                    code and headers of the answer to a GET
//!   SOCKET 2 /v3/watch {…} {…}         messages on a websocket, until so many have come back
//!   WITH Grpc-Timeout: 1S              a header for the next request

use crate::common;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::Path;
use std::time::Instant;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::common::{Cluster, PATIENCE};
use serde_json::Value;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocket};

/// Fields whose values differ between two clusters with the same data, and between two systems.
const LEFT_OUT: [&str; 12] = [
    "cluster_id",
    "member_id",
    "raft_term",
    "raftTerm",
    "raftIndex",
    "raftAppliedIndex",
    "dbSize",
    "dbSizeInUse",
    "leader",
    "peerURLs",
    "clientURLs",
    "hash",
];

/// What a client sends that asks for a websocket.
const UPGRADE: [&str; 4] = [
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
];

struct Member {
    cluster: Cluster,
    port: u16,
    headers: Vec<String>,
    host: String,
}

impl Member {
    fn started(extra: &[&str]) -> Member {
        let flags: Vec<String> = extra.iter().map(|flag| (*flag).to_owned()).collect();
        let cluster = Cluster::started_from("RECORD_FROM", "default", &flags);
        let port = cluster.members[0].client_port;
        Member { cluster, port, headers: Vec::new(), host: "localhost".to_owned() }
    }

    fn run(&mut self, line: &str) -> String {
        let (word, rest) = line.split_once(' ').expect("a command has arguments");
        match word {
            "WITH" => {
                self.headers.push(rest.to_owned());
                String::new()
            }
            "GET" | "PUT" | "DELETE" | "OPTIONS" => shown(&self.answer(word, rest, ""), false),
            "HEADERS" => shown(&self.answer("GET", rest, ""), true),
            "POST" | "HEAD" => {
                let (path, body) = rest.split_once(' ').unwrap_or((rest, ""));
                shown(&self.answer("POST", path, body), word == "HEAD")
            }
            "LINES" => {
                let mut words = rest.splitn(3, ' ');
                let count = words.next().and_then(|word| word.parse().ok()).expect("a number of lines");
                let (path, body) = (words.next().expect("a path"), words.next().unwrap_or_default());
                self.lines(count, path, body)
            }
            "SOCKET" => {
                let mut words = rest.split(' ');
                let count = words.next().and_then(|word| word.parse().ok()).expect("a number of messages");
                self.messages(count, words.next().expect("a path"), words)
            }
            _ => panic!("unknown command {word}"),
        }
    }

    fn send(&mut self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a member that serves");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let is_kept = self.headers.iter().any(|header| header.starts_with("Connection:"));
        let close = if is_kept { "" } else { "Connection: close\r\n" };
        let headers: String = self.headers.drain(..).map(|header| format!("{header}\r\n")).collect();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{close}{headers}Content-Length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("a member that serves");
        stream
    }

    fn answer(&mut self, method: &str, path: &str, body: &str) -> String {
        let mut answer = String::new();
        self.send(method, path, body).read_to_string(&mut answer).expect("an answer that ends");
        answer
    }

    /// The first `count` messages that come back on a websocket, or all of them if it is closed before.
    fn messages<'a>(&mut self, count: usize, path: &str, sent: impl Iterator<Item = &'a str>) -> String {
        let mut socket = self.websocket(path);
        sent.for_each(|message| socket.send(message.to_owned().into()).expect("a member that reads"));
        let texts = std::iter::from_fn(|| {
            loop {
                match socket.read() {
                    Ok(message) if message.is_text() => return message.into_text().ok(),
                    Ok(message) if message.is_close() => return None,
                    Ok(_) => {}
                    // etcd breaks a websocket off where a call has ended.
                    Err(Error::Protocol(_) | Error::ConnectionClosed) => return None,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        texts.take(count).map(|text| normalised(&text)).collect::<Vec<_>>().join("\n")
    }

    fn websocket(&mut self, path: &str) -> WebSocket<TcpStream> {
        self.headers.extend(UPGRADE.map(str::to_owned));
        let mut stream = self.send("GET", path, "");
        let head = head_of(&mut stream);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        WebSocket::from_raw_socket(stream, Role::Client, None)
    }

    /// The head of the answer to a GET.
    fn refusal(&mut self, path: &str) -> String {
        head_of(&mut self.send("GET", path, ""))
    }

    /// The first `count` lines of a stream, which is left then.
    fn lines(&mut self, count: usize, path: &str, body: &str) -> String {
        let answer = BufReader::new(self.send("POST", path, body));
        let lines = answer.lines().map(|line| line.expect("a line in time"));
        let lines: Vec<String> =
            lines.filter(|line| line.starts_with('{')).take(count).map(|line| normalised(&line)).collect();
        lines.join("\n")
    }
}

fn head_of(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer in time");
        head.extend(byte);
    }
    String::from_utf8(head).expect("a head is text")
}

/// Code, the headers that matter if they are wanted, and body.
fn shown(answer: &str, with_headers: bool) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer with a head");
    let mut lines = head.lines();
    let code = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a code");
    let mut headers: Vec<String> = lines.map(str::to_lowercase).collect();
    let is_chunked = headers.iter().any(|header| header.starts_with("transfer-encoding"));
    if with_headers {
        let skipped = ["date", "content-length", "transfer-encoding", "connection"];
        headers.retain(|header| !skipped.iter().any(|name| header.starts_with(name)));
        headers.sort();
        return format!("{code}\n{}", headers.join("\n"));
    }
    let mut body: Vec<String> = match is_chunked {
        true => body.lines().filter(|line| line.starts_with('{')).map(normalised).collect(),
        false => body.lines().map(normalised).collect(),
    };
    // etcd shows its checks in no order.
    if body.iter().any(|line| line.starts_with("[+]")) {
        body.sort_unstable();
    }
    format!("{code} {}", body.join("\n"))
}

/// JSON without what differs between clusters, in one order; anything else as it is.
fn normalised(text: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(text) else { return text.to_owned() };
    leave_out(&mut value);
    value.to_string()
}

fn leave_out(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match LEFT_OUT.contains(&name.as_str()) {
                    true => *value = Value::String("*".to_owned()),
                    false => leave_out(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(leave_out),
        // protojson's texts, with lines and columns, and encoding/json's.
        Value::String(text) if text.starts_with("proto:") || text.starts_with("invalid character") => {
            *text = "malformed".to_owned();
        }
        _ => {}
    }
}

#[test]
fn the_gateway_answers_as_etcds() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway");
    testkit::golden::run_all(&dir, || {
        let mut member = Member::started(&[]);
        move |line| member.run(line)
    });
}

/// Base64 of `bytes` zeros.
fn zeros(bytes: usize) -> String {
    "A".repeat(bytes.div_ceil(3) * 4)
}

#[test]
fn requests_that_are_too_deep_or_too_large_are_refused_and_the_member_goes_on() {
    let mut member = Member::started(&[]);
    let nested = |levels: usize| {
        let (open, close) = (r#"{"success":[{"request_txn":"#.repeat(levels), "}]}".repeat(levels));
        format!("{open}{{}}{close}")
    };
    let request = |path: &str, body: String| format!("POST {path} {body}");
    assert!(member.run(&request("/v3/kv/txn", nested(21))).starts_with("200"));
    let refused = member.run(&request("/v3/kv/txn", nested(22)));
    assert_eq!(refused, r#"400 {"code":3,"message":"exceeded max depth of 64"}"#);
    assert!(member.run(&request("/v3/kv/put", "[".repeat(1 << 20))).starts_with("400"));
    // The limit of etcd's for a request, and ours for its JSON.
    let large = format!(r#"{{"key":"YQ==","value":"{}"}}"#, zeros(1_600_000));
    assert!(member.run(&request("/v3/kv/put", large)).contains("etcdserver: request is too large"));
    let larger = format!(r#"{{"key":"YQ==","value":"{}"}}"#, zeros(4 << 20));
    assert!(member.run(&request("/v3/kv/put", larger)).starts_with("429"));
    assert!(member.run("POST /v3/kv/range {\"key\":\"YQ==\"}").starts_with("200"));
}

#[test]
fn a_large_answer_comes_whole_and_one_that_would_take_all_memory_is_refused() {
    let mut member = Member::started(&[]);
    let value = zeros(1 << 20);
    for key in 'a'..='h' {
        let put = member.run(&format!(r#"POST /v3/kv/put {{"key":"{key}w==","value":"{value}"}}"#));
        assert!(put.starts_with("200"), "{put}");
    }
    let everything = r#"{"key":"AA==","range_end":"AA=="}"#;
    let answer = member.answer("POST", "/v3/kv/range", everything);
    assert!(answer.len() > 8 * value.len() && answer.matches(&value).count() == 8);
    for key in 'i'..='z' {
        member.run(&format!(r#"POST /v3/kv/put {{"key":"{key}w==","value":"{value}"}}"#));
    }
    for key in 'A'..='J' {
        member.run(&format!(r#"POST /v3/kv/put {{"key":"{key}w==","value":"{value}"}}"#));
    }
    let refused = shown(&member.answer("POST", "/v3/kv/range", everything), false);
    assert!(refused.starts_with("429"), "{}", &refused[..200.min(refused.len())]);
}

#[test]
fn a_watch_delivers_events_as_they_happen_and_ends_with_its_client() {
    let mut member = Member::started(&[]);
    let mut lines =
        BufReader::new(member.send("POST", "/v3/watch", r#"{"create_request":{"key":"YQ=="}}"#)).lines();
    let mut next = |wanted: &str| {
        lines
            .find(|line| line.as_ref().expect("a line in time").contains(wanted))
            .expect("the stream goes on")
    };
    assert!(next("created").is_ok());
    member.run("POST /v3/kv/put {\"key\":\"YQ==\",\"value\":\"MQ==\"}");
    assert!(next(r#""value":"MQ==""#).is_ok());
    drop(lines);
    let begun = std::time::Instant::now();
    while common::http(member.port, "GET /metrics").contains("etcd_debugging_mvcc_watcher_total 1") {
        assert!(begun.elapsed() < PATIENCE, "the watcher is still there");
        std::thread::yield_now();
    }
}

#[test]
fn one_call_on_each_of_many_connections_is_served() {
    let mut member = Member::started(&[]);
    let watch = r#"{"create_request":{"key":"YQ=="}}"#;
    let calls: Vec<TcpStream> = (0..999).map(|_| member.send("POST", "/v3/watch", watch)).collect();
    for (number, call) in calls.iter().enumerate() {
        let created = BufReader::new(call)
            .lines()
            .find_map(|line| Some(line.ok()?.contains("created")).filter(|is| *is));
        assert!(created.is_some(), "{number}");
    }
}

/// The bodies of these calls are not at their end, or more follows them.
#[test]
fn a_call_ends_with_its_client_whatever_of_its_request_was_not_read() {
    let mut member = Member::started(&[]);
    let files = format!("/proc/{}/fd", member.cluster.members[0].running().pid());
    let sockets = || {
        let files = std::fs::read_dir(&files).expect("a process");
        let targets = files.filter_map(|file| file.ok()?.path().read_link().ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    };
    let idle = sockets();
    member.run(r#"POST /v3/lease/grant {"TTL":"600","ID":"1"}"#);
    member.run(r#"POST /v3/lease/grant {"TTL":"600","ID":"2"}"#);
    member.run(r#"POST /v3/lock/lock {"name":"YQ==","lease":"1"}"#);
    let create = r#"{"create_request":{"key":"YQ=="}}"#;
    let rest = " ".repeat(100);
    for (name, path, length, body) in [
        ("no request", "watch", 100, ""),
        ("half of a request", "watch", 100, r#"{"create_"#),
        ("a request of more", "watch", 100, create),
        ("a request and another", "watch", create.len(), &format!("{create}GET /health HTTP/1.1\r\n")),
        ("a waiting call", "lock/lock", 200, r#"{"name":"YQ==","lease":"2"}"#),
        ("a waiting call, not read", "lock/lock", 10_000, &format!(r#"{{"name":"YQ==","lease":"2"}}{rest}"#)),
        ("many answers", "election/observe", 100, r#"{"name":"YQ=="}"#),
    ] {
        let head = format!("POST /v3/{path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        let clients = (0..5).map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", member.port)).expect("a member that serves");
            stream.write_all(format!("{head}{body}").as_bytes()).expect("a member that reads");
            stream
        });
        let clients: Vec<TcpStream> = clients.collect();
        wait(&format!("{name}: the calls begin"), || sockets() == idle + clients.len());
        drop(clients);
        wait(&format!("{name}: the calls end"), || sockets() == idle);
    }
}

/// The sum of a counter of calls over the lines that have all of `labels`.
fn counted(port: u16, name: &str, labels: &[&str]) -> f64 {
    let metrics = common::http(port, "GET /metrics");
    let lines = metrics.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    let wanted = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
    wanted.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Each call begins, waits, and is given up: by its client, or by its deadline.
#[test]
fn a_call_that_is_given_up_is_counted_with_its_code() {
    const CALLS: usize = 10;
    let mut member = Member::started(&[]);
    let port = member.port;
    member.run(r#"POST /v3/lease/grant {"TTL":"600","ID":"1"}"#);
    member.run(r#"POST /v3/lease/grant {"TTL":"600","ID":"2"}"#);
    member.run(r#"POST /v3/lock/lock {"name":"YQ==","lease":"1"}"#);
    for (method, path, body) in [
        ("Watch", "watch", r#"{"create_request":{"key":"YQ=="}}"#),
        ("Lock", "lock/lock", r#"{"name":"YQ==","lease":"2"}"#),
        ("Observe", "election/observe", r#"{"name":"Yg=="}"#),
    ] {
        let label = format!("grpc_method=\"{method}\"");
        let of_method = |name: &str| counted(port, name, &[&label]);
        let ended = |code: &str| {
            counted(port, "grpc_server_handled_total", &[&label, &format!("grpc_code=\"{code}\"")])
        };
        let before = of_method("grpc_server_handled_total");
        for (code, timeout) in [("Canceled", ""), ("DeadlineExceeded", "Grpc-Timeout: 300m\r\n")] {
            let head =
                format!("POST /v3/{path} HTTP/1.1\r\nHost: a\r\n{timeout}Content-Length: 1000\r\n\r\n");
            let received = of_method("grpc_server_msg_received_total");
            let clients: Vec<TcpStream> = (0..CALLS)
                .map(|_| {
                    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a member that serves");
                    stream.write_all(format!("{head}{body}").as_bytes()).expect("a member that reads");
                    stream
                })
                .collect();
            wait(&format!("{method}: the calls begin"), || {
                of_method("grpc_server_msg_received_total") >= received + CALLS as f64
            });
            if code == "Canceled" {
                drop(clients);
            }
            wait(&format!("{method}: the calls end with {code}"), || ended(code) == CALLS as f64);
        }
        let handled = of_method("grpc_server_handled_total") - before;
        assert_eq!(handled, 2.0 * CALLS as f64, "{method}: each is counted once");
        let started = of_method("grpc_server_started_total");
        assert_eq!(started, of_method("grpc_server_handled_total"), "{method}: none is left");
    }
    assert!(member.run("POST /v3/kv/range {\"key\":\"YQ==\"}").starts_with("200"));
}

/// More of them than the budget of answers holds at one time.
#[test]
fn clients_that_leave_in_the_middle_of_an_answer_give_its_memory_back() {
    let mut member = Member::started(&[]);
    let value = zeros(1 << 20);
    for key in 'a'..='h' {
        member.run(&format!(r#"POST /v3/kv/put {{"key":"{key}w==","value":"{value}"}}"#));
    }
    let everything = r#"{"key":"AA==","range_end":"AA=="}"#;
    let begin = |member: &mut Member| {
        let mut stream = member.send("POST", "/v3/kv/range", everything);
        let mut beginning = [0; 64 << 10];
        stream.read_exact(&mut beginning).expect("the beginning of an answer");
        (stream, beginning.to_vec())
    };
    for _ in 0..6 {
        drop(begin(&mut member));
    }
    let (mut slow, mut read) = begin(&mut member);
    let answer = member.answer("POST", "/v3/kv/range", everything);
    assert_eq!(answer.matches(&value).count(), 8, "while another does not read");
    slow.read_to_end(&mut read).expect("the rest");
    assert_eq!(String::from_utf8(read).expect("text").matches(&value).count(), 8);
}

/// A connection from an address of this machine.
fn dial_from(source: Ipv4Addr, port: u16) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddrV4::new(source, 0)).expect("an address of this machine");
    connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).expect("a member that serves");
    TcpStream::from(socket)
}

/// One address with many connections, and many with some. Each holds what it gets and goes on with nothing.
#[test]
fn connections_of_other_addresses_keep_no_caller_out() {
    let mut member = Member::started(&[]);
    let upgrade = format!("GET /v3/watch HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n", UPGRADE.join("\r\n"));
    let object = format!(
        "POST /v3/kv/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n{{\"key\":\"{}",
        "A".repeat(1 << 20)
    );
    let no_request = "POST /v3/watch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n";
    let large = format!(r#"POST /v3/kv/put {{"key":"YQ==","value":"{}"}}"#, "A".repeat(64 << 10));
    for (what, said, count) in [
        ("a head that does not end", "GET /version HTTP/1.1\r\n", 2400),
        ("a connection that is kept", "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n", 2400),
        ("a watch", no_request, 2400),
        ("a websocket", &upgrade, 200),
        ("an object that does not end", &object, 100),
    ] {
        for addresses in [1, 100] {
            let source =
                |number: u32| Ipv4Addr::from_bits(u32::from_be_bytes([127, 0, 1, 1]) + number % addresses);
            let hoard = |number| {
                let mut stream = dial_from(source(number), member.port);
                // The member may have closed it.
                drop(stream.write_all(said.as_bytes()));
                stream
            };
            let hoard: Vec<TcpStream> = (0..count).map(hoard).collect();
            for path in ["/health", "/livez", "/readyz", "/version"] {
                let answer = common::http(member.port, &format!("GET {path}"));
                assert!(answer.starts_with("HTTP/1.1 200"), "{what}, {addresses}: {path} {answer}");
            }
            let begun = Instant::now();
            for command in ["POST /v3/kv/range {\"key\":\"YQ==\"}", &large] {
                // Incomplete objects are given up within some seconds, before their time of 30 s has passed.
                let answer = loop {
                    let answer = member.run(command);
                    if answer.starts_with("200") || begun.elapsed().as_secs() >= 20 {
                        break answer;
                    }
                };
                assert!(answer.starts_with("200"), "{what}, {addresses}: {answer}");
            }
            member.headers.extend(UPGRADE.map(str::to_owned));
            let head = member.refusal("/v3/watch");
            assert!(head.starts_with("HTTP/1.1 101 "), "{what}, {addresses}: {head}");
            drop(hoard);
        }
    }
}

fn wait(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// etcd's waits for the end of the body, which a websocket does not have.
#[test]
fn a_websocket_has_the_answer_of_a_call_with_one_request_and_ends() {
    let mut member = Member::started(&["--cors=http://known:80"]);
    let mut socket = member.websocket("/v3/kv/put");
    socket.send(r#"{"key":"YQ==","value":"YQ=="}"#.into()).expect("a member that reads");
    assert!(socket.read().expect("an answer").to_text().expect("text").contains(r#""revision":"2""#));
    assert!(socket.read().expect("the end").is_close());
    // A message that is too large ends the websocket and nothing else.
    let mut socket = member.websocket("/v3/watch");
    // The member may end it before all of the message is written.
    drop(socket.send("x".repeat(2 << 20).into()));
    assert!(socket.read().map_or(true, |message| message.is_close()));
    member.headers = vec!["Origin: http://other".to_owned()];
    member.headers.extend(UPGRADE.map(str::to_owned));
    assert!(member.refusal("/v3/watch").starts_with("HTTP/1.1 403 "));
    member.headers = UPGRADE[..3].iter().map(|header| (*header).to_owned()).collect();
    assert!(member.refusal("/v3/watch").starts_with("HTTP/1.1 400 "), "without a key");
}

#[test]
fn websockets_are_bounded_and_a_place_is_free_when_one_is_closed() {
    let mut member = Member::started(&[]);
    // Those without a message are displaced.
    let silent: Vec<_> = (0..200).map(|_| member.websocket("/v3/watch")).collect();
    let watch = |_| {
        let mut socket = member.websocket("/v3/watch");
        socket.send(r#"{"create_request":{"key":"YQ=="}}"#.into()).expect("a member that reads");
        assert!(socket.read().expect("an answer").to_text().expect("text").contains("created"));
        socket
    };
    let mut open: Vec<_> = (0..128).map(watch).collect();
    drop(silent);
    member.headers.extend(UPGRADE.map(str::to_owned));
    assert!(member.refusal("/v3/watch").starts_with("HTTP/1.1 429 "));
    drop(open.pop());
    let deadline = Instant::now() + PATIENCE;
    loop {
        member.headers.extend(UPGRADE.map(str::to_owned));
        match member.refusal("/v3/watch") {
            head if head.starts_with("HTTP/1.1 101 ") => break,
            head => assert!(Instant::now() < deadline, "{head}"),
        }
    }
}

#[test]
fn the_gateway_can_be_turned_off() {
    let mut member = Member::started(&["--enable-grpc-gateway=false"]);
    assert_eq!(member.run("POST /v3/kv/range {}"), "404 404 page not found");
}

#[test]
fn origins_and_hosts_are_let_in_by_the_flags() {
    let mut member =
        Member::started(&["--cors=https://a.example:443", "--host-whitelist=localhost,example.org"]);
    let cors = "access-control-allow-origin: https://a.example:443";
    for (host, origin, code, is_allowed) in [
        ("example.org:2379", "https://a.example:443", "200", true),
        ("localhost", "https://b.example:443", "200", false),
        ("127.0.0.1", "https://a.example:443", "421", false),
    ] {
        member.headers.push(format!("Origin: {origin}"));
        member.host = host.to_owned();
        let answer = shown(&member.answer("GET", "/health", ""), true);
        assert_eq!((&answer[..3], answer.contains(cors)), (code, is_allowed), "{host} {origin}: {answer}");
    }
}

/// More than the gateway shares out: each connection may always make a call.
#[test]
fn calls_whose_bodies_never_come_keep_no_call_and_no_probe_out() {
    let mut member = Member::started(&[]);
    let port = member.port;
    let stick = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a member that serves");
        let head = "POST /v3/kv/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n";
        stream.write_all(head.as_bytes()).expect("a member that serves");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream
    };
    let stuck: Vec<TcpStream> = (0..2200).map(|_| stick()).collect();
    let answer = member.run("POST /v3/kv/range {\"key\":\"YQ==\"}");
    assert!(answer.starts_with("200"), "{answer}");
    for path in ["/health", "/metrics", "/readyz", "/version"] {
        assert!(common::http(member.port, &format!("GET {path}")).starts_with("HTTP/1.1 200"), "{path}");
    }
    drop(stuck);
}
