//! The program against real etcd: TLS and users; endpoints that are rejected before any load is sent; the
//! report of an interrupted run.
//!
//! Needs etcd and etcdctl (built by `interop/build.sh`, or in the directory `ETCD_BIN`) and openssl.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use testkit::Process;

struct Etcd {
    dir: tempfile::TempDir,
    _process: Process,
    address: String,
}

fn bin(name: &str) -> PathBuf {
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../../interop/bin");
    let dir = std::env::var_os("ETCD_BIN").map_or_else(|| PathBuf::from(built), PathBuf::from);
    let path = dir.join(name);
    assert!(path.exists(), "{} is not there: run interop/build.sh or set ETCD_BIN", path.display());
    path
}

fn openssl(dir: &Path, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split(' ')).current_dir(dir).output();
    let output = output.expect("the openssl program makes the certificates of this test");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Creates a root, and two certificates signed by it.
fn make_certificates(dir: &Path) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout";
    openssl(dir, &format!("req -x509 {key} ca.key -out ca.pem -days 2 -subj /CN=root"));
    std::fs::write(dir.join("ext"), "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
        .unwrap();
    for name in ["server", "client"] {
        openssl(dir, &format!("req {key} {name}.key -out {name}.csr -subj /CN={name}"));
        let sign = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext";
        openssl(dir, &format!("x509 -req -in {name}.csr {sign} -out {name}.pem"));
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Security {
    Open,
    /// TLS, client certificates, users.
    Secured,
}

impl Etcd {
    fn start(security: Security) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let scheme = if security == Security::Secured { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", testkit::port());
        let peer = format!("http://127.0.0.1:{}", testkit::port());
        let mut command = Command::new(bin("etcd"));
        command.current_dir(dir.path());
        command.args([
            "--data-dir",
            "data",
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        // Gives each cluster a different id.
        command.args(["--initial-cluster", &format!("default={peer}"), "--initial-cluster-token", &peer]);
        if security == Security::Secured {
            make_certificates(dir.path());
            command.args(["--client-cert-auth", "--trusted-ca-file", "ca.pem"]);
            command.args(["--cert-file", "server.pem", "--key-file", "server.key"]);
        }
        let process = Process::start(&mut command);
        process.wait_for("ready to serve client requests");
        let etcd = Self { _process: process, dir, address: client };
        if security == Security::Secured {
            for command in ["user add root:secret", "user grant-role root root", "auth enable"] {
                assert!(etcd.ctl(security, command), "etcdctl {command}");
            }
        }
        etcd
    }

    fn ctl(&self, security: Security, command: &str) -> bool {
        let mut etcdctl = Command::new(bin("etcdctl"));
        etcdctl.current_dir(self.dir.path()).args(["--endpoints", &self.address]);
        if security == Security::Secured {
            etcdctl.args(["--cacert", "ca.pem", "--cert", "client.pem", "--key", "client.key"]);
        }
        etcdctl.args(command.split(' ')).output().unwrap().status.success()
    }

    fn loadgen(&self, endpoints: &str, arguments: &str) -> Command {
        let mut loadgen = Command::new(env!("CARGO_BIN_EXE_loadgen"));
        loadgen.current_dir(self.dir.path()).args(arguments.split_whitespace());
        loadgen.arg(format!("--endpoints={endpoints}"));
        loadgen.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        loadgen
    }

    /// Runs a short load with these flags; returns exit status, standard output and standard error.
    fn load(&self, endpoints: &str, flags: &str) -> (Option<i32>, String, String) {
        let line = format!("put --total=200 --conns=2 --clients=8 {flags}");
        output_of(self.loadgen(endpoints, &line).output().unwrap())
    }
}

fn output_of(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
#[ignore = "needs real etcd (interop/build.sh) and openssl"]
fn certificates_and_a_password_are_required_and_their_lack_is_explained() {
    let etcd = Etcd::start(Security::Secured);
    let https = etcd.address.clone();
    let bare = https.trim_start_matches("https://");
    let shown = "--cert=client.pem --key=client.key";

    for (endpoint, flags) in [
        (https.as_str(), format!("--cacert=ca.pem {shown} --user=root:secret")),
        (https.as_str(), format!("--insecure-skip-tls-verify {shown} --user=root --password=secret")),
        (bare, format!("--cacert=ca.pem {shown} --user=root:secret")),
    ] {
        let (status, out, err) = etcd.load(endpoint, &flags);
        assert_eq!(status, Some(0), "{flags}: {out}{err}");
        assert!(out.contains("Requests/sec:") && !out.contains("Error distribution"), "{flags}: {out}");
    }

    for (flags, expected) in [
        (String::new(), "invalid peer certificate"),
        ("--cacert=ca.pem".into(), "does it want a client certificate"),
        (
            format!("--cacert=ca.pem {shown} --user=root:wrong"),
            "authentication failed, invalid user ID or password",
        ),
        (format!("--cacert=ca.pem {shown} --user=root"), "no password for root"),
    ] {
        let (status, _, err) = etcd.load(&https, &flags);
        assert_eq!(status, Some(1), "{flags}: {err}");
        assert!(err.contains(expected), "{flags}: {err}");
    }

    // Connected without a user: every call fails, and the reason is reported once.
    let (status, out, err) = etcd.load(&https, &format!("--cacert=ca.pem {shown}"));
    assert_eq!(status, Some(1), "{err}");
    assert!(out.contains("[200]\tPermissionDenied: etcdserver: permission denied"), "{out}");
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn endpoints_of_no_cluster_or_of_two_are_refused_before_any_load() {
    let (one, other) = (Etcd::start(Security::Open), Etcd::start(Security::Open));
    let (first, second) =
        (one.address.trim_start_matches("http://"), other.address.trim_start_matches("http://"));
    // A server that does not speak gRPC.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let web = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let unused = format!("127.0.0.1:{}", testkit::port());
    for (endpoints, reason) in [
        (format!("{first},{second}"), format!("endpoints {first} and {second} belong to different clusters")),
        (web.clone(), format!("endpoint {web}: speaks no gRPC")),
        (unused.clone(), format!("endpoint {unused}: Connection refused")),
    ] {
        let (status, out, err) = one.load(&endpoints, "");
        assert_eq!(status, Some(1), "{out}{err}");
        assert!(err.contains(&reason) && out.is_empty(), "{out}{err}");
    }
    let output =
        Command::new(bin("etcdctl")).args(["--endpoints", &one.address, "get", "", "--prefix"]).output();
    assert_eq!(output_of(output.unwrap()).1, "", "nothing was written");
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn an_interrupted_run_reports_what_it_measured_and_says_that_it_is_partial() {
    let etcd = Etcd::start(Security::Open);
    let kept = etcd.dir.path().join("kept.json");
    let line = format!("put --rate=200 --open-loop --clients=20 --total=100000 --json={}", kept.display());
    let child = etcd.loadgen(&etcd.address, &line).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let (status, out, err) = output_of(child.wait_with_output().unwrap());
    assert_eq!(status, Some(130), "{out}{err}");
    assert!(out.contains(" of 100000 requests (interrupted)"), "{out}");
    let kept: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(kept).unwrap()).unwrap();
    assert_eq!(kept["partial"], "interrupted");
    let succeeded = kept["succeeded"].as_u64().unwrap();
    assert!((1..100_000).contains(&succeeded), "{succeeded}");
}

/// Three members, the first of which a command names.
struct Three {
    dir: tempfile::TempDir,
    members: Vec<(String, Option<Process>)>,
}

impl Three {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = |_| format!("http://127.0.0.1:{}", testkit::port());
        let (clients, peers): (Vec<_>, Vec<_>) = ((0..3).map(url).collect(), (0..3).map(url).collect());
        let all: Vec<_> = peers.iter().enumerate().map(|(n, peer)| format!("m{n}={peer}")).collect();
        let mut members = Vec::new();
        for (n, (client, peer)) in clients.iter().zip(&peers).enumerate() {
            let mut command = Command::new(bin("etcd"));
            command.current_dir(dir.path()).args(["--name", &format!("m{n}")]);
            command.args(["--data-dir", &format!("m{n}.data"), "--initial-cluster", &all.join(",")]);
            command.args(["--listen-client-urls", client, "--advertise-client-urls", client]);
            command.args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]);
            command.args(["--initial-cluster-token", &peers[0]]);
            members
                .push((client.trim_start_matches("http://").to_owned(), Some(Process::start(&mut command))));
        }
        for (_, process) in &members {
            process.as_ref().unwrap().wait_for("ready to serve client requests");
        }
        Self { dir, members }
    }

    /// Returns the index of the leader according to etcdctl.
    fn leader(&self) -> usize {
        let leads = |address: &str| {
            let mut etcdctl = Command::new(bin("etcdctl"));
            etcdctl.args(["--endpoints", address, "endpoint", "status", "--write-out=json"]);
            let (_, out, _) = output_of(etcdctl.output().unwrap());
            let status: serde_json::Value = serde_json::from_str(&out).unwrap_or_default();
            let status = &status[0]["Status"];
            status["leader"].is_u64() && status["leader"] == status["header"]["member_id"]
        };
        self.members.iter().position(|(address, _)| leads(address)).unwrap()
    }

    fn loadgen(&self, line: &str) -> Command {
        let mut loadgen = Command::new(env!("CARGO_BIN_EXE_loadgen"));
        loadgen.current_dir(self.dir.path()).args(line.split_whitespace());
        loadgen.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        loadgen
    }
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn members_that_are_not_named_are_found_and_requests_follow_the_leader() {
    let mut three = Three::start();
    let leader = three.leader();
    let follower = three.members[(leader + 1) % 3].0.clone();
    let line = format!("put --total=200 --clients=8 --target-leader --endpoints={follower}");
    let (status, out, err) = output_of(three.loadgen(&line).output().unwrap());
    assert_eq!(status, Some(0), "{out}{err}");
    assert!(out.contains("per request, all 3 members."), "{out}");

    let line = format!(
        "put --total=3000 --rate=500 --open-loop --clients=50 --target-leader --max-errors=100 \
         --request-timeout=5s --endpoints={follower} --json=-"
    );
    let child = three.loadgen(&line).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    three.members[leader].1 = None; // killed
    let (status, out, err) = output_of(child.wait_with_output().unwrap());
    assert_eq!(status, Some(0), "{out}{err}");
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    let [succeeded, failed] = ["succeeded", "failed"].map(|key| document[key].as_u64().unwrap());
    assert!(succeeded + failed == 3000 && failed <= 100, "{succeeded} {failed}");
    assert_ne!(three.leader(), leader);
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn watchers_of_api_servers_go_on_at_another_member_and_take_no_time_of_the_run() {
    let mut three = Three::start();
    let follower = (three.leader() + 1) % 3;
    let named: Vec<_> = three.members.iter().map(|(address, _)| address.as_str()).collect();
    let line = format!(
        "kubernetes --nodes=2 --duration=3s --rate=200 --clients=10 --api-servers=3 --request-timeout=2s \
         --max-errors=100000 --json=k.json --endpoints={}",
        named.join(",")
    );
    let child = three.loadgen(&line).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    three.members[follower].1 = None; // killed
    let (status, out, err) = output_of(child.wait_with_output().unwrap());
    assert_eq!(status, Some(0), "{out}{err}");
    assert!(out.contains("Watchers of API servers received"), "{out}");
    let kept = std::fs::read_to_string(three.dir.path().join("k.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    assert!(kept["failed"].as_u64().unwrap() > 0 && kept["total_seconds"].as_f64().unwrap() < 5.5, "{out}");
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn a_search_prints_its_steps_and_its_answer_is_in_every_file() {
    let etcd = Etcd::start(Security::Open);
    let line = "put --find-max-rate --slo=p90=20ms --rate=2000 --step=300ms --warm-up=50ms --clients=50 \
                --json=r.json --html=r.html --csv=r.csv";
    let (status, out, err) = output_of(etcd.loadgen(&etcd.address, line).output().unwrap());
    let file = |name: &str| std::fs::read_to_string(etcd.dir.path().join(name)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&file("r.json")).unwrap();
    let trials = json["search"]["trials"].as_u64().unwrap();
    let steps = err.lines().filter(|line| line.contains("/s reached, p90 ")).count() as u64;
    assert!(trials > 2 && steps == trials, "{trials}: {err}");
    assert_eq!((&json["setup"]["members"], &json["setup"]["rounds"]), (&1.into(), &1.into()));
    let search = &json["search"];
    let (expected, answer) =
        match (search["settled"].as_bool().unwrap(), search["requests_per_second"].as_f64()) {
            (true, Some(rate)) => {
                (0, format!("Highest rate that met p90=20ms: {rate:.0} requests per second"))
            }
            (true, None) => (1, "No rate met p90=20ms".into()),
            (false, Some(rate)) => (3, format!("Undecided: {rate:.0} requests per second met p90=20ms")),
            (false, None) => (3, "Undecided: no rate met p90=20ms".into()),
        };
    assert_eq!(status, Some(expected), "{out}{err}");
    assert!(out.contains(&answer) && file("r.html").contains(&answer), "{answer}: {out}");
    assert!(file("r.csv").contains("rates,highest,p90=20ms,,settled,,"));
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn the_trials_before_a_cluster_ended_are_kept() {
    let etcd = Etcd::start(Security::Open);
    let line =
        "put --find-max-rate --slo=p90=20ms --rate=200 --step=1s --warm-up=50ms --clients=10 --json=r.json";
    let child = etcd.loadgen(&etcd.address, line).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(4));
    let Etcd { dir, _process: process, .. } = etcd;
    drop(process);
    let (status, out, err) = output_of(child.wait_with_output().unwrap());
    assert_eq!(status, Some(1), "{out}{err}");
    let json = std::fs::read_to_string(dir.path().join("r.json")).expect(&err);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["suites"][0]["rows"].as_array().unwrap().len() > 1, "{err}");
    assert!(json["partial"].is_string(), "{err}");
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn a_run_has_a_duration_a_warm_up_and_limits() {
    let etcd = Etcd::start(Security::Open);
    for (slo, expected) in [("p99=20s,errors=0", 0), ("p50=1us,errors=0", 1)] {
        let line = format!("put --duration=1s --warm-up=300ms --clients=5 --json=- --slo={slo}");
        let (status, out, err) = output_of(etcd.loadgen(&etcd.address, &line).output().unwrap());
        assert_eq!(status, Some(expected), "{slo}: {out}{err}");
        let document: serde_json::Value = serde_json::from_str(&out).unwrap();
        let seconds = document["total_seconds"].as_f64().unwrap();
        assert!((0.9..5.0).contains(&seconds), "{seconds}");
        assert_eq!((&document["planned"], &document["partial"]), (&document["succeeded"], &().into()));
        assert_eq!(document["slo"][0]["met"], expected == 0);
        assert_eq!(document["slo"][1]["met"], true);
    }
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn every_workload_of_ycsb_runs_on_its_records() {
    let etcd = Etcd::start(Security::Open);
    for (letter, kinds) in [
        ("a", &["Read", "Update"][..]),
        ("b", &["Read", "Update"]),
        ("c", &["Read"]),
        ("d", &["Read", "Insert"]),
        ("e", &["Insert", "Scan"]),
        ("f", &["Read", "Read-Modify-Write"]),
    ] {
        let line = format!(
            "ycsb --workload={letter} --records=200 --val-size=50..150 --total=600 --clients=20 --conns=2 \
             --prefix={letter}/ --json=-"
        );
        let (status, out, err) = output_of(etcd.loadgen(&etcd.address, &line).output().unwrap());
        assert_eq!(status, Some(0), "{letter}: {out}{err}");
        let document: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&document["succeeded"], &document["failed"]), (&600.into(), &0.into()), "{letter}");
        let parts = document["parts"].as_array().unwrap();
        let titles: Vec<_> = parts.iter().map(|part| part["title"].as_str().unwrap()).collect();
        assert_eq!(titles.len(), kinds.len(), "{letter}: {titles:?}");
        for (kind, title) in kinds.iter().zip(titles) {
            assert!(title.starts_with(&format!("Total {kind} Ops: ")), "{title}");
        }
        let succeeded = parts.iter().map(|part| part["succeeded"].as_u64().unwrap());
        assert_eq!(succeeded.sum::<u64>(), 600, "{letter}");
    }
    for workload in ["--workload=c --prefix=c/", "--mix=scan=1 --prefix=none/"] {
        let line = format!("ycsb {workload} --records=300 --skip-load --total=200 --max-errors=200");
        let (_, out, _) = output_of(etcd.loadgen(&etcd.address, &line).output().unwrap());
        assert!(out.contains("NotFound: no record"), "records that were never loaded: {line}: {out}");
    }
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn a_suite_on_a_cluster_that_runs_keeps_to_its_prefix() {
    let etcd = Etcd::start(Security::Open);
    let kept = etcd.dir.path().join("kept.json");
    for suite in ["core", "coordination"] {
        let line = format!("suite {suite} --scale=0.0001 --rounds=1 --json={}", kept.display());
        let (status, out, err) = output_of(etcd.loadgen(&etcd.address, &line).output().unwrap());
        assert_eq!(status, Some(0), "{out}{err}");
        assert!(err.contains("only to keys with the prefix lgen/"), "{err}");
    }
    let of = |arguments: &[&str]| {
        let mut etcdctl = Command::new(bin("etcdctl"));
        let (_, out, _) =
            output_of(etcdctl.args(["--endpoints", &etcd.address]).args(arguments).output().unwrap());
        out
    };
    let all = of(&["get", "", "--prefix", "--count-only", "--write-out=fields"]);
    let own = of(&["get", "lgen/", "--prefix", "--count-only", "--write-out=fields"]);
    let count = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("\"Count\" : ").map(str::to_owned));
        line.unwrap().parse::<u64>().unwrap()
    };
    assert!(count(&all) > 100 && count(&all) == count(&own), "{all}{own}");
    // Reports the commit of the binary, because the directory is not a clone.
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(kept).unwrap()).unwrap();
    let version = Command::new(env!("CARGO_BIN_EXE_loadgen")).arg("--version").output().unwrap();
    let version = output_of(version).1;
    if let Some(commit) = report["commit"].as_str() {
        assert!(version.contains(commit.split(' ').next().unwrap()), "{commit}: {version}");
    }
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn runs_of_watchers_have_files_limits_and_a_duration() {
    let etcd = Etcd::start(Security::Open);
    let line = "watch --streams=2 --watch-per-stream=3 --duration=1s --put-rate=50 --open-loop --clients=10 --slo=p99=10s,errors=0 \
                --html=w.html --csv=w.csv --hdr=w.hdr --json=w.json";
    let (status, out, err) = output_of(etcd.loadgen(&etcd.address, line).output().unwrap());
    assert_eq!(status, Some(0), "{out}{err}");
    let file = |name: &str| std::fs::read_to_string(etcd.dir.path().join(name)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&file("w.json")).unwrap();
    let row = &json["report"]["suites"][0]["rows"][0];
    assert_eq!((&json["succeeded"], &row["load"]["operation"]), (&300.into(), &"watch".into()));
    assert!(file("w.html").contains("requests per second") && file("w.hdr").contains("Tag=Watch-events"));
    assert!(file("w.csv").contains("p99_ms"));
    let missed = line.replace("p99=10s", "p50=1us");
    assert_eq!(etcd.loadgen(&etcd.address, &missed).output().unwrap().status.code(), Some(1));
    let shown = etcd.loadgen(&etcd.address, &format!("{line} --dry-run")).output().unwrap();
    assert!(output_of(shown).1.contains("watchers: 6 on 2 streams"));
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn a_signal_ends_each_phase_with_its_status() {
    let etcd = Etcd::start(Security::Open);
    let ended = |line: &str| {
        let child = etcd.loadgen(&etcd.address, line).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let begin = std::time::Instant::now();
        let (status, out, err) = output_of(child.wait_with_output().unwrap());
        assert!(begin.elapsed() < Duration::from_secs(10), "{line}: {out}{err}");
        (status, out, err)
    };
    for (line, part) in [
        // During the warm-up, the load phase, the run, and a check.
        ("put --rate=100 --duration=60s --warm-up=60s", "interrupted before the measurement began"),
        ("ycsb --records=100000000", " of 100000000 records"),
        ("put --rate=100 --duration=60s", " (interrupted)"),
        ("put --rates=100,200 --step=60s", "Partial: interrupted"),
        ("suite core --rows=put-1 --scale=100 --rounds=1", "Partial: interrupted"),
        ("watch --put-rate=10 --put-total=10000", " (interrupted)"),
    ] {
        let (status, out, err) = ended(line);
        assert_eq!(status, Some(130), "{line}: {out}{err}");
        assert!(format!("{out}{err}").contains(part), "{line}: {out}{err}");
    }
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn a_load_generator_that_stood_still_says_so() {
    let etcd = Etcd::start(Security::Open);
    for line in ["put --duration=3s --clients=4", "ycsb --records=10 --duration=3s --clients=4"] {
        let child = etcd.loadgen(&etcd.address, line).spawn().unwrap();
        let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(1000));
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        let (status, out, err) = output_of(child.wait_with_output().unwrap());
        assert_eq!(status, Some(0), "{line}: {out}{err}");
        assert!(out.contains("load generator stalled for 1"), "{line}: {out}{err}");
    }
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn a_full_disk_costs_the_file_and_not_the_result() {
    let etcd = Etcd::start(Security::Open);
    let line = "put --total=50 --json=/dev/full --html=kept.html";
    let (status, out, err) = output_of(etcd.loadgen(&etcd.address, line).output().unwrap());
    assert_eq!(status, Some(1), "{out}{err}");
    assert!(out.contains("Requests/sec:") && err.contains("No space left on device"), "{out}{err}");
    assert!(etcd.dir.path().join("kept.html").exists());
    let line = "suite core --rows=put-1 --scale=0.01 --rounds=1 --json=/dev/full";
    let (status, out, err) = output_of(etcd.loadgen(&etcd.address, line).output().unwrap());
    assert_eq!(status, Some(1), "{out}{err}");
    assert!(out.contains("| put, 1 client") && err.contains("No space left on device"), "{out}{err}");
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn errors_are_grouped_with_a_sample_and_fail_the_program_beyond_the_limit() {
    let etcd = Etcd::start(Security::Open);
    // etcd's limit is 1.5 MiB per request.
    for (max_errors, expected) in [(0, Some(1)), (3, Some(1)), (4, Some(0))] {
        let line = format!("put --total=4 --val-size=2000000 --max-errors={max_errors}");
        let (status, out, err) = output_of(etcd.loadgen(&etcd.address, &line).output().unwrap());
        assert_eq!(status, expected, "{out}{err}");
        assert!(out.contains("[4]\tInvalidArgument: etcdserver: request is too large"), "{out}");
    }
    // An error limit determines the exit status, also with several rates.
    for (flags, expected) in [
        ("--total=4 --slo=errors=4", 0),
        ("--total=4 --slo=errors=4 --max-errors=3", 1),
        ("--rates=5,10 --step=1s --warm-up=0s", 1),
        ("--rates=5,10 --step=1s --warm-up=0s --max-errors=15", 0),
    ] {
        let line = format!("put --val-size=2000000 {flags}");
        let (status, out, err) = output_of(etcd.loadgen(&etcd.address, &line).output().unwrap());
        assert_eq!(status, Some(expected), "{line}: {out}{err}");
    }
}

#[test]
#[ignore = "needs real etcd (interop/build.sh)"]
fn watchers_leases_and_transactions_are_measured_without_a_failure() {
    let etcd = Etcd::start(Security::Open);
    // (command, titles of its reports, successful requests or events; 0: any number)
    for (line, titles, succeeded) in [
        ("txn-mixed k --total=100 --clients=5", "Total Read Ops: Total Write Ops:", 100),
        ("lease-keepalive --total=100 --clients=5 --conns=2", "Summary:", 100),
        ("range --prefix --paginate --total=30 --clients=3", "Summary:", 30),
        ("stm --total=50 --clients=5 --keys=3 --txn-wr-percent=100 --isolation=s", "Summary:", 50),
        ("stm --total=20 --clients=5 --isolation=ss --stm-locker=lock-client", "Summary:", 20),
        ("stm --total=20 --clients=5 --isolation=c --stm-locker=lock-rpc", "Summary:", 20),
        (
            "watch --streams=3 --watch-per-stream=4 --put-total=20 --clients=3",
            "Watch creation summary: Put summary: Watch events received summary:",
            240,
        ),
        (
            "watch-latency --streams=2 --watchers-per-stream=3 --put-total=20 --prevkv",
            "Put summary: from the answer of the put:",
            120,
        ),
        ("watch-get --watchers=20 --streams=4 --events=3", "Get during watch summary:", 0),
        (
            "watch-history --streams=2 --watchers-per-stream=2 --total=50",
            "Watch events received summary:",
            200,
        ),
        ("put --total=20 --streams=2 --watchers-per-stream=3", "Put summary:", 20),
    ] {
        let (status, text, err) = output_of(etcd.loadgen(&etcd.address, line).output().unwrap());
        assert_eq!(status, Some(0), "{line}: {text}{err}");
        for title in titles.split_inclusive(':').map(str::trim) {
            assert!(text.contains(title), "{line}: {title} in {text}");
        }
        let line = format!("{line} --json=-");
        let (status, json, err) = output_of(etcd.loadgen(&etcd.address, &line).output().unwrap());
        assert_eq!(status, Some(0), "{line}: {json}{err}");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let counted = json["succeeded"].as_u64().unwrap();
        assert!(counted == succeeded || succeeded == 0 && counted > 0, "{line}: {counted}");
    }
}
