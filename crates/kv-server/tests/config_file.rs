//! Configuration by a file.

use std::process::Command;

use crate::common::{READY, http, server, start};

#[test]
fn a_member_follows_its_file_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let (ports, path) = (testkit::ports(2), directory.path().join("member.yml"));
    let text = format!(
        "name: from-file\n\
         data-dir: {}\n\
         listen-client-urls: http://127.0.0.1:{}\n\
         advertise-client-urls: http://127.0.0.1:{}\n\
         listen-peer-urls: http://127.0.0.1:{}\n\
         max-wals: 5\n\
         bogus: 1\n",
        directory.path().join("data").display(),
        ports[0],
        ports[0],
        ports[1],
    );
    std::fs::write(&path, text).unwrap();
    let flag = format!("--config-file={}", path.display());
    let member = start(&[&flag, "--name=from-flag", "--listen-client-urls=http://127.0.0.1:1"]);
    member.wait_for(READY);
    assert!(http(ports[0], "GET /health").starts_with("HTTP/1.1 200"));
    let said = member.said();
    for wanted in [
        "loaded server configuration",
        "\"name\":\"from-file\"",
        "\"key\":\"bogus\"",
        "\"flag\":\"max-wals\"",
    ] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    assert!(!said.contains("from-flag"), "{said}");
}

/// With a file, invalid variables and a repeated flag are ignored.
#[test]
fn variables_do_not_matter_where_a_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (ports, path) = (testkit::ports(2), directory.path().join("member.yml"));
    let data = directory.path().join("data");
    let text = serde_json::json!({
        "name": "from-file",
        "data-dir": data.display().to_string(),
        "listen-client-urls": format!("http://127.0.0.1:{}", ports[0]),
        "advertise-client-urls": format!("http://127.0.0.1:{}", ports[0]),
        "listen-peer-urls": format!("http://127.0.0.1:{}", ports[1]),
    });
    std::fs::write(&path, text.to_string()).unwrap();
    let flag = format!("--config-file={}", path.display());
    for (flags, file) in
        [(&[&flag, "--name=b"][..], "/nonexistent"), (&["--config-file="], path.to_str().unwrap())]
    {
        let mut command = Command::new(server());
        command.args(flags).env_clear().env("ETCD_CONFIG_FILE", file);
        command.envs([("ETCD_NAME", "a"), ("ETCD_HEARTBEAT_INTERVAL", "100ms")]);
        let member = testkit::Process::spawn(&mut command).unwrap();
        member.wait_for(READY);
        assert!(member.said().contains("\"name\":\"from-file\""), "{}", member.said());
    }
}

#[test]
fn a_file_that_cannot_be_followed_ends_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("member.yml");
    std::fs::write(&path, "listen-peer-urls: foo\n").unwrap();
    let path = path.display().to_string();
    let large = directory.path().join("large.yml");
    std::fs::write(&large, "#".repeat((1 << 20) + 1)).unwrap();
    let large = large.display().to_string();
    for (path, wanted) in [
        ("/dev/zero", "open /dev/zero: not a regular file"),
        (large.as_str(), "a configuration file has at most 1048576 bytes"),
        ("/nonexistent", "open /nonexistent: no such file or directory"),
        (path.as_str(), "unexpected error setting up listen-peer-urls: URL scheme must be http, https"),
    ] {
        let ended = Command::new(server()).env_clear().env("ETCD_CONFIG_FILE", path).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
}
