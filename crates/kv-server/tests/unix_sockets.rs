//! `unix://` URLs of clients, members and probes.

use crate::common;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::common::{Cluster, PATIENCE, get, put};
use client::Client;

/// Sends a GET to the socket at `path` and returns the response.
fn ask(path: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

async fn client(path: &Path) -> Client {
    Client::connect(format!("unix://{}", path.display()), PATIENCE).await.unwrap()
}

/// Returns the output of etcdctl; None if it is not installed.
fn etcdctl(arguments: &[&str], path: &Path) -> Option<String> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/bin/etcdctl");
    if !program.exists() {
        eprintln!("left out: there is no {}", program.display());
        return None;
    }
    let endpoint = format!("--endpoints=unix://{}", path.display());
    let output = std::process::Command::new(program).arg(endpoint).args(arguments).output().unwrap();
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Creates two members that use sockets in a directory.
fn cluster(directory: &Path) -> (Cluster, impl Fn(&str, usize) -> PathBuf) {
    let directory = directory.to_owned();
    let socket = move |kind: &str, at: usize| directory.join(format!("{kind}{at}.sock"));
    let mut cluster = Cluster::new(2);
    let of = |kind: &str, at| format!("unix://{}", socket(kind, at).display());
    let initial = format!("m0={},m1={}", of("peer", 0), of("peer", 1));
    for (at, member) in cluster.members.iter_mut().enumerate() {
        member.initial_cluster = initial.clone();
        member.extra = vec![
            format!("--listen-client-urls=http://127.0.0.1:{},{}", member.client_port, of("client", at)),
            format!("--advertise-client-urls={}", of("client", at)),
            format!("--listen-peer-urls={}", of("peer", at)),
            format!("--initial-advertise-peer-urls={}", of("peer", at)),
            format!("--listen-metrics-urls={}", of("metrics", at)),
        ];
    }
    (cluster, socket)
}

#[tokio::test]
async fn members_clients_and_probes_meet_on_unix_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let (mut cluster, socket) = cluster(directory.path());
    // A socket left by a killed member.
    drop(std::os::unix::net::UnixListener::bind(socket("client", 0)).unwrap());
    cluster.start();
    let client_of_0 = client(&socket("client", 0)).await;
    client_of_0.kv().put(put("a", "1")).await.unwrap();
    let answer = client(&socket("client", 1)).await.kv().range(get("a")).await.unwrap();
    assert_eq!(answer.into_inner().kvs[0].value, "1");
    for member in client_of_0.members(true).await.unwrap() {
        let at: usize = member.name[1..].parse().unwrap();
        let urls = [&member.client_ur_ls[0], &member.peer_ur_ls[0]];
        assert_eq!(
            urls,
            ["client", "peer"].map(|kind| format!("unix://{}", socket(kind, at).display())).each_ref()
        );
    }
    for (kind, path, wanted) in [
        ("client", "/health", "{\"health\":\"true\",\"reason\":\"\"}"),
        ("client", "/version", api::version::ETCD),
        ("metrics", "/readyz", "ok\n"),
        ("metrics", "/version", "404 page not found\n"),
    ] {
        let answer = ask(&socket(kind, 1), path);
        assert!(answer.contains(wanted), "{kind} {path}: {answer}");
    }
    let printed = etcdctl(&["put", "b", "2"], &socket("client", 1));
    assert!(printed.is_none_or(|printed| printed == "OK\n"));
    let mode = std::fs::metadata(socket("client", 0)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // A clean stop removes the sockets.
    let ended = cluster.members.remove(0).process.unwrap();
    ended.terminate();
    let (status, said) = ended.wait_end();
    assert!(status.success(), "{said}");
    for kind in ["client", "peer", "metrics"] {
        assert!(!socket(kind, 0).exists(), "{kind} is left");
        assert!(socket(kind, 1).exists(), "{kind} of another member is gone");
    }
}

#[test]
fn a_socket_that_is_in_use_and_a_file_are_named_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (used, file) = (directory.path().join("used"), directory.path().join("file"));
    let _listening = std::os::unix::net::UnixListener::bind(&used).unwrap();
    std::fs::write(&file, "precious").unwrap();
    for (path, wanted) in [(&used, "Address already in use"), (&file, "not a socket")] {
        let data = directory.path().join("data");
        let url = format!("unix://{}", path.display());
        let process = common::start(&[
            &format!("--data-dir={}", data.display()),
            &format!("--listen-client-urls={url}"),
            &format!("--advertise-client-urls={url}"),
            &format!("--listen-peer-urls=http://127.0.0.1:{}", testkit::port()),
        ]);
        let (status, said) = process.wait_end();
        assert!(status.code() == Some(1) && said.contains(&url) && said.contains(wanted), "{said}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    UnixStream::connect(&used).unwrap();
}
