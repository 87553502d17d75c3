//! The binary as an operator meets it: what it says, when it ends, and with which code.

use crate::common;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use crate::common::{Cluster, READY, http, start};

/// Arguments of a lone member in `data_dir`.
fn lone(data_dir: &std::path::Path, client_port: u16, peer_port: u16) -> Vec<String> {
    let client = format!("http://127.0.0.1:{client_port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    vec![
        format!("--data-dir={}", data_dir.display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
    ]
}

/// Runs a member that must not start; returns its code and what it said.
fn refused(arguments: &[String]) -> (i32, String) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (status, said) = start(&arguments).wait_end();
    assert!(!said.contains(READY), "{said}");
    (status.code().expect("it ended by itself"), said)
}

#[test]
fn bad_command_lines_end_with_one_line_and_etcds_code() {
    let dir = tempfile::tempdir().unwrap();
    let data = format!("--data-dir={}", dir.path().join("d").display());
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--bogus"], 2, "flag provided but not defined: -bogus"),
        (&["--discovery-token=t"], 1, "both --discovery-token and --discovery-endpoints must be set"),
        (&["--listen-client-urls=http://127.0.0.1"], 2, "URL address does not have the form \"host:port\""),
        (&["extra"], 1, "\"extra\" is not a valid flag"),
        (&["--heartbeat-interval=0"], 1, "--heartbeat-interval must be >0 (set to 0ms)"),
        (
            &[
                "--listen-peer-urls=http://127.0.0.1:0",
                "--name=y",
                "--initial-cluster=x=http://localhost:2380",
            ],
            1,
            "couldn't find local name \"y\" in the initial cluster configuration",
        ),
    ];
    let ports = testkit::ports(1);
    let client = [
        format!("--listen-client-urls=http://127.0.0.1:{}", ports[0]),
        format!("--advertise-client-urls=http://127.0.0.1:{}", ports[0]),
    ];
    for (arguments, code, wanted) in cases {
        let mut all: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        if arguments.len() > 1 {
            all.extend([data.clone()].into_iter().chain(client.clone()));
        }
        let (status, said) = refused(&all);
        assert_eq!(status, code, "{said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(last.starts_with("kv-server: ") && last.contains(wanted), "{said}");
    }
}

#[test]
fn a_start_says_in_some_eight_lines_what_it_found_and_serves() {
    let mut cluster = Cluster::started(1);
    for found in ["\"starting local member\"", "\"restarting local member\""] {
        let said = cluster.members[0].running().said();
        let lines = said.lines().take_while(|line| !line.contains("serving client traffic"));
        // A busy machine adds warnings.
        let lines = lines.filter(|line| !line.contains("on time") && !line.contains("slow fdatasync"));
        assert!((4..=8).contains(&lines.count()) && said.contains(found), "{said}");
        assert!(said.contains("\"log-last-index\":") && said.contains("\"store-revision\":"), "{said}");
        cluster.members[0].kill();
        cluster.start();
    }
}

#[test]
fn a_port_in_use_is_named() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    let dir = tempfile::tempdir().unwrap();
    let other = testkit::port();
    for (client, peer) in [(port, other), (other, port)] {
        let (code, said) = refused(&lone(&dir.path().join("d"), client, peer));
        assert!(code == 1 && said.contains("--local-cluster 3"), "{said}");
        assert!(
            said.contains(&format!("listen on http://127.0.0.1:{port}: Address already in use")),
            "{said}"
        );
    }
    assert!(!dir.path().join("d/identity.json").exists(), "a member was born that never served");
}

#[test]
fn a_directory_of_somebody_else_is_refused() {
    let mut cluster = Cluster::started(1);
    let member = &mut cluster.members[0];
    let ports = testkit::ports(2);
    let start_there = |extra: &[String]| {
        let mut arguments = lone(&member.data_dir, ports[0], ports[1]);
        arguments.extend_from_slice(extra);
        refused(&arguments)
    };
    let (code, said) = start_there(&[]);
    assert_eq!((code, said.contains("is locked by another process")), (1, true), "{said}");
    assert!(said.contains("--local-cluster 3"), "{said}");

    member.kill();
    let member = &cluster.members[0];
    let start_there = |extra: &[String]| {
        let mut arguments = lone(&member.data_dir, ports[0], ports[1]);
        arguments.extend_from_slice(extra);
        refused(&arguments)
    };
    let (code, said) = start_there(&["--name=other".to_owned()]);
    assert_eq!((code, said.contains("belongs to member \"m0\", not to \"other\"")), (1, true), "{said}");
    let identity = member.data_dir.join("identity.json");
    let text = std::fs::read_to_string(&identity).unwrap();
    std::fs::write(&identity, text.replace("\"format\": 1", "\"format\": 9")).unwrap();
    let (code, said) = start_there(&[]);
    assert_eq!((code, said.contains("has format 9, this version reads format 1")), (1, true), "{said}");

    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("member")).unwrap();
    let (code, said) = refused(&lone(dir.path(), ports[0], ports[1]));
    assert_eq!((code, said.contains("is a data directory of etcd")), (1, true), "{said}");
}

#[test]
fn a_member_that_lost_its_log_or_its_identity_does_not_start() {
    let mut cluster = Cluster::started(1);
    let member = &mut cluster.members[0];
    member.kill();
    let (wal, aside) = (member.data_dir.join("wal"), member.data_dir.join("aside"));
    std::fs::rename(&wal, &aside).unwrap();
    let (code, said) = refused(&member.flags());
    assert_eq!((code, said.contains("the log of member")), (1, true), "{said}");
    std::fs::rename(&aside, &wal).unwrap();

    std::fs::remove_file(member.data_dir.join("identity.json")).unwrap();
    let (code, said) = refused(&member.flags());
    assert_eq!((code, said.contains("its owner is unknown")), (1, true), "{said}");
}

#[test]
fn http_answers_as_etcd_does() {
    let cluster = Cluster::started(1);
    let port = cluster.members[0].client_port;
    let health = http(port, "GET /health");
    assert!(
        health.starts_with("HTTP/1.1 200") && health.ends_with("{\"health\":\"true\",\"reason\":\"\"}"),
        "{health}"
    );
    assert!(health.contains("access-control-allow-origin: *"), "{health}");
    assert!(http(port, "GET /readyz").ends_with("\r\n\r\nok\n"));
    assert!(http(port, "GET /livez?verbose").ends_with("[+]serializable_read ok\nok\n"));
    assert!(http(port, "GET /readyz/linearizable_read").ends_with("\r\n\r\nok\n"));
    assert!(http(port, "GET /readyz/bogus").contains("404 page not found"));
    let version = http(port, "GET /version");
    let wanted =
        format!(r#"{{"etcdserver":"{}","etcdcluster":"3.7.0","storage":"3.7.0"}}"#, api::version::ETCD);
    assert!(version.contains("content-type: application/json") && version.ends_with(&wanted), "{version}");
    let post = http(port, "POST /health");
    assert!(post.starts_with("HTTP/1.1 405") && post.contains("allow: GET\r\n"), "{post}");
    assert!(http(port, "GET /v2/keys").ends_with("404 page not found\n"));
    assert!(http(port, "POST /etcdserverpb.KV/Put").starts_with("HTTP/1.1 404"));
    assert!(http(port, "OPTIONS /anything").starts_with("HTTP/1.1 200"));
    let metrics = http(port, "GET /metrics");
    for name in ["etcd_server_has_leader 1", "process_resident_memory_bytes ", "etcd_server_is_leader 1"] {
        assert!(metrics.contains(name), "{name}\n{metrics}");
    }
}

#[tokio::test]
async fn data_survives_a_polite_end_and_a_rude_one() {
    let mut cluster = Cluster::started(1);
    let revision = cluster.members[0].put("a", "1").await;
    let member = &mut cluster.members[0];
    member.running().terminate();
    let (status, said) = member.process.take().unwrap().wait_end();
    assert!(status.success() && said.contains("received signal; shutting down"), "{status} {said}");
    member.launch();
    member.wait_ready();
    assert_eq!(member.get("a").await.as_deref(), Some("1"));
    assert_eq!(member.put("b", "2").await, revision + 1);
    member.kill();
    member.launch();
    member.wait_ready();
    assert_eq!(member.get("a").await.as_deref(), Some("1"));
    assert_eq!(member.get("b").await.as_deref(), Some("2"));
    assert_eq!(member.put("c", "3").await, revision + 2);
    for (path, mode) in common::modes(&member.data_dir) {
        assert_eq!(mode & 0o077, 0, "{} is open to others: {mode:o}", path.display());
    }
}

#[tokio::test]
async fn garbage_on_both_ports_harms_nobody() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    for port in [member.client_port, member.peer_port] {
        let garbage: [&[u8]; 3] = [
            &[0xff; 10_000],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"GET",
        ];
        for bytes in garbage {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            drop(stream.write_all(bytes));
        }
    }
    member.put("a", "1").await;
    assert_eq!(member.get("a").await.as_deref(), Some("1"));
}

#[test]
fn the_same_command_three_times_makes_a_cluster() {
    let _ports = common::default_ports();
    // The ports of a local cluster are fixed; another program on them is no fault of the server.
    if TcpListener::bind("127.0.0.1:2379").is_err() || TcpListener::bind("127.0.0.1:22379").is_err() {
        eprintln!("left out: the ports of a local cluster are in use");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("c").display().to_string();
    let command = ["--local-cluster", "3", "--data-dir", &data_dir];
    let members = [start(&command), start(&command), start(&command)];
    for member in &members {
        member.wait_for(READY);
    }
    let (status, said) = start(&command).wait_end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("all 3 members of the local cluster"), "{said}");
}

/// Each former command of the server says where it is now.
#[test]
fn commands_of_kvctl_are_named() {
    for line in [
        "import --from snap.db --data-dir d",
        "restore --from s3://b/p --data-dir d",
        "archive --endpoints h:1 --to d",
        "inspect wal --data-dir d",
        "member replace a b=http://h:1",
        "top --metrics-endpoints h:1",
    ] {
        let output = Command::new(common::server()).args(line.split(' ')).env_clear().output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said), (Some(2), format!("moved to: kvctl {line}\n")));
    }
}
