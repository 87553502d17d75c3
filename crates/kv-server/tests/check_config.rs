//! `kv-server check-config`.

use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::ffi::OsStringExt;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::common;

struct Checked {
    code: i32,
    report: Value,
}

fn checked(flags: &[&str], environment: &[(&str, &str)]) -> Checked {
    let mut command = Command::new(common::server());
    command.args(["check-config", "-w", "json"]).args(flags).env_clear();
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap();
    Checked { code: output.status.code().unwrap(), report }
}

impl Checked {
    fn setting(&self, flag: &str) -> (&str, &str) {
        let settings = self.report["settings"].as_array().unwrap();
        let found = settings.iter().find(|setting| setting["flag"] == flag).unwrap();
        (found["value"].as_str().unwrap(), found["source"].as_str().unwrap())
    }

    fn has_risk(&self, text: &str) -> bool {
        let risks = self.report["risks"].as_array().unwrap();
        risks.iter().any(|risk| risk.as_str().unwrap().contains(text))
    }
}

#[test]
fn values_have_a_source_and_what_has_no_effect_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let data_dir = format!("--data-dir={}", data.display());
    // A port in use is no fault of the flags.
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", held.local_addr().unwrap());
    let listen = format!("--listen-client-urls={url}");
    let advertise = format!("--advertise-client-urls={url}");
    let flags = [
        &data_dir[..],
        &listen,
        &advertise,
        "--max-wals=7",
        "--discovery-password=s3cret",
        "--discovery-user=u:s3cret",
    ];
    let checked = checked(&flags, &[("ETCD_NAME", "n"), ("ETCD_BOGUS", "1")]);
    assert_eq!(checked.code, 0, "{}", checked.report);
    assert_eq!(checked.setting("name"), ("n", "environment"));
    assert_eq!(checked.setting("listen-client-urls"), (&url[..], "flag"));
    assert_eq!(checked.setting("heartbeat-interval"), ("100", "default"));
    assert_eq!(checked.setting("discovery-password"), ("***", "flag"));
    assert_eq!(checked.setting("discovery-user"), ("u:***", "flag"));
    assert_eq!(checked.report["without_effect"][0]["flag"], "max-wals");
    assert!(checked.has_risk("ETCD_BOGUS") && checked.has_risk("--auto-compaction-retention"));
    assert!(!data.exists(), "it changed something");
}

#[test]
fn a_file_counts_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kv.yml");
    std::fs::write(&file, "name: f\nauto-compaction-retention: '1'\n").unwrap();
    let flag = format!("--config-file={}", file.display());
    let environment =
        [("ETCD_WAL_DIR", "w"), ("ETCD_BOGUS", "1"), ("ETCD_VERSION", "3.5"), ("ETCD_NAME", "")];
    let alone = checked(&["--name=n", &flag], &environment);
    assert_eq!((alone.code, alone.setting("name")), (0, ("f", "file")));
    assert!(!alone.has_risk("--auto-compaction-retention"));
    assert_eq!(alone.report["ignored"], serde_json::json!(["--name", "ETCD_WAL_DIR"]));
    let text = printed(&["--name=n", &flag], &environment);
    assert!(text.contains("ignored: only --config-file applies:\n  --name\n  ETCD_WAL_DIR\n"), "{text}");
}

/// What is printed for people.
fn printed(flags: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(common::server());
    command.arg("check-config").args(flags).env_clear().envs(environment.iter().copied());
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

#[test]
fn the_text_has_what_was_given_and_no_defaults() {
    let text = printed(&["--data-dir=/no/such/d"], &[("ETCD_NAM", "n")]);
    assert!(text.contains("\n  --data-dir=/no/such/d (flag)\n"), "{text}");
    let typo = "\n  ETCD_NAM is no setting of kv-server and is ignored; did you mean ETCD_NAME?\n";
    assert!(text.contains(typo), "{text}");
    assert!(!text.contains("--heartbeat-interval=") && text.lines().count() < 20, "{text}");
}

/// Without what the page about monitoring describes, an operator sees nothing.
#[test]
fn sample_configurations_turn_on_metrics_compaction_and_quota() {
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
    for file in ["config/member-a.env", "config/member-b.env", "config/member-c.env", "debian/kv-server.env"]
    {
        let text = std::fs::read_to_string(format!("{deploy}/{file}")).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let environment: Vec<(&str, &str)> = lines.map(|line| line.split_once('=').unwrap()).collect();
        let checked = checked(&[], &environment);
        assert_eq!(checked.code, 0, "{file}: {}", checked.report);
        for flag in ["listen-metrics-urls", "auto-compaction-retention", "quota-backend-bytes"] {
            let (value, source) = checked.setting(flag);
            assert!(source == "environment" && value != "0", "{file}: {flag}={value}");
        }
        for risk in ["--auto-compaction-retention", "is no setting"] {
            assert!(!checked.has_risk(risk), "{file}: {risk}: {}", checked.report);
        }
    }
}

#[test]
fn what_others_wrote_does_not_act_on_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kv.yml");
    let is_visible =
        |text: &str| !text.contains(|it: char| it.is_control() && it != '\n' || it == '\u{202e}');
    let (name, key) = ("a\u{1b}[2J\n  --name=b (file)", "k\u{1b}]0;t\u{7}\u{9b}");
    let text = serde_json::json!({ "initial-cluster-token": name, key: "\u{202e}" }).to_string();
    // The same in YAML and in an error.
    let refused = serde_json::json!({ "log-format": format!("{name}{key}") }).to_string();
    for (text, code) in [(text, 0), (refused, 1)] {
        // YAML has no such character in its text.
        std::fs::write(&file, text.replace('\u{9b}', "\\u009b")).unwrap();
        let flag = format!("--config-file={}", file.display());
        for format in [&["-w", "json"][..], &[]] {
            let mut command = Command::new(common::server());
            let output = command.arg("check-config").args(format).arg(&flag).env_clear().output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.code() == Some(code) && is_visible(&said), "{said:?}");
            assert!(said.contains("[2J") && !said.contains("\n  --name=b"), "{said:?}");
        }
        let checked = checked(&[&flag], &[]);
        if code == 0 {
            assert_eq!(checked.setting("initial-cluster-token"), (name, "file"));
            assert!(checked.has_risk(key), "{}", checked.report);
        } else {
            assert!(checked.report["error"].as_str().unwrap().contains(key), "{}", checked.report);
            let output = Command::new(common::server()).arg(&flag).env_clear().output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(1) && is_visible(&said), "{said:?}");
            assert!(said.lines().count() == 1 && said.contains("\\u{1b}[2J\\u{a}"), "{said:?}");
        }
    }
}

#[test]
fn a_directory_that_is_not_utf_8_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = OsString::from_vec(b"--data-dir=d\xff".to_vec());
    for command in [&["check-config"][..], &[]] {
        let mut member = Command::new(common::server());
        let output = member.args(command).arg(&path).env_clear().current_dir(&directory).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains("invalid value \"d\\xff\" for flag -data-dir: not valid UTF-8"), "{said}");
        assert!(!output.status.success() && directory.path().read_dir().unwrap().next().is_none());
    }
}

#[test]
fn risks_are_named() {
    let two = "a=http://10.0.0.1:2380,b=http://10.0.0.2:2380";
    let own = "--initial-advertise-peer-urls=http://10.0.0.1:2380";
    let cases: [(&[&str], &str); 11] = [
        (
            &["--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://10.0.0.1:2379"],
            "client traffic is unencrypted on http://0.0.0.0:2379",
        ),
        (&["--listen-peer-urls=http://0.0.0.0:2380"], "peer traffic is unencrypted on http://0.0.0.0:2380"),
        (&["--name=a", "--initial-cluster", two, own], "2 members tolerate the loss of 0, as 1 members do"),
        (&["--name=a", "--initial-cluster", two, own], "--initial-cluster-token is the default"),
        (
            &["--name=a", "--initial-cluster", two, own],
            "advertised http://localhost:2379 points other machines to themselves",
        ),
        (
            &["--advertise-client-urls=http://0.0.0.0:2379"],
            "advertised http://0.0.0.0:2379 is not reachable from other hosts",
        ),
        (&["--election-timeout=600"], "less than 10 times"),
        (&["--quota-backend-bytes=9000000000000000"], "that is received may not fit the"),
        (&["--quota-backend-bytes=-1"], "may fill the disk"),
        (&["--data-dir=/dev/shm/kv"], "in memory: a reboot loses all data"),
        (&["--data-dir=/tmp/a", "--wal-dir=/tmp/b"], "on one file system"),
    ];
    for (flags, wanted) in cases {
        let checked = checked(flags, &[]);
        assert!(checked.code == 0 && checked.has_risk(wanted), "{wanted}: {}", checked.report);
    }
}

#[test]
fn certificates_that_end_soon_are_risks() {
    let directory = tempfile::tempdir().unwrap();
    let (pem, key) = (directory.path().join("c.pem"), directory.path().join("c.key"));
    let pair = rcgen::KeyPair::generate().unwrap();
    std::fs::write(&key, pair.serialize_pem()).unwrap();
    let day = Duration::from_secs(86_400);
    for (end, wanted) in [
        (SystemTime::now() - day, Some("has expired")),
        (SystemTime::now() + day * 9 / 2, Some("expires in 4 days")),
        (SystemTime::now() + day * 90, None),
    ] {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = ((end - day * 100).into(), end.into());
        std::fs::write(&pem, params.self_signed(&pair).unwrap().pem()).unwrap();
        let flags = [
            "--listen-client-urls=https://127.0.0.1:1".to_owned(),
            "--advertise-client-urls=https://127.0.0.1:1".to_owned(),
            format!("--cert-file={}", pem.display()),
            format!("--key-file={}", key.display()),
        ];
        let checked = checked(&flags.each_ref().map(String::as_str), &[]);
        assert_eq!(checked.code, 0, "{}", checked.report);
        let named = checked.has_risk("a certificate");
        assert_eq!(named, wanted.is_some(), "{}", checked.report);
        assert!(wanted.is_none_or(|wanted| checked.has_risk(wanted)), "{}", checked.report);
    }
}

#[test]
fn flags_that_no_member_starts_with_are_refused_with_the_reason_of_a_start() {
    let directory = tempfile::tempdir().unwrap();
    for made in ["etcd/member", "archive/archive.json", "import/live-import.json", "made/store", "lost"] {
        std::fs::create_dir_all(directory.path().join(made)).unwrap();
    }
    let identity = r#"{"format":1,"cluster_id":"1","member_id":"2","name":"a","members":[]}"#;
    std::fs::write(directory.path().join("lost/identity.json"), identity).unwrap();
    let of = |name| format!("--data-dir={}", directory.path().join(name).display());
    let [etcd, archive, import, made, lost] = ["etcd", "archive", "import", "made", "lost"].map(of);
    let tls = ["--listen-client-urls=https://127.0.0.1:1", "--advertise-client-urls=https://127.0.0.1:1"];
    let cases: [(&[&str], &str); 13] = [
        (&["--bogus"], "flag provided but not defined: -bogus"),
        (&["--heartbeat-interval=0"], "--heartbeat-interval must be >0"),
        (&["--config-file=/nonexistent"], "open /nonexistent: no such file or directory"),
        (&[&etcd], "is a data directory of etcd"),
        (&[&archive], "is an archive"),
        (&[&import], "is not finished"),
        (&[&made], "holds data but no identity.json"),
        (&[&lost], "the log of member 2 is missing"),
        (&[&lost, "--name=b"], "belongs to member \"a\", not to \"b\""),
        (&["--name=b", "--initial-cluster=a=http://127.0.0.1:1"], "couldn't find local name \"b\""),
        (&["--logger=foo"], "unknown logger option"),
        (&[tls[0], tls[1], "--cert-file=/nonexistent/c", "--key-file=/nonexistent/k"], "/nonexistent/"),
        (&["--auth-token=jwt,sign-method=RS256,priv-key=/nonexistent/j"], "/nonexistent/j"),
    ];
    for (flags, wanted) in cases {
        let checked = checked(flags, &[]);
        let error = checked.report["error"].as_str().unwrap_or_default();
        assert!(checked.code == 1 && error.contains(wanted), "{wanted}: {}", checked.report);
    }
}
