use std::collections::HashMap;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use super::*;

fn read(line: &str, environment: &[(&str, &str)]) -> Result<ParsedFlags, FlagError> {
    let arguments = line.split(' ').filter(|word| !word.is_empty()).map(OsString::from);
    let environment = environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    parse(arguments, environment)
}

fn flags(line: &str, environment: &[(&str, &str)]) -> Flags {
    match read(line, environment) {
        Ok(ParsedFlags::Flags(flags, _)) => *flags,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn every_spelling_of_go_means_the_same() {
    for line in ["--name a", "-name a", "--name=a", "-name=a", "--name b --name a", "--name=b -name a --"] {
        assert_eq!(flags(line, &[]).name, "a", "{line}");
    }
}

#[test]
fn a_switch_takes_its_value_only_after_an_equals_sign() {
    assert!(flags("--version", &[]).version);
    assert!(!flags("--version=false", &[]).version);
    assert!(flags("-version=T --name x", &[]).version);
    assert!(!flags("", &[]).version);
}

#[test]
fn an_empty_list_of_urls_leaves_what_was_there() {
    let urls = "http://127.0.0.1:1";
    let line = format!("--listen-client-urls={urls} --listen-client-urls= --listen-peer-urls=");
    let found = flags(&line, &[]);
    assert_eq!(found.listen_client_urls.texts(), [urls]);
    assert_eq!(found.listen_peer_urls.texts(), ["http://localhost:2380"]);
    let in_file = parse_file("advertise-client-urls: ''\ninitial-advertise-peer-urls: ''").unwrap().0;
    assert_eq!(in_file.initial_advertise_peer_urls.texts(), ["http://localhost:2380"]);
}

#[test]
fn values_may_be_empty_or_look_like_flags() {
    assert_eq!(flags("--wal-dir=", &[]).wal_dir.as_deref(), Some(""));
    assert_eq!(flags("--name --name", &[]).name, "--name");
    assert_eq!(flags("--quota-backend-bytes -1", &[]).quota_backend_bytes, -1);
}

/// A line, the error, and the exit code.
const BAD_LINES: &[(&str, &str, u8)] = &[
    ("--bogus", "flag provided but not defined: -bogus", 2),
    ("--bogus=1", "flag provided but not defined: -bogus", 2),
    ("--force-new-cluster=x", "invalid boolean value \"x\" for -force-new-cluster: parse error", 2),
    ("--pre-vote=x", "invalid boolean value \"x\" for -pre-vote: parse error", 2),
    ("--raft-read-timeout x", "invalid value \"x\" for flag -raft-read-timeout: parse error", 2),
    (
        "--v2-deprecation not-yet",
        "invalid value \"not-yet\" for flag -v2-deprecation: invalid value \"not-yet\"",
        2,
    ),
    ("--v2-deprecation=", "invalid value \"\" for flag -v2-deprecation: invalid value \"\"", 2),
    (
        "--experimental-corrupt-check-time=1h",
        "flag provided but not defined: -experimental-corrupt-check-time; write --corrupt-check-time",
        2,
    ),
    (
        "--experimental-enable-lease-checkpoint",
        "flag provided but not defined: -experimental-enable-lease-checkpoint; write \
             --feature-gates=LeaseCheckpoint=true",
        2,
    ),
    (
        "--experimental-compact-hash-check-enabled",
        "flag provided but not defined: -experimental-compact-hash-check-enabled; write \
             --feature-gates=CompactHashCheck=true",
        2,
    ),
    ("--datadir=x", "flag provided but not defined: -datadir; did you mean --data-dir?", 2),
    (
        "--listen-client-url=x",
        "flag provided but not defined: -listen-client-url; did you mean --listen-client-urls?",
        2,
    ),
    (
        "--experimental-enable-v2v3=/v2",
        "flag provided but not defined: -experimental-enable-v2v3; removed in etcd 3.6: delete it",
        2,
    ),
    ("--enable-v2=true", "flag provided but not defined: -enable-v2; removed in etcd 3.6: delete it", 2),
    (
        "--proxy-write-timeout 5000",
        "flag provided but not defined: -proxy-write-timeout; removed in etcd 3.6: delete it",
        2,
    ),
    (
        "--log-output=stderr",
        "flag provided but not defined: -log-output; removed in etcd 3.5: write --log-outputs",
        2,
    ),
    ("--cli-cert=c", "flag provided but not defined: -cli-cert; kv-server --help-all lists all flags", 2),
    (
        "--listen-clients-url=x",
        "flag provided but not defined: -listen-clients-url; did you mean --listen-client-urls?",
        2,
    ),
    ("--trusted-ca=x", "flag provided but not defined: -trusted-ca; did you mean --trusted-ca-file?", 2),
    (
        "snapshot save f",
        "\"snapshot\" is not a valid flag: save with `etcdctl snapshot save FILE`, restore with `kvctl",
        1,
    ),
    ("defrag", "\"defrag\" is not a valid flag: space is reused without it; `etcdctl defrag`", 1),
    ("version", "\"version\" is not a valid flag: run `kv-server --version`", 1),
    ("help", "\"help\" is not a valid flag: run `kv-server --help`", 1),
    ("endpoint status", "\"endpoint\" is not a valid flag: run `etcdctl endpoint`", 1),
    ("--v2-deprecation foo", "invalid value \"foo\" for flag -v2-deprecation: invalid value \"foo\"", 2),
    (
        "--feature-gates Foo=true",
        "invalid value \"Foo=true\" for flag -feature-gates: unrecognized feature gate: Foo",
        2,
    ),
    (
        "--feature-gates LeaseCheckpoint=x",
        "invalid value \"LeaseCheckpoint=x\" for flag -feature-gates: \
             invalid value of LeaseCheckpoint=x, err: strconv.ParseBool: parsing \"x\": invalid syntax",
        2,
    ),
    (
        "--feature-gates InitialCorruptCheck",
        "invalid value \"InitialCorruptCheck\" for flag -feature-gates: \
             missing bool value for InitialCorruptCheck",
        2,
    ),
    (
        "--feature-gates LeaseCheckpointPersist=true",
        "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint",
        1,
    ),
    (
        "--cors=https://a.example",
        "invalid value \"https://a.example\" for flag -cors: \
             URL address does not have the form \"host:port\": https://a.example",
        2,
    ),
    ("--name", "flag needs an argument: -name", 2),
    ("---name", "bad flag syntax: ---name", 2),
    ("-=x", "bad flag syntax: -=x", 2),
    ("extra", "\"extra\" is not a valid flag", 1),
    ("--name a extra", "\"extra\" is not a valid flag", 1),
    ("-- extra", "\"extra\" is not a valid flag", 1),
    ("--version=maybe", "invalid boolean value \"maybe\" for -version: parse error", 2),
    ("--heartbeat-interval x", "invalid value \"x\" for flag -heartbeat-interval: parse error", 2),
    ("--max-txn-ops=-1", "invalid value \"-1\" for flag -max-txn-ops: parse error", 2),
    (
        "--election-timeout=18446744073709551616",
        "invalid value \"18446744073709551616\" for flag -election-timeout: value out of range",
        2,
    ),
    (
        "--initial-cluster-state foo",
        "invalid value \"foo\" for flag -initial-cluster-state: invalid value",
        2,
    ),
    (
        "--listen-client-urls http://127.0.0.1",
        "invalid value \"http://127.0.0.1\" for flag -listen-client-urls: \
             URL address does not have the form \"host:port\": http://127.0.0.1",
        2,
    ),
];

#[test]
fn a_bad_line_is_refused_in_gos_words() {
    for (line, wanted, code) in BAD_LINES {
        let error = read(line, &[]).expect_err(line);
        let said = error.to_string();
        assert!(said.starts_with(wanted) && error.exit_code() == *code, "{line}: {said}");
    }
}

#[test]
fn a_bad_value_of_discovery_is_refused_in_gos_words() {
    for (flag, value, reason) in
        [("discovery-dial-timeout", "x", "parse error"), ("discovery-fallback", "foo", "invalid value")]
    {
        let error = read(&format!("--{flag} {value}"), &[]).expect_err(flag);
        let wanted = format!("invalid value \"{value}\" for flag -{flag}: {reason}");
        assert!(error.to_string().starts_with(&wanted) && error.exit_code() == 2, "{error}");
    }
}

#[test]
fn a_variable_stands_for_its_flag() {
    let flags = flags(
        "--name a",
        &[("ETCD_DATA_DIR", "d"), ("ETCD_WAL_DIR", ""), ("ETCD_MAX_TXN_OPS", "7"), ("HOME", "h")],
    );
    assert_eq!((flags.data_dir.as_deref(), flags.wal_dir, flags.max_txn_ops), (Some("d"), None, 7));
}

#[test]
fn a_bad_environment_is_refused() {
    let cases = [
        (
            "--name a",
            ("ETCD_NAME", "b"),
            "conflicting environment variable \"ETCD_NAME\" is shadowed by corresponding command-line flag \
             (either unset environment variable or disable flag)",
            1,
        ),
        (
            "",
            ("ETCD_HEARTBEAT_INTERVAL", "x"),
            "invalid value \"x\" for ETCD_HEARTBEAT_INTERVAL: parse error",
            1,
        ),
        ("", ("ETCD_PRE_VOTE", "x"), "invalid value \"x\" for ETCD_PRE_VOTE: parse error", 1),
    ];
    for (line, variable, wanted, code) in cases {
        let error = read(line, &[variable]).expect_err(wanted);
        assert!(error.to_string().starts_with(wanted) && error.exit_code() == code, "{error}");
    }
}

/// Each character as one byte: `ÿ` alone is no UTF-8.
fn latin_1(text: &str) -> OsString {
    OsString::from_vec(text.chars().map(|character| u8::try_from(character).unwrap()).collect())
}

#[test]
fn a_flag_that_is_not_utf_8_is_refused_by_name() {
    for (line, wanted, code) in [
        ("--data-dir=/dÿ", r#"invalid value "/d\xff" for flag -data-dir: not valid UTF-8"#, 2),
        ("-data-dir Ã/d", r#"invalid value "\xc3/d" for flag -data-dir: not valid UTF-8"#, 2),
        ("--max-wals=ÿ", r#"invalid value "\xff" for flag -max-wals: not valid UTF-8"#, 2),
        (
            "--force-new-cluster=ÿ",
            r#"invalid boolean value "\xff" for -force-new-cluster: not valid UTF-8"#,
            2,
        ),
        (
            "--discovery-password=pÿ",
            r#"invalid value "***" for flag -discovery-password: not valid UTF-8"#,
            2,
        ),
        ("--bogusÿ", r"flag provided but not defined: -bogus\xff", 2),
        ("exÿtra", r#""ex\xfftra" is not a valid flag"#, 1),
        ("-- ÿ", r#""\xff" is not a valid flag"#, 1),
    ] {
        let error = parse(line.split(' ').map(latin_1), []).expect_err(wanted);
        assert!(error.to_string().starts_with(wanted) && error.exit_code() == code, "{error}");
    }
}

#[test]
fn a_flag_is_refused_also_where_a_variable_names_the_file() {
    let line = "--config-file= --config-file= --heartbeat-interval=x";
    let error = read(line, &[("ETCD_CONFIG_FILE", "/f")]).expect_err("an interval is a number");
    assert!(error.to_string().starts_with("invalid value \"x\" for flag -heartbeat-interval"), "{error}");
}

#[test]
fn a_variable_that_is_not_utf_8_is_refused_by_name() {
    for (variable, value, wanted) in [
        ("ETCD_DATA_DIR", "/dÿ", r#"invalid value "/d\xff" for ETCD_DATA_DIR: not valid UTF-8"#),
        ("ETCD_MAX_WALS", "ÿ", r#"invalid value "\xff" for ETCD_MAX_WALS: not valid UTF-8"#),
    ] {
        let error = parse([], [(latin_1(variable), latin_1(value))]).expect_err(wanted);
        assert_eq!((error.to_string().as_str(), error.exit_code()), (wanted, 1));
    }
    // What nothing is read from.
    let environment = [("HOME", "/hÿ"), ("ETCD_BOGUS", "ÿ"), ("ETCD_NAMÿ", "n"), ("ETCD_VERSION", "ÿ")];
    let environment = environment.map(|(name, value)| (latin_1(name), latin_1(value)));
    let Ok(ParsedFlags::Flags(_, notices)) = parse([], environment) else { panic!("refused") };
    let unknown = |name: &str| Notice::UnknownVariable { name: name.to_owned(), advice: None };
    assert_eq!(notices, [unknown("ETCD_BOGUS"), unknown(r"ETCD_NAM\xff")]);
}

#[test]
fn advice_about_an_unknown_variable_or_key_is_spelled_as_it_was_read() {
    let environment = [("ETCD_CLI_CERT", "c"), ("ETCD_NAM", "n"), ("ETCD_DEBUG", "true")];
    let Ok(ParsedFlags::Flags(_, notices)) = read("", &environment) else { panic!("refused") };
    let (_, of_file) = parse_file("debug: true\ndata-dirs: d\nexperimental-max-learners: 2").unwrap();
    let mut advised: Vec<(String, String)> = notices
        .into_iter()
        .chain(of_file)
        .map(|notice| match notice {
            Notice::UnknownVariable { name, advice } | Notice::UnknownKey { name, advice } => {
                (name, advice.unwrap_or_default())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    advised.sort();
    let wanted = [
        ("ETCD_CLI_CERT", ""),
        ("ETCD_DEBUG", "removed in etcd 3.5: write ETCD_LOG_LEVEL=debug"),
        ("ETCD_NAM", "did you mean ETCD_NAME?"),
        ("data-dirs", "did you mean data-dir?"),
        ("debug", "removed in etcd 3.5: write log-level: debug"),
        ("experimental-max-learners", "write max-learners"),
    ];
    assert_eq!(advised, wanted.map(|(name, advice)| (name.to_owned(), advice.to_owned())));
}

#[test]
fn a_quota_has_a_unit_or_none() {
    let flags = flags("--quota-backend-bytes=8GiB --max-request-bytes 2MiB", &[]);
    assert_eq!((flags.quota_backend_bytes, flags.max_request_bytes), (8 << 30, 2 << 20));
    assert_eq!(parse_file("quota-backend-bytes: 8GiB").unwrap().0.quota_backend_bytes, 8 << 30);
}

#[test]
fn what_is_not_understood_but_harmless_is_noticed() {
    let environment = [
        ("ETCD_BOGUS", "1"),
        ("ETCD_EXPERIMENTAL_MAX_LEARNERS", "1"),
        ("ETCD_VERSION", "3"),
        ("ETCD_NAME", "n"),
        ("ETCD_DISCOVERY_USER", "u:s3cret"),
        ("ETCD_DISCOVERY_PASSWORD", "s3cret"),
    ];
    let Ok(ParsedFlags::Flags(flags, notices)) = read("--snapshot=true", &environment) else {
        panic!("refused");
    };
    assert!(!flags.version);
    let wanted = [
        Notice::IgnoredFlag { name: "snapshot".to_owned() },
        Notice::UnknownVariable { name: "ETCD_BOGUS".to_owned(), advice: None },
        Notice::UnknownVariable {
            name: "ETCD_EXPERIMENTAL_MAX_LEARNERS".to_owned(),
            advice: Some("write ETCD_MAX_LEARNERS".to_owned()),
        },
        Notice::UsedVariable { name: "ETCD_NAME".to_owned(), value: "n".to_owned() },
        Notice::UsedVariable { name: "ETCD_DISCOVERY_USER".to_owned(), value: "u:***".to_owned() },
        Notice::UsedVariable { name: "ETCD_DISCOVERY_PASSWORD".to_owned(), value: "***".to_owned() },
    ];
    assert_eq!(notices, wanted);
}

#[test]
fn lengths_of_time_are_read_as_go_writes_them() {
    let cases = [
        ("5s", Some(5_000)),
        ("2h0m0s", Some(7_200_000)),
        ("1.5s", Some(1_500)),
        ("300ms", Some(300)),
        ("0", Some(0)),
        ("", None),
        ("5", None),
        ("s", None),
        ("-5s", None),
        ("5 s", None),
        ("1d", None),
    ];
    for (text, wanted) in cases {
        let read = duration(text).ok().map(|length| length.as_millis());
        assert_eq!(read, wanted, "{text:?}");
    }
}

#[test]
fn help_is_short_or_whole() {
    for (line, whole) in [
        ("-h", false),
        ("--help", false),
        ("--name a -help", false),
        ("-help-all", true),
        ("--help-all", true),
    ] {
        let Ok(ParsedFlags::Help { is_all }) = read(line, &[]) else { panic!("{line}") };
        assert_eq!(is_all, whole, "{line}");
    }
}

fn reasons(notices: &[Notice]) -> Vec<&'static str> {
    let reason = |notice: &Notice| match notice {
        Notice::NoEffect { reason, .. } => Some(*reason),
        _ => None,
    };
    notices.iter().filter_map(reason).collect()
}

/// Flags of the tables of the page, each with the reason of its warning if it has one.
fn statuses_on_the_page() -> HashMap<&'static str, Option<String>> {
    let rows = include_str!("../../../../docs/compatibility/flags.md").lines();
    rows.filter_map(|row| {
        let (name, rest) = row.strip_prefix("| `--")?.split_once("` | ")?;
        let (_default, status) = rest.split_once("| ")?;
        let (status, _shown_by) = status.rsplit_once(" | ")?;
        Some((name, status.strip_prefix("accepted with a warning: ").map(str::to_owned)))
    })
    .collect()
}

/// What each flag of etcd does here, as `tests/flags.txt` lists it: name, behaviour, and a value. A
/// length of time is `1s` there.
#[test]
fn every_flag_of_etcd_behaves_as_listed() {
    let rows: Vec<Vec<&str>> =
        include_str!("tests/flags.txt").lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 113);
    let page = statuses_on_the_page();
    assert_eq!(page.len(), 113);
    for row in &rows {
        let [name, behaviour, value] = &row[..] else { panic!("{row:?}") };
        let (name, behaviour) = (*name, *behaviour);
        let line = format!("--{name}={value}");
        let variable = format!("ETCD_{}", name.to_uppercase().replace('-', "_"));
        let by_flag = read(&line, &[]);
        // What a file does not take, or ignores.
        let by_file = match name {
            "version" | "config-file" | "discovery-fallback" => by_flag.clone(),
            name => parse_file(&format!("{name}: '{value}'"))
                .map(|(flags, notices)| ParsedFlags::Flags(Box::new(flags), notices)),
        };
        if *value == "1s" {
            // A file has etcd's nanoseconds as well.
            let parsed = parse_file(&format!("{name}: 1000000000")).expect(name);
            let by_text = parse_file(&format!("{name}: 1s")).expect(name);
            assert_eq!(format!("{parsed:?}"), format!("{by_text:?}"), "{name}");
        }
        // ETCD_VERSION asks for no version.
        let by_variable = if name == "version" { by_flag.clone() } else { read("", &[(&variable, value)]) };
        for (read, origin) in [(by_flag, "flag"), (by_variable, "variable"), (by_file, "file")] {
            let (flags, notices) = match read {
                Ok(ParsedFlags::Flags(flags, notices)) => (flags, notices),
                other => panic!("{row:?} by {origin}: {other:?}"),
            };
            let reasons = reasons(&notices);
            let got = if reasons.is_empty() { "honoured" } else { "warned" };
            assert_eq!(got, behaviour, "{name} by {origin}");
            assert!(reasons.len() <= 1, "{name} by {origin} is warned about more than once");
            let is_alone = format!("{flags:?}") == format!("{:?}", flags_of(&[]).unwrap());
            assert_eq!(is_alone, got == "warned", "{name} by {origin}");
            let status = reasons.first().map(|reason| (*reason).to_owned());
            assert_eq!(page.get(name), Some(&status), "{name} on the page");
        }
    }
    let ours = [
        "audit-log",
        "audit-log-level",
        "auth-recheck-watchers",
        "client-cert-allowed-cn",
        "local-cluster",
        "memory-limit",
        "metrics-top",
    ];
    for known in command().get_arguments().filter_map(clap::Arg::get_long) {
        assert!(ours.contains(&known) || rows.iter().any(|row| row[0] == known), "{known} is in no list");
    }
}

#[test]
fn a_flag_without_effect_is_warned_about_once() {
    let line = "--max-wals 3 --max-wals=5 --feature-gates InitialCorruptCheck=true,AllBeta=true,LeaseCheckpoint=false";
    let Ok(ParsedFlags::Flags(_, notices)) = read(line, &[("ETCD_LOG_OUTPUTS", "stderr")]) else {
        panic!("refused");
    };
    let names: Vec<&str> = notices
        .iter()
        .filter_map(|notice| match notice {
            Notice::NoEffect { name, reason } if !reason.is_empty() => Some(name.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(names, ["max-wals", "feature-gates AllBeta", "feature-gates LeaseCheckpoint"]);
}

#[test]
fn a_file_says_what_flags_say() {
    let text = "\
        name: a\nheartbeat-interval: 50\nquota-backend-bytes: -1\nmax-wals: 5\n\
        listen-client-urls: https://127.0.0.1:1,http://127.0.0.1:2\nwal-dir:\nforce-new-cluster: false\n\
        grpc-keepalive-min-time: 7000000000\ndiscovery-fallback: proxy\nproxy: 'off'\nfeature-gates: AllBeta=true\n\
        client-transport-security: {cert-file: c, key-file: k, client-cert-auth: true}\n\
        peer-transport-security: {auto-tls: true}\nlog-outputs: [stderr]\n";
    let (flags, notices) = parse_file(text).unwrap();
    assert_eq!((flags.name.as_str(), flags.heartbeat_interval), ("a", 50));
    assert_eq!((flags.quota_backend_bytes, flags.wal_dir), (-1, None));
    assert_eq!(flags.listen_client_urls.iter().count(), 2);
    assert_eq!(flags.grpc_keepalive_min_time, Duration::from_secs(7));
    let TlsFlags { cert_file, client_cert_auth, peer_auto_tls, .. } = flags.tls;
    assert_eq!((cert_file.as_deref(), client_cert_auth, peer_auto_tls), (Some("c"), true, true));
    let mut noted: Vec<String> = notices
        .iter()
        .map(|notice| match notice {
            Notice::NoEffect { name, .. } => format!("no effect: {name}"),
            Notice::UnknownKey { name, advice } => {
                format!("unknown: {name}; {}", advice.as_deref().unwrap_or_default())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    noted.sort();
    let proxy = "unknown: proxy; removed in etcd 3.6: delete it";
    assert_eq!(noted, ["no effect: feature-gates AllBeta", "no effect: max-wals", proxy]);
}

#[test]
fn a_bad_file_is_refused_in_etcds_words() {
    for (text, wanted) in [
        (
            "listen-client-urls: foo",
            "unexpected error setting up listen-client-urls: \
             URL scheme must be http, https, unix, or unixs: foo",
        ),
        ("initial-cluster-state: foo", "unexpected clusterState \"foo\""),
        ("feature-gates: Foo=true", "unrecognized feature gate: Foo"),
        (
            "heartbeat-interval: x",
            "error unmarshaling the configuration file: heartbeat-interval: \"x\": parse error",
        ),
        ("max-wals: x", "error unmarshaling the configuration file: max-wals: \"x\": parse error"),
    ] {
        let error = parse_file(text).expect_err(text);
        assert!(error.to_string().starts_with(wanted) && error.exit_code() == 1, "{text}: {error}");
    }
}
