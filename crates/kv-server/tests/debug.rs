//! `/debug/vars` and profiles.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::{Cluster, PATIENCE, http};

/// Status and body of a GET.
fn get(port: u16, path: &str) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(answer[..end].to_vec()).unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), answer[end + 4..].to_vec())
}

#[tokio::test]
async fn variables_and_profiles_are_served_where_they_are_asked_for() {
    let metrics = testkit::port();
    let listening = format!("--listen-metrics-urls=http://127.0.0.1:{metrics}");
    let cluster = Cluster::started_with(1, &["--enable-pprof", "--discovery-password=s3cret", &listening]);
    let member = &cluster.members[0];
    let port = member.client_port;
    let (status, body) = get(port, "/debug/vars");
    let vars: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let raft = &vars["raft.status"];
    assert_eq!((status, &raft["raftState"]), (200, &"StateLeader".into()));
    assert_eq!((&raft["id"], raft["progress"].as_object().unwrap().len()), (&raft["lead"], 1));
    assert!(vars["memstats"]["Sys"].as_u64() > Some(0) && vars["file_descriptor_limit"].as_u64() > Some(0));
    assert!(vars["cmdline"][0].as_str().unwrap().contains("kv-server"));
    assert!(!String::from_utf8(body).unwrap().contains("s3cret"));

    // Two at a time are one too many.
    let profile = std::thread::spawn(move || get(port, "/debug/pprof/profile?seconds=2"));
    member.running().wait_for("taking a CPU profile");
    let (status, body) = get(port, "/debug/pprof/profile?seconds=1");
    assert!(status == 500 && String::from_utf8(body).unwrap().contains("already in use"));
    // Something to sample, and a member that goes on.
    for at in 0..50 {
        member.put("key", &at.to_string()).await;
    }
    let (status, body) = profile.join().unwrap();
    assert_eq!((status, &body[..2]), (200, &b"\x1f\x8b"[..]), "gzip");
    for (path, wanted, text) in [
        ("/debug/pprof/", 200, "profile?seconds=30"),
        ("/debug/pprof/goroutine", 501, "Go"),
        ("/debug/pprof/heap", 501, "Go"),
        ("/debug/pprof/profile?seconds=999", 400, "at most 300 seconds"),
    ] {
        let (status, body) = get(port, path);
        assert_eq!(status, wanted, "{path}");
        assert!(String::from_utf8(body).unwrap().contains(text), "{path}");
    }
    for path in ["/debug/vars", "/debug/pprof/"] {
        assert_eq!(get(metrics, path).0, 404, "{path} on the metrics port");
    }
}

#[test]
fn cpu_profiles_leave_one_table_of_samples_in_memory() {
    /// The table has 69 MiB. Without what is returned to the system, 180 MiB stay of a debug build.
    const LEFT_MAX: u64 = 96 << 20;
    let cluster = Cluster::started_with(1, &["--enable-pprof"]);
    let port = cluster.members[0].client_port;
    let resident = || {
        let vars: serde_json::Value = serde_json::from_slice(&get(port, "/debug/vars").1).unwrap();
        vars["memstats"]["Sys"].as_u64().unwrap()
    };
    let before = resident();
    for profile in 1..=2 {
        assert_eq!(get(port, "/debug/pprof/profile?seconds=1").0, 200);
        // The allocator returns free memory to the system a little later.
        let deadline = Instant::now() + PATIENCE;
        while resident() > before + LEFT_MAX {
            let after = resident() >> 20;
            assert!(
                Instant::now() < deadline,
                "profile {profile}: {} MiB before, {after} after",
                before >> 20
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        println!("profile {profile}: {} MiB before, {} MiB after", before >> 20, resident() >> 20);
    }
}

#[test]
fn there_are_no_profiles_unless_they_were_asked_for() {
    let cluster = Cluster::started(1);
    for path in ["/debug/pprof/", "/debug/pprof/profile"] {
        assert!(http(cluster.members[0].client_port, &format!("GET {path}")).starts_with("HTTP/1.1 404"));
    }
}
