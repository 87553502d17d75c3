//! Listeners other than the client port: metrics and health alone, HTTP alone.

use crate::common;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use api::etcdserverpb::{
    AuthEnableRequest, AuthUserAddRequest, AuthUserGrantRoleRequest, AuthenticateRequest,
};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::common::{Cluster, PATIENCE, http};

fn listening(flag: &str, port: u16) -> String {
    format!("--{flag}=http://127.0.0.1:{port}")
}

/// Status of one request, and its body.
fn ask(port: u16, request: &str) -> (String, String) {
    let answer = http(port, request);
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    (head.split(' ').nth(1).unwrap_or_default().to_owned(), body.to_owned())
}

#[test]
fn a_metrics_port_serves_metrics_and_health_alone_also_before_the_member_is_ready() {
    let mut cluster = Cluster::new(2);
    let port = testkit::port();
    cluster.members[0].extra = vec![listening("listen-metrics-urls", port)];
    cluster.members[0].launch();
    let member = &cluster.members[0];
    member.running().wait_for("\"msg\":\"serving metrics\"");
    // The other member is missing, so there is no leader.
    assert_eq!(ask(port, "GET /livez"), ("200".to_owned(), "ok\n".to_owned()));
    let (status, body) = ask(port, "GET /health");
    assert!(status == "503" && body.contains("RAFT NO LEADER"), "{status} {body}");
    cluster.members[1].launch();
    cluster.members.iter().for_each(common::Member::wait_ready);
    for (request, status, body) in [
        ("GET /health", "200", "{\"health\":\"true\",\"reason\":\"\"}"),
        ("GET /livez", "200", "ok\n"),
        ("GET /readyz", "200", "ok\n"),
        ("GET /readyz/linearizable_read", "200", "ok\n"),
        ("GET /version", "404", "404 page not found\n"),
        ("GET /debug/vars", "404", "404 page not found\n"),
        ("POST /v3/kv/range", "404", "404 page not found\n"),
        ("POST /health", "405", "Method Not Allowed\n"),
        ("OPTIONS /health", "405", "Method Not Allowed\n"),
    ] {
        assert_eq!(ask(port, request), (status.to_owned(), body.to_owned()), "{request}");
    }
    assert!(ask(port, "GET /metrics").1.contains("etcd_server_has_leader 1"));
    assert!(!http(port, "GET /health").contains("access-control"), "for probes, not for scripts");
}

/// More than the listener has places, of an address that is not the probe's. A socket takes 2 KiB of an
/// answer.
#[test]
fn readers_that_read_nothing_keep_no_probe_out_of_the_metrics_port() {
    let port = testkit::port();
    let _cluster = Cluster::started_with(1, &[&listening("listen-metrics-urls", port)]);
    let reader = |_| {
        let reader = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        set_socket_recv_buffer_size(&reader, 1).expect("a socket");
        bind(&reader, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 1, 1), 0))
            .expect("an address of this machine");
        connect(&reader, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).expect("a member that serves");
        let mut reader = TcpStream::from(reader);
        drop(reader.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        reader
    };
    let mut readers: Vec<TcpStream> = Vec::new();
    for round in 0..10 {
        readers.extend((0..40).map(reader));
        let begun = Instant::now();
        assert_eq!(ask(port, "GET /health").0, "200");
        assert!(begun.elapsed() < Duration::from_secs(10), "{round}: {:?}", begun.elapsed());
    }
}

/// More than the listener has places, each of another address, on a member of three that has lost the others.
#[test]
fn probes_that_wait_for_a_quorum_keep_no_other_probe_out() {
    let mut cluster = Cluster::new(3);
    let port = testkit::port();
    cluster.members[0].extra = vec![listening("listen-metrics-urls", port)];
    cluster.start();
    cluster.members[1].kill();
    cluster.members[2].kill();
    let waiting = |number| {
        let probe = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&probe, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 1, number), 0)).expect("an address");
        connect(&probe, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).expect("a member that serves");
        let mut probe = TcpStream::from(probe);
        drop(probe.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        probe
    };
    let mut held = Vec::new();
    for number in 1..100 {
        held.push(waiting(number));
        assert_eq!(ask(port, "GET /livez").0, "200", "{number}");
    }
    // The last ones are answered together, with the one evaluation that they have waited for.
    let begun = Instant::now();
    for mut probe in held.into_iter().rev().take(8) {
        probe.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut answer = [0; 12];
        probe.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 503");
    }
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn http_on_a_port_of_its_own_leaves_grpc_alone_on_the_client_port() {
    let port = testkit::port();
    let cluster = Cluster::started_with(1, &[&listening("listen-client-http-urls", port)]);
    let member = &cluster.members[0];
    member.put("a", "1").await;
    assert_eq!(ask(port, "GET /health").0, "200");
    assert_eq!(ask(port, "GET /version").0, "200");
    assert_eq!(ask(port, "GET /v3/kv/range").0, "501");
    for traffic in ["grpc", "http"] {
        member.running().wait_for(&format!("\"traffic\":\"{traffic}\""));
    }
    // Neither port answers what the other serves.
    for (port, greeting) in
        [(member.client_port, &b"GET /health HTTP/1.1\r\n\r\n"[..]), (port, b"PRI * HTTP/2.0\r\n")]
    {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(greeting).unwrap();
        let mut answer = Vec::new();
        // Closed, with a reset where bytes were left unread.
        let _reset = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
}

#[tokio::test]
async fn a_slow_call_is_logged_with_the_stage_that_took_the_time() {
    let cluster = Cluster::started_with(1, &["--warning-unary-request-duration=1ns"]);
    let member = &cluster.members[0];
    member.put("a", "1").await;
    member.get("a").await;
    member.leader().await;
    for (method, stage) in [
        ("etcdserverpb.KV/Put", "\"stages\":\"replication"),
        ("etcdserverpb.KV/Range", "\"stages\":\"read index"),
        ("etcdserverpb.Maintenance/Status", "\"stages\":\"other"),
    ] {
        member.running().wait_for(&format!("\"response-type\":\"/{method}\""));
        let said = member.running().said();
        let line = said.lines().find(|line| line.contains(method)).unwrap();
        assert!(line.contains("\"msg\":\"request stats\"") && line.contains(stage), "{line}");
    }
}

/// The JSON at `/ui/status.json`.
fn figures(port: u16) -> serde_json::Value {
    let (status, body) = ask(port, "GET /ui/status.json");
    assert_eq!(status, "200", "{body}");
    serde_json::from_str(&body).unwrap()
}

#[test]
fn any_member_shows_the_figures_of_all_and_since_when_one_does_not_answer() {
    let mut cluster = Cluster::new(3);
    let port = testkit::port();
    cluster.members[0].extra = vec![listening("listen-metrics-urls", port)];
    cluster.start();
    let others =
        || -> serde_json::Value { serde_json::from_str(&ask(port, "GET /ui/cluster.json").1).unwrap() };
    let until = |is_so: &dyn Fn(&serde_json::Value, &serde_json::Value) -> bool| {
        let deadline = std::time::Instant::now() + PATIENCE;
        loop {
            let (own, others) = (figures(port), others());
            if is_so(&own, &others) {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "{own}\n{others}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    };
    until(&|_, others| {
        let mut names: Vec<&str> =
            others.as_object().unwrap().values().filter_map(|it| it["name"].as_str()).collect();
        names.sort_unstable();
        names == ["m1", "m2"]
    });
    cluster.members[2].kill();
    until(&|own, others| {
        let is_down =
            own["members"].as_array().unwrap().iter().any(|it| it["name"] == "m2" && it["down_s"].is_u64());
        let text = own["health"]["text"].as_str().unwrap();
        let is_said = text.contains("m2") && text.contains("; losing one more member loses quorum");
        is_down && is_said && others.as_object().unwrap().values().any(serde_json::Value::is_null)
    });
}

/// A token changes nothing: who reaches the listener sees what its operator has it show.
#[tokio::test]
async fn with_users_no_page_names_keys_or_clients_but_that_of_a_member_with_metrics_top() {
    let mut cluster = Cluster::new(2);
    let ports = testkit::ports(2);
    for (member, port) in cluster.members.iter_mut().zip(&ports) {
        member.extra = vec![listening("listen-metrics-urls", *port)];
        // Every call is one of the slow calls.
        member.extra.push("--warning-unary-request-duration=1ns".to_owned());
    }
    cluster.members[1].extra.push("--metrics-top=5".to_owned());
    cluster.start();
    let other = format!("/ui/history.json?member={:x}", cluster.members[1].id().await);
    let mut auth = cluster.members[0].client().await.auth();
    for name in ["root", "reader"] {
        let add = AuthUserAddRequest { name: name.into(), password: "p".into(), ..Default::default() };
        auth.user_add(add).await.unwrap();
    }
    auth.user_grant_role(AuthUserGrantRoleRequest { user: "root".into(), role: "root".into() })
        .await
        .unwrap();
    auth.auth_enable(AuthEnableRequest {}).await.unwrap();
    let mut tokens = vec![String::new()];
    for name in ["reader", "root"] {
        let asked = AuthenticateRequest { name: name.into(), password: "p".into() };
        tokens.push(auth.authenticate(asked).await.unwrap().into_inner().token);
    }
    let ask = |port, path: &str, token: &str| {
        let fields = format!("Authorization: {token}\r\nToken: {token}");
        self::ask(port, &format!("GET {path} HTTP/1.1\r\n{fields}\r\nRest:"))
    };
    let deadline = Instant::now() + PATIENCE;
    while !ask(ports[1], "/ui/status.json", "").1.contains("secret/") {
        assert!(Instant::now() < deadline, "the member with --metrics-top shows no prefix");
        for (number, member) in (0..200).zip(cluster.members.iter().cycle()) {
            let mut put = tonic::Request::new(common::put(&format!("secret/{number}"), "v"));
            put.metadata_mut().insert("token", tokens[2].parse().unwrap());
            member.kv().await.put(put).await.unwrap();
        }
    }
    assert!(ask(ports[1], "/metrics", "").1.contains("secret/"));
    for token in &tokens {
        for path in ["/ui/", "/ui/status.json", "/ui/cluster.json", "/ui/history.json", &other, "/metrics"] {
            let (status, body) = ask(ports[0], path, token);
            assert_eq!(status, "200", "{path}");
            assert!(!body.contains("secret") && !body.contains("127.0.0.1"), "{path}: {body}");
            let (status, body) = ask(cluster.members[0].client_port, path, token);
            assert_eq!(status == "200", path == "/metrics", "{path}");
            assert!(!body.contains("secret") && !body.contains("127.0.0.1"), "{path}: {body}");
        }
    }
    assert!(ask(ports[0], "/ui/status.json", "").1.contains("\"slow_calls\":[{"));
}

#[tokio::test]
async fn the_status_page_and_its_figures_are_on_the_metrics_port_alone() {
    let port = testkit::port();
    let cluster = Cluster::started_with(1, &[&listening("listen-metrics-urls", port), "--metrics-top=5"]);
    let member = &cluster.members[0];
    let page = http(port, "GET /ui/");
    let (head, _) = page.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    for wanted in
        ["content-security-policy: default-src 'none'; script-src 'sha256-", "x-frame-options: DENY"]
    {
        assert!(head.contains(wanted), "{head}");
    }
    for path in ["/", "/ui"] {
        assert!(http(port, &format!("GET {path}")).contains("\r\nlocation: /ui/\r\n"), "{path}");
    }
    // What a cluster of Kubernetes writes.
    for figure in ["puts", "txns", "deletes", "ranges", "events"] {
        assert!(page.contains(&format!("[\"{figure}\", ")), "{figure} is not plotted");
    }
    assert_eq!(ask(port, "POST /ui/").0, "405");
    assert_eq!(ask(member.client_port, "GET /ui/status.json").0, "404", "not where clients are");
    for path in ["/ui", "/ui/"] {
        let (status, body) = ask(member.client_port, &format!("GET {path}"));
        assert!(
            status == "404" && body.contains("/ui/ on the listeners of --listen-metrics-urls"),
            "{path}: {body}"
        );
    }

    let mut kv = member.kv().await;
    let deadline = std::time::Instant::now() + PATIENCE;
    let figures = loop {
        for number in 0..500 {
            kv.put(common::put(&format!("app/<b>/{number}"), "v")).await.unwrap();
        }
        let figures = figures(port);
        if figures["top"]["prefixes"][0]["name"] == "app/<b>/" {
            break figures;
        }
        assert!(std::time::Instant::now() < deadline, "{figures}");
    };
    assert_eq!(figures["top"]["clients"][0]["name"], "127.0.0.1");
    // The sentence is in the page itself, for readers without scripts.
    let health = figures["health"]["text"].as_str().unwrap();
    assert!(
        !health.is_empty() && page.contains("id=\"health\" role=\"status\">") && !page.contains(">Loading<")
    );
    let (_, history) = ask(port, "GET /ui/history.json");
    let history: serde_json::Value = serde_json::from_str(&history).unwrap();
    assert_eq!((&history["fine"]["every_s"], &history["coarse"]["every_s"]), (&5.into(), &180.into()));
    assert_eq!(ask(port, "GET /ui/cluster.json"), ("200".to_owned(), "{}".to_owned()));
    assert!(ask(port, "GET /ui/troubleshoot.md").1.contains("\n## Members\n"));
    assert!(figures["top"]["prefixes"][0]["keys"].as_f64().unwrap() > 0.0);
    assert_eq!((&figures["members"][0]["is_leader"], &figures["role"]), (&true.into(), &"leader".into()));
    let put =
        figures["calls"].as_array().unwrap().iter().find(|call| call["method"] == "etcdserverpb.KV/Put");
    assert!(put.unwrap()["ended"].as_u64().unwrap() >= 500);
    assert!(
        figures["space"]["keys"] == 500 && figures["counters"]["puts"].as_u64() >= Some(500),
        "{figures}"
    );
    let metrics = ask(port, "GET /metrics").1;
    for wanted in [
        "kv_server_top_prefix_keys_per_second{prefix=\"app/<b>/\"} ",
        "kv_server_top_client_requests_per_second{client=\"127.0.0.1\"} ",
        "kv_server_call_seconds_count{grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} ",
    ] {
        assert!(metrics.contains(wanted), "{wanted}\n{metrics}");
    }
}

const PAGES: [&str; 4] = ["", "status.json", "cluster.json", "history.json"];

#[test]
fn names_of_keys_and_clients_are_shown_only_if_that_was_asked_for() {
    let port = testkit::port();
    let _cluster = Cluster::started_with(1, &[&listening("listen-metrics-urls", port)]);
    assert!(figures(port)["top"].is_null());
    assert!(!ask(port, "GET /metrics").1.contains("kv_server_top"));
}

/// One real member of nine. Four peers take connections and are silent, four send what is no HTTP.
#[test]
fn the_page_is_answered_while_members_hang_or_send_garbage() {
    let mut cluster = Cluster::new(9);
    let port = testkit::port();
    cluster.members[0].extra = vec![listening("listen-metrics-urls", port)];
    for (at, member) in cluster.members.iter().enumerate().skip(1) {
        let peer = TcpListener::bind(("127.0.0.1", member.peer_port)).unwrap();
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for mut stream in peer.incoming().flatten() {
                if at % 2 == 0 {
                    let _gone = stream.write_all(&[0xff; 4096]);
                } else {
                    held.push(stream);
                }
            }
        });
    }
    cluster.members[0].launch();
    cluster.members[0].running().wait_for("\"msg\":\"serving metrics\"");
    let others: serde_json::Value = serde_json::from_str(&ask(port, "GET /ui/cluster.json").1).unwrap();
    let others = others.as_object().unwrap();
    assert!(others.len() == 8 && others.values().all(serde_json::Value::is_null), "{others:?}");
    let text = figures(port)["health"]["text"].as_str().unwrap().to_owned();
    assert!(text.starts_with("No quorum: 1/9 voters up, 5 required; unreachable: "), "{text}");
    let silent = others.keys().next().unwrap();
    for member in [silent.as_str(), "1", "", "zz", "..", "%00", "ffffffffffffffffff"] {
        assert_eq!(ask(port, &format!("GET /ui/history.json?member={member}")).0, "404", "{member}");
    }
    assert!(ask(port, "GET /ui/").1.contains("No quorum"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_readers_of_the_page_keep_no_client_waiting() {
    let port = testkit::port();
    let cluster = Cluster::started_with(1, &[&listening("listen-metrics-urls", port)]);
    let readers: Vec<_> = (0..20)
        .map(|reader| {
            std::thread::spawn(move || {
                (0..50).filter(|_| ask(port, &format!("GET /ui/{}", PAGES[reader % 4])).0 == "200").count()
            })
        })
        .collect();
    for number in 0..20 {
        cluster.members[0].put(&format!("k{number}"), "v").await;
    }
    let answered: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    assert_eq!(answered, 1000);
    let deadline = Instant::now() + PATIENCE;
    while figures(port)["counters"]["puts"] != 20 {
        assert!(Instant::now() < deadline, "the figures are older than a second");
    }
}

/// Status of a request that names `host`.
fn status_for(port: u16, host: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[test]
fn the_metrics_port_answers_no_page_whose_name_was_made_to_point_at_it() {
    let port = testkit::port();
    let _cluster =
        Cluster::started_with(1, &[&listening("listen-metrics-urls", port), "--host-whitelist=a.example"]);
    for (host, status) in [
        ("a.example:2381", "200"),
        ("localhost:2381", "200"),
        ("127.0.0.1:2381", "200"),
        ("[::1]:2381", "200"),
        ("10.1.2.3", "200"),
        ("page.example:2381", "421"),
        ("127.0.0.1.page.example", "421"),
    ] {
        for path in ["/metrics", "/ui/status.json", "/health", "/nothing"] {
            let found = status_for(port, host, path);
            let wanted = if (path, status) == ("/nothing", "200") { "404" } else { status };
            assert_eq!(found, wanted, "{host} {path}");
        }
    }
}
