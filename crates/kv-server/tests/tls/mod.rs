//! TLS of running members: who is admitted, what a change of files does, and what half-open handshakes cost.

mod authority;
mod caller;
mod names;
mod peer_servers;
mod tools;

use crate::common;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::common::{Cluster, Member, PATIENCE, put};
use authority::{Authority, Files, GOOD, Wish};
use caller::Outcome::{self, Refused, Served};
use caller::{BOTH, Caller, becomes};
use tokio_rustls::rustls::{HandshakeKind, version};
use tonic::Code;

const EXPIRED: Wish = Wish { is_expired: true, ..GOOD };
const OTHER_NAMES: Wish =
    Wish { common_name: "other", names: &["127.9.9.9", "other.test"], is_expired: false };
const OTHER_COMMON_NAME: Wish = Wish { common_name: "other", ..GOOD };

/// Flags that come after the member's own override them.
fn secure_clients(member: &mut Member, flags: &[&str]) {
    let url = format!("https://127.0.0.1:{}", member.client_port);
    member.extra = vec![format!("--listen-client-urls={url}"), format!("--advertise-client-urls={url}")];
    member.extra.extend(flags.iter().map(|flag| (*flag).to_owned()));
}

fn secure_peers(members: &mut [Member], flags: &[String]) {
    let url = |member: &Member| format!("https://127.0.0.1:{}", member.peer_port);
    let cluster: Vec<String> =
        members.iter().map(|member| format!("{}={}", member.name, url(member))).collect();
    for member in members {
        let own = url(member);
        member.extra = vec![
            format!("--listen-peer-urls={own}"),
            format!("--initial-advertise-peer-urls={own}"),
            format!("--initial-cluster={}", cluster.join(",")),
        ];
        member.extra.extend(flags.iter().cloned());
    }
}

fn in_files(files: &Files, flags: &[(&str, &str)]) -> Vec<String> {
    flags.iter().map(|(flag, file)| format!("--{flag}={}", files.path(file).display())).collect()
}

fn as_strs(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// A running member, and what its clients show.
fn start_one(mut cluster: Cluster) -> Cluster {
    cluster.start();
    cluster
}

#[test]
fn a_port_with_a_certificate_admits_who_trusts_it_in_both_versions() {
    let (authority, files) = (Authority::new("a"), Files::new());
    files.write_pair("server", &authority.issue(GOOD));
    let flags = in_files(&files, &[("cert-file", "server.pem"), ("key-file", "server.key")]);
    for (more, tls12, tls13) in [
        (vec![], Served, Served),
        (vec!["--tls-min-version=TLS1.3"], Refused, Served),
        (vec!["--tls-max-version=TLS1.2"], Served, Refused),
        (vec!["--cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"], Served, Served),
        (vec!["--cipher-suites=TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"], Refused, Served),
    ] {
        let mut cluster = Cluster::new(1);
        secure_clients(&mut cluster.members[0], &[as_strs(&flags), more.clone()].concat());
        let cluster = start_one(cluster);
        let port = cluster.members[0].client_port;
        let call = |versions| Caller::new(&authority, None, versions).health(port);
        assert_eq!((call(&[&version::TLS12]), call(&[&version::TLS13])), (tls12, tls13), "{more:?}");
        tools::check_clients(port, &files, &authority, &[("server only", None, Served)]);
        tools::check_clients(port, &files, &Authority::new("b"), &[("another authority", None, Refused)]);
        assert_eq!(Caller::new(&Authority::new("b"), None, BOTH).health(port), Refused, "{more:?}");
        let mut plain = TcpStream::connect(("127.0.0.1", port)).unwrap();
        plain.set_read_timeout(Some(PATIENCE)).unwrap();
        std::io::Write::write_all(&mut plain, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _reset_or_alert = plain.read_to_end(&mut answer);
        assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1"), "{more:?}");
    }
}

#[test]
fn the_client_port_asks_for_a_certificate_and_judges_it() {
    let (authority, foreign, files) = (Authority::new("a"), Authority::new("b"), Files::new());
    let revoked = authority.issue(GOOD);
    files.write_pair("server", &authority.issue(GOOD));
    files.write("ca.pem", &authority.pem);
    files.write("crl.pem", &authority.revoke(&[&revoked]));
    let mut flags = in_files(
        &files,
        &[
            ("cert-file", "server.pem"),
            ("key-file", "server.key"),
            ("trusted-ca-file", "ca.pem"),
            ("client-crl-file", "crl.pem"),
        ],
    );
    flags.push("--client-cert-auth".to_owned());
    flags.push("--client-cert-allowed-hostname=absent.test,localhost".to_owned());
    let mut cluster = Cluster::new(1);
    secure_clients(&mut cluster.members[0], &as_strs(&flags));
    let cluster = start_one(cluster);
    let port = cluster.members[0].client_port;
    let (good, expired) = (authority.issue(GOOD), authority.issue(EXPIRED));
    let (other, elsewhere) = (authority.issue(OTHER_COMMON_NAME), authority.issue(OTHER_NAMES));
    let strange = foreign.issue(GOOD);
    let cells = [
        ("none", None, Refused),
        ("mutual", Some(&good), Served),
        ("wrong CA", Some(&strange), Refused),
        ("expired", Some(&expired), Refused),
        ("revoked", Some(&revoked), Refused),
        ("another common name", Some(&other), Served),
        ("wrong hostname", Some(&elsewhere), Refused),
    ];
    for (cell, shown, wanted) in &cells {
        for versions in [&[&version::TLS12][..], &[&version::TLS13]] {
            let got = Caller::new(&authority, *shown, versions).health(port);
            assert_eq!(got, *wanted, "{cell} {versions:?}");
        }
    }
    tools::check_clients(port, &files, &authority, &cells);
}

#[test]
fn failed_handshakes_say_who_and_why_and_probes_say_nothing() {
    let (authority, foreign, files) = (Authority::new("a"), Authority::new("b"), Files::new());
    files.write_pair("server", &authority.issue(GOOD));
    files.write("ca.pem", &authority.pem);
    let mut flags = in_files(
        &files,
        &[("cert-file", "server.pem"), ("key-file", "server.key"), ("trusted-ca-file", "ca.pem")],
    );
    flags.push("--client-cert-auth".to_owned());
    let mut cluster = Cluster::new(1);
    secure_clients(&mut cluster.members[0], &as_strs(&flags));
    let cluster = start_one(cluster);
    let (port, process) = (cluster.members[0].client_port, cluster.members[0].running());
    for _ in 0..3 {
        drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
    }
    let refused = |shown| assert_eq!(Caller::new(&authority, shown, BOTH).health(port), Refused);
    let (expired, strange) = (authority.issue(EXPIRED), foreign.issue(GOOD));
    let cases: [(&str, &dyn Fn()); 5] = [
        ("the client shows no certificate, and this port requires one", &|| refused(None)),
        ("the certificate has expired: it was valid until 20", &|| refused(Some(&expired))),
        ("no trusted authority has issued the certificate", &|| refused(Some(&strange))),
        ("the other side does not accept the certificate that this member shows", &|| {
            assert_eq!(Caller::new(&foreign, None, BOTH).health(port), Refused);
        }),
        ("the server does not use TLS, perhaps plain HTTP", &|| {
            let mut plain = TcpStream::connect(("127.0.0.1", port)).unwrap();
            plain.write_all(b"GET /health HTTP/1.1\r\n\r\n").unwrap();
            let _alert = plain.read_to_end(&mut Vec::new());
        }),
    ];
    for (at, (wanted, refuse)) in cases.iter().enumerate() {
        // At most one line is logged each second.
        std::thread::sleep(Duration::from_millis(1100));
        refuse();
        process.wait_for(wanted);
        let said = process.said();
        let lines: Vec<&str> =
            said.lines().filter(|line| line.contains("rejected connection on client endpoint")).collect();
        assert_eq!(lines.len(), at + 1, "one line each, and none of a probe: {said}");
        assert!(lines[at].contains(r#""remote-addr":"127.0.0.1:"#) && lines[at].contains(r#""unlogged":0"#));
    }
}

#[test]
fn certificates_that_end_soon_are_warned_of_and_shown_as_a_metric() {
    let (authority, files) = (Authority::new("a"), Files::new());
    files.write_pair("server", &authority.issue(EXPIRED));
    let flags = in_files(&files, &[("cert-file", "server.pem"), ("key-file", "server.key")]);
    let mut cluster = Cluster::new(1);
    secure_clients(&mut cluster.members[0], &as_strs(&flags));
    let probes = testkit::ports(1)[0];
    cluster.members[0].extra.push(format!("--listen-metrics-urls=http://127.0.0.1:{probes}"));
    let cluster = start_one(cluster);
    let process = cluster.members[0].running();
    process.wait_for("certificate has expired; replace the files");
    let end = || {
        let metrics = common::http(probes, "GET /metrics");
        let start = "kv_server_certificate_not_after_timestamp_seconds{port=\"client\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(start).map(str::to_owned));
        line.unwrap_or_else(|| panic!("{metrics}")).parse::<u64>().unwrap()
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert!((now - 7200..now).contains(&end()), "the hour before");
    files.write_pair("server", &authority.issue(GOOD));
    process.wait_for("certificate expires within 14 days");
    assert!((now..now + 7200).contains(&end()), "the next hour");
}

#[test]
fn clients_refuse_a_member_with_a_bad_certificate_and_it_serves_once_it_has_a_good_one() {
    let (authority, files) = (Authority::new("a"), Files::new());
    // It starts, as etcd does: a certificate may be renewed while it runs.
    files.write_pair("server", &authority.issue(EXPIRED));
    let flags = in_files(&files, &[("cert-file", "server.pem"), ("key-file", "server.key")]);
    let mut cluster = Cluster::new(1);
    secure_clients(&mut cluster.members[0], &as_strs(&flags));
    let cluster = start_one(cluster);
    let port = cluster.members[0].client_port;
    let call = || Caller::new(&authority, None, BOTH).health(port);
    let check = |cell, wanted| tools::check_clients(port, &files, &authority, &[(cell, None, wanted)]);
    assert_eq!(call(), Refused);
    check("expired", Refused);
    for (cell, wish, wanted) in [
        ("renewed live", GOOD, Served),
        ("wrong names", OTHER_NAMES, Refused),
        // Clients have no list of names of members.
        ("another common name", OTHER_COMMON_NAME, Served),
    ] {
        files.write_pair("server", &authority.issue(wish));
        becomes(&wanted, cell, call);
        check(cell, wanted);
    }
}

#[test]
fn a_file_names_the_common_names_of_clients() {
    let (authority, files) = (Authority::new("a"), Files::new());
    files.write_pair("server", &authority.issue(GOOD));
    files.write("ca.pem", &authority.pem);
    let (ports, path) = (testkit::ports(2), |name: &str| files.path(name).display().to_string());
    let text = format!(
        "data-dir: {data}\n\
         listen-client-urls: https://127.0.0.1:{client}\n\
         advertise-client-urls: https://127.0.0.1:{client}\n\
         listen-peer-urls: http://127.0.0.1:{peer}\n\
         client-transport-security:\n  cert-file: {cert}\n  key-file: {key}\n  trusted-ca-file: {ca}\n  \
         client-cert-auth: true\n  allowed-cn: [x, good]\n",
        data = path("data"),
        client = ports[0],
        peer = ports[1],
        cert = path("server.pem"),
        key = path("server.key"),
        ca = path("ca.pem"),
    );
    let file = files.write("member.yml", &text);
    let member = common::start(&[&format!("--config-file={file}")]);
    member.wait_for(common::READY);
    let (good, other) = (authority.issue(GOOD), authority.issue(OTHER_COMMON_NAME));
    let cells = [("allowed common name", Some(&good), Served), ("wrong common name", Some(&other), Refused)];
    for (cell, shown, wanted) in &cells {
        assert_eq!(Caller::new(&authority, *shown, BOTH).health(ports[0]), *wanted, "{cell}");
    }
    tools::check_clients(ports[0], &files, &authority, &cells);
}

#[test]
fn files_that_change_are_used_and_broken_ones_are_not() {
    let (old, new, files) = (Authority::new("old"), Authority::new("new"), Files::new());
    let client = old.issue(GOOD);
    files.write_pair("server", &old.issue(GOOD));
    files.write("ca.pem", &old.pem);
    files.write("crl.pem", &old.revoke(&[]));
    let flags = in_files(
        &files,
        &[
            ("cert-file", "server.pem"),
            ("key-file", "server.key"),
            ("trusted-ca-file", "ca.pem"),
            ("client-crl-file", "crl.pem"),
        ],
    );
    let mut cluster = Cluster::new(1);
    secure_clients(&mut cluster.members[0], &as_strs(&flags));
    let cluster = start_one(cluster);
    let port = cluster.members[0].client_port;
    let caller = Caller::new(&old, Some(&client), BOTH);
    assert_eq!(caller.health_and_kind(port), (Served, Some(HandshakeKind::Full)));
    let (outcome, kind) = caller.health_and_kind(port);
    assert_eq!((outcome, kind), (Served, Some(HandshakeKind::Resumed)), "a client that comes back");

    for (name, what) in [("server.pem", "garbage"), ("ca.pem", ""), ("crl.pem", "garbage")] {
        let good = std::fs::read_to_string(files.path(name)).unwrap();
        files.write(name, what);
        let path = files.path(name).display().to_string();
        let process = cluster.members[0].running();
        process.wait_for(&format!("{path}: "));
        assert!(process.said().contains("certificate reload failed; keeping the current certificates"));
        assert_eq!(caller.health(port), Served, "{name} is broken");
        files.write(name, &good);
    }

    files.write_pair("server", &new.issue(GOOD));
    becomes(&Served, "the server's certificate is rotated", || {
        Caller::new(&new, Some(&client), BOTH).health(port)
    });
    tools::check_clients(port, &files, &new, &[("rotated live", Some(&client), Served)]);
    tools::check_clients(port, &files, &old, &[("the old authority", Some(&client), Refused)]);
    files.write("crl.pem", &old.revoke(&[&client]));
    let resuming = Caller::new(&new, Some(&client), BOTH);
    becomes(&Refused, "the client is revoked", || resuming.health(port));
    files.write("crl.pem", &old.revoke(&[]));
    becomes(&Served, "the client is no longer revoked", || resuming.health(port));
    files.write("ca.pem", &new.pem);
    becomes(&Refused, "the CA is rotated", || resuming.health(port));
    let of_new = new.issue(GOOD);
    assert_eq!(Caller::new(&new, Some(&of_new), BOTH).health(port), Served, "a client of the new CA");
    let cells = [("CA rotated live", Some(&of_new), Served), ("the old CA", Some(&client), Refused)];
    tools::check_clients(port, &files, &new, &cells);
}

#[test]
fn the_peer_port_judges_certificates_before_it_reads() {
    let (authority, foreign, files) = (Authority::new("a"), Authority::new("b"), Files::new());
    let revoked = authority.issue(GOOD);
    let other_address = Wish { names: &["127.9.9.9"], ..GOOD };
    files.write_pair("peer", &authority.issue(GOOD));
    files.write("ca.pem", &authority.pem);
    files.write("crl.pem", &authority.revoke(&[&revoked]));
    let flags = in_files(
        &files,
        &[
            ("peer-cert-file", "peer.pem"),
            ("peer-key-file", "peer.key"),
            ("peer-trusted-ca-file", "ca.pem"),
            ("peer-crl-file", "crl.pem"),
        ],
    );
    // Cells: none, mutual, wrong CA, expired, revoked, wrong common name, wrong names, wrong address only.
    for (more, wanted) in [
        ("--peer-client-cert-auth", [Refused, Served, Refused, Refused, Refused, Served, Refused, Refused]),
        (
            "--peer-cert-allowed-cn=x,good",
            [Refused, Served, Refused, Refused, Refused, Refused, Refused, Refused],
        ),
        (
            "--peer-skip-client-san-verification",
            [Refused, Served, Refused, Refused, Refused, Served, Served, Served],
        ),
        (
            "--peer-cert-allowed-hostname=localhost",
            [Refused, Served, Refused, Refused, Refused, Served, Refused, Refused],
        ),
    ] {
        let mut cluster = Cluster::new(1);
        secure_peers(&mut cluster.members, &[flags.clone(), vec![more.to_owned()]].concat());
        let cluster = start_one(cluster);
        let port = cluster.members[0].peer_port;
        let shown = [
            None,
            Some(authority.issue(GOOD)),
            Some(foreign.issue(GOOD)),
            Some(authority.issue(EXPIRED)),
            Some(Authority::issue(&authority, GOOD)),
            Some(authority.issue(OTHER_COMMON_NAME)),
            Some(authority.issue(OTHER_NAMES)),
            Some(authority.issue(other_address)),
        ];
        let got: Vec<Outcome> = shown
            .iter()
            .enumerate()
            .map(|(at, shown)| {
                let shown = if at == 4 { Some(&revoked) } else { shown.as_ref() };
                Caller::new(&authority, shown, BOTH).greet_peer(port)
            })
            .collect();
        assert_eq!(got, wanted, "{more}");
        cluster.members[0].running().wait_for("rejected connection on peer endpoint");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_replicate_inside_tls_and_take_new_certificates() {
    let (old, new, files) = (Authority::new("old"), Authority::new("new"), Files::new());
    files.write_pair("peer", &old.issue(GOOD));
    files.write("ca.pem", &old.pem);
    let flags = in_files(
        &files,
        &[("peer-cert-file", "peer.pem"), ("peer-key-file", "peer.key"), ("peer-trusted-ca-file", "ca.pem")],
    );
    let mut cluster = Cluster::new(3);
    secure_peers(&mut cluster.members, &flags);
    cluster.start();
    cluster.members[0].put("a", "1").await;
    // First both authorities are trusted, then the certificates change, then the old authority goes.
    let steps =
        [("ca.pem", format!("{}{}", old.pem, new.pem)), ("peer", String::new()), ("ca.pem", new.pem.clone())];
    for (step, (name, text)) in steps.iter().enumerate() {
        let issued = new.issue(GOOD);
        if *name == "peer" {
            files.write_pair("peer", &issued);
        } else {
            files.write(name, text);
        }
        let caller = match step {
            0 => Caller::new(&old, Some(&issued), BOTH),
            _ => Caller::new(&new, Some(&issued), BOTH),
        };
        for member in &cluster.members {
            becomes(&Served, name, || caller.greet_peer(member.peer_port));
        }
        // Its links are dialled anew, and those of the others to it.
        cluster.members[step].kill();
        cluster.members[step].launch();
        cluster.members[step].wait_ready();
        let revision = cluster.members[step].put(&format!("step {step}"), "x").await;
        cluster.assert_equal(revision).await;
    }
    let stranger = Caller::new(&new, Some(&old.issue(GOOD)), BOTH);
    for member in &cluster.members {
        becomes(&Refused, "the old CA is gone", || stranger.greet_peer(member.peer_port));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn self_made_certificates_serve_clients_and_members() {
    let mut cluster = Cluster::new(3);
    secure_peers(&mut cluster.members, &["--peer-auto-tls".to_owned()]);
    cluster.start();
    let revision = cluster.members[0].put("a", "1").await;
    cluster.assert_equal(revision).await;
    let certificate = cluster.members[0].data_dir.join("fixtures/peer/cert.pem");
    let made = std::fs::read(&certificate).unwrap();
    cluster.members[0].kill();
    cluster.members[0].launch();
    cluster.members[0].wait_ready();
    assert_eq!(std::fs::read(&certificate).unwrap(), made, "made once");
}

#[test]
fn half_open_handshakes_end_in_time_and_delay_no_one() {
    let (authority, files) = (Authority::new("a"), Files::new());
    files.write_pair("server", &authority.issue(GOOD));
    let flags = in_files(&files, &[("cert-file", "server.pem"), ("key-file", "server.key")]);
    let mut cluster = Cluster::new(1);
    let plain = testkit::ports(1)[0];
    secure_clients(&mut cluster.members[0], &as_strs(&flags));
    cluster.members[0].extra[0] += &format!(",http://127.0.0.1:{plain}");
    let cluster = start_one(cluster);
    let port = cluster.members[0].client_port;
    // More than may be in flight: 1024.
    let mut silent: Vec<TcpStream> =
        (0..1200).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let caller = Caller::new(&authority, None, BOTH);
    for _ in 0..20 {
        let began = Instant::now();
        assert_eq!(caller.health(port), Served);
        assert!(common::http(plain, "GET /health").starts_with("HTTP/1.1 200"));
        let took = began.elapsed();
        // Half-open handshakes are given up after 5 s.
        assert!(took < Duration::from_secs(5), "a client among half-open ones waited {took:?}");
    }
    // The oldest were given up for newer ones, the newest are ended by the deadline.
    for at in [0, 1199] {
        let stream = &mut silent[at];
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        let _reset = stream.read_to_end(&mut rest);
    }
    cluster.members[0].running().wait_for("not finished within 5s");
}

#[test]
fn the_metrics_port_has_the_tls_of_the_client_port() {
    let (authority, files) = (Authority::new("a"), Files::new());
    let (mine, revoked) = (authority.issue(GOOD), authority.issue(GOOD));
    files.write_pair("server", &authority.issue(GOOD));
    files.write("ca.pem", &authority.pem);
    files.write("crl.pem", &authority.revoke(&[&revoked]));
    let mut cluster = Cluster::new(1);
    let ports = testkit::ports(3);
    let named = [
        ("cert-file", "server.pem"),
        ("key-file", "server.key"),
        ("trusted-ca-file", "ca.pem"),
        ("client-crl-file", "crl.pem"),
    ];
    let mut flags = in_files(&files, &named);
    flags.push(format!("--listen-metrics-urls=https://127.0.0.1:{},http://127.0.0.1:{}", ports[0], ports[1]));
    flags.push(format!("--listen-client-http-urls=https://127.0.0.1:{}", ports[2]));
    secure_clients(&mut cluster.members[0], &as_strs(&flags));
    let _running = start_one(cluster);
    for port in [ports[0], ports[2]] {
        for (cell, shown, wanted) in [
            ("a client of the authority", Some(&mine), Served),
            ("no certificate", None, Refused),
            ("revoked", Some(&revoked), Refused),
        ] {
            becomes(&wanted, cell, || Caller::new(&authority, shown, BOTH).health(port));
        }
    }
    assert!(common::http(ports[1], "GET /health").starts_with("HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_port_serves_http2_inside_tls() {
    let (authority, files) = (Authority::new("a"), Files::new());
    files.write_pair("server", &authority.issue(GOOD));
    let mut flags = in_files(&files, &[("cert-file", "server.pem"), ("key-file", "server.key")]);
    let port = testkit::port();
    flags.push(format!("--listen-metrics-urls=https://127.0.0.1:{port}"));
    let mut cluster = Cluster::new(1);
    secure_clients(&mut cluster.members[0], &as_strs(&flags));
    let _running = start_one(cluster);
    let caller = Caller::new(&authority, None, BOTH);
    let answers = caller.get_http2(port, &["/health", "/metrics", "/v3/kv/range"]).await;
    assert_eq!(answers.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [200, 200, 404]);
    assert!(answers[1].1.contains("etcd_server_has_leader 1"), "{}", answers[1].1);
    assert_eq!(caller.health(port), Served, "HTTP/1 as well");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_elect_while_their_client_ports_are_flooded_with_handshakes() {
    let (authority, files) = (Authority::new("a"), Files::new());
    files.write_pair("server", &authority.issue(GOOD));
    files.write("ca.pem", &authority.pem);
    let mut cluster = Cluster::new(3);
    let peer = [
        ("peer-cert-file", "server.pem"),
        ("peer-key-file", "server.key"),
        ("peer-trusted-ca-file", "ca.pem"),
    ];
    secure_peers(&mut cluster.members, &in_files(&files, &peer));
    let mut secure = Vec::new();
    for member in &mut cluster.members {
        let port = testkit::port();
        let urls = format!("https://127.0.0.1:{port},http://127.0.0.1:{}", member.client_port);
        member.extra.push(format!("--listen-client-urls={urls}"));
        member.extra.extend(in_files(&files, &[("cert-file", "server.pem"), ("key-file", "server.key")]));
        secure.push(port);
    }
    cluster.start();
    cluster.members[0].put("a", "1").await;
    // Each hello costs its member a key exchange and a signature, and is never followed by a second flight.
    let hello = Caller::new(&authority, None, BOTH).hello();
    let is_over = Arc::new(AtomicBool::new(false));
    let floods: Vec<_> = secure
        .iter()
        .map(|port| {
            let (port, hello, is_over) = (*port, hello.clone(), Arc::clone(&is_over));
            std::thread::spawn(move || {
                let mut open = VecDeque::new();
                while !is_over.load(Ordering::Relaxed) {
                    // A member that was killed refuses: its flood goes on when it is back.
                    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
                        let _reset = stream.write_all(&hello);
                        open.push_back(stream);
                        open.drain(..open.len().saturating_sub(200));
                    }
                }
            })
        })
        .collect();
    for round in 0..2 {
        let leader = cluster.leader().await;
        cluster.members[leader].kill();
        let other = (leader + 1) % 3;
        let deadline = Instant::now() + PATIENCE;
        // What was on its way to the leader when it ended is lost, and is answered so after the request
        // timeout.
        while let Err(status) = cluster.members[other].kv().await.put(put("b", &round.to_string())).await {
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(Instant::now() < deadline, "no leader is elected under the flood: {status}");
        }
        cluster.members[leader].launch();
        cluster.members[leader].wait_ready();
    }
    is_over.store(true, Ordering::Relaxed);
    floods.into_iter().for_each(|flood| flood.join().unwrap());
    let revision = cluster.members[0].put("c", "1").await;
    cluster.assert_equal(revision).await;
}

#[test]
fn what_cannot_work_is_refused_at_the_start_in_etcds_words() {
    let (authority, files) = (Authority::new("a"), Files::new());
    let issued = authority.issue(GOOD);
    files.write_pair("server", &issued);
    files.write_pair("other", &authority.issue(GOOD));
    files.write("empty.pem", "");
    let path = |name: &str| files.path(name).display().to_string();
    let (pem, key, other) = (path("server.pem"), path("server.key"), path("other.key"));
    let (empty, absent) = (path("empty.pem"), path("absent.pem"));
    let cases = [
        (vec![], "TLS key/cert (--cert-file, --key-file) must be provided for client url".to_owned()),
        (vec![("cert-file", &pem)], format!("KeyFile and CertFile must both be present[key: , cert: {pem}]")),
        (vec![("cert-file", &absent), ("key-file", &key)], format!("open {absent}: ")),
        (
            vec![("cert-file", &pem), ("key-file", &other)],
            format!("{other}: this private key does not belong to the certificate in {pem}"),
        ),
        (
            vec![("cert-file", &key), ("key-file", &pem)],
            format!("{key}: there is a private key in it and no certificate: are the files"),
        ),
        (
            vec![("cert-file", &pem), ("key-file", &key), ("trusted-ca-file", &empty)],
            format!("{empty}: the file is empty; it must contain a CERTIFICATE in PEM"),
        ),
        (
            vec![("cert-file", &pem), ("key-file", &key), ("client-crl-file", &empty)],
            format!("{empty}: expected a certificate revocation list"),
        ),
        (
            vec![("cert-file", &pem), ("key-file", &key), ("client-cert-file", &pem)],
            "ClientKeyFile and ClientCertFile must both be present or both absent".to_owned(),
        ),
    ];
    for (flags, wanted) in cases {
        let mut cluster = Cluster::new(1);
        let flags: Vec<String> = flags.iter().map(|(name, value)| format!("--{name}={value}")).collect();
        secure_clients(&mut cluster.members[0], &as_strs(&flags));
        let ended =
            Command::new(common::server()).args(cluster.members[0].flags()).env_clear().output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(said.contains(&wanted), "{wanted}: {said}");
    }
}

#[test]
fn a_port_may_be_outside_and_inside_tls() {
    let (authority, files) = (Authority::new("a"), Files::new());
    files.write_pair("server", &authority.issue(GOOD));
    let mut cluster = Cluster::new(1);
    let (metrics, client) = (testkit::port(), cluster.members[0].client_port);
    let both =
        |port: u16| format!("http://127.0.0.1:{port},https://127.0.0.1:{port},http://127.0.0.1:{port}");
    let mut flags = in_files(&files, &[("cert-file", "server.pem"), ("key-file", "server.key")]);
    flags.push(format!("--listen-client-urls={}", both(client)));
    flags.push(format!("--advertise-client-urls=http://127.0.0.1:{client}"));
    flags.push(format!("--listen-metrics-urls={}", both(metrics)));
    cluster.members[0].extra = flags;
    let _running = start_one(cluster);
    for port in [client, metrics] {
        assert!(common::http(port, "GET /health").starts_with("HTTP/1.1 200"), "outside");
        assert_eq!(Caller::new(&authority, None, BOTH).health(port), Served, "inside");
    }
}
