//! `/debug/vars` and profiles.

use std::io::{Read, Write};
use std::net::TcpStream;

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

/// The parts of pprof's format that the test looks at.
#[derive(Clone, PartialEq, prost::Message)]
struct Profile {
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sample {
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[tokio::test]
async fn a_heap_profile_names_the_code_that_holds_memory() {
    const VALUES: i64 = 30;
    let cluster = Cluster::started_with(1, &["--log-level=debug"]);
    let member = &cluster.members[0];
    let value = "x".repeat(1 << 20);
    for at in 0..VALUES {
        member.put(&format!("k{at}"), &value).await;
    }
    for path in ["/debug/pprof/heap", "/debug/pprof/allocs?debug=0"] {
        let (status, body) = get(member.client_port, path);
        assert_eq!(status, 200, "{path}");
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut plain).unwrap();
        let profile = <Profile as prost::Message>::decode(&plain[..]).unwrap();
        let total = |at: usize| profile.sample.iter().map(|sample| sample.value[at]).sum::<i64>();
        let (allocated, in_use) = (total(1), total(3));
        // Each value went through several buffers. Blocks of values are packed, or on the disk already.
        assert!(allocated >= VALUES << 20, "{path}: {allocated}");
        assert!((1 << 20..allocated).contains(&in_use), "{path}: {in_use} of {allocated}");
        let has = |part: &str| profile.string_table.iter().any(|text| text.contains(part));
        assert!(has("inuse_space") && has("mvcc::") && has("kv_server::"), "{path}");
        assert!(!has("heap_profile::sample"), "{path}");
    }
}

#[test]
fn heap_profiles_leave_little_memory_resident() {
    /// Without giving back, 180 MiB stay of a debug build.
    const LEFT_MAX: u64 = 96 << 20;
    let cluster = Cluster::started_with(1, &["--enable-pprof"]);
    let port = cluster.members[0].client_port;
    let resident = || {
        let vars: serde_json::Value = serde_json::from_slice(&get(port, "/debug/vars").1).unwrap();
        vars["memstats"]["Sys"].as_u64().unwrap()
    };
    let before = resident();
    for path in ["/debug/pprof/heap", "/debug/pprof/allocs"] {
        assert_eq!(get(port, path).0, 200, "{path}");
        // The allocator gives back what is free a little later.
        let began = std::time::Instant::now();
        while resident() > before + LEFT_MAX {
            assert!(began.elapsed().as_secs() < 60, "{path}: {before} bytes before, {} after", resident());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        println!("{path}: {} MiB before, {} MiB after", before >> 20, resident() >> 20);
    }
}

#[test]
fn there_are_no_profiles_unless_they_were_asked_for() {
    let cluster = Cluster::started(1);
    for path in ["/debug/pprof/", "/debug/pprof/profile"] {
        assert!(http(cluster.members[0].client_port, &format!("GET {path}")).starts_with("HTTP/1.1 404"));
    }
}
