use super::*;

fn read(line: &str, environment: &[(&str, &str)]) -> Result<Parsed, FlagError> {
    let arguments = line.split(' ').filter(|word| !word.is_empty()).map(OsString::from);
    let environment = environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    parse(arguments, environment)
}

fn flags(line: &str, environment: &[(&str, &str)]) -> Flags {
    match read(line, environment) {
        Ok(Parsed::Flags(flags, _)) => *flags,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn every_spelling_of_go_means_the_same() {
    for line in ["--name a", "-name a", "--name=a", "-name=a", "--name b --name a", "--name=b -name a --"] {
        assert_eq!(flags(line, &[]).name.as_deref(), Some("a"), "{line}");
    }
}

#[test]
fn a_switch_takes_its_value_only_after_an_equals_sign() {
    assert_eq!(flags("--version", &[]).version, Some(true));
    assert_eq!(flags("--version=false", &[]).version, Some(false));
    assert_eq!(flags("-version=T --name x", &[]).version, Some(true));
    assert_eq!(flags("", &[]).version, None);
}

#[test]
fn values_may_be_empty_or_look_like_flags() {
    assert_eq!(flags("--wal-dir=", &[]).wal_dir.as_deref(), Some(""));
    assert_eq!(flags("--name --name", &[]).name.as_deref(), Some("--name"));
    assert_eq!(flags("--quota-backend-bytes -1", &[]).quota_backend_bytes, Some(-1));
}

#[test]
fn a_bad_line_is_refused_in_gos_words() {
    let cases = [
        ("--bogus", "flag provided but not defined: -bogus", 2),
        ("--bogus=1", "flag provided but not defined: -bogus", 2),
        ("--pre-vote=false", "flag --pre-vote is not built yet in kv-server", 2),
        ("--cors x", "flag --cors is not built yet in kv-server", 2),
        ("--name", "flag needs an argument: -name", 2),
        ("---name", "bad flag syntax: ---name", 2),
        ("-=x", "bad flag syntax: -=x", 2),
        ("extra", "\"extra\" is not a valid flag", 1),
        ("--name a extra", "\"extra\" is not a valid flag", 1),
        ("-- extra", "\"extra\" is not a valid flag", 1),
        ("--version=maybe", "invalid value \"maybe\" for flag -version: parse error", 2),
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
    for (line, wanted, code) in cases {
        let error = read(line, &[]).expect_err(line);
        assert_eq!((error.to_string().as_str(), error.exit_code()), (wanted, code), "{line}");
    }
}

#[test]
fn a_variable_stands_for_its_flag() {
    let flags = flags(
        "--name a",
        &[("ETCD_DATA_DIR", "d"), ("ETCD_WAL_DIR", ""), ("ETCD_MAX_TXN_OPS", "7"), ("HOME", "h")],
    );
    assert_eq!((flags.data_dir.as_deref(), flags.wal_dir, flags.max_txn_ops), (Some("d"), None, Some(7)));
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
        ("", ("ETCD_PRE_VOTE", "true"), "flag --pre-vote is not built yet in kv-server", 2),
    ];
    for (line, variable, wanted, code) in cases {
        let error = read(line, &[variable]).expect_err(wanted);
        assert_eq!((error.to_string().as_str(), error.exit_code()), (wanted, code));
    }
}

#[test]
fn what_is_not_understood_but_harmless_is_noticed() {
    let environment = [("ETCD_BOGUS", "1"), ("ETCD_VERSION", "3"), ("ETCD_NAME", "n")];
    let Ok(Parsed::Flags(flags, notices)) = read("--snapshot=true", &environment) else {
        panic!("refused");
    };
    assert_eq!(flags.version, None);
    let wanted = [
        Notice::IgnoredFlag { name: "snapshot".to_owned() },
        Notice::UnknownVariable { name: "ETCD_BOGUS".to_owned() },
        Notice::UsedVariable { name: "ETCD_NAME".to_owned(), value: "n".to_owned() },
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
fn help_lists_every_flag() {
    for line in ["-h", "--help", "--name a -help"] {
        let Ok(Parsed::Help(text)) = read(line, &[]) else { panic!("{line}") };
        assert!(text.contains("--initial-advertise-peer-urls") && text.contains("--local-cluster"), "{text}");
    }
}

#[test]
fn every_flag_of_etcd_is_built_refused_or_ignored() {
    let built = Flags::command().get_arguments().count();
    // Ours alone: --local-cluster.
    assert_eq!(built - 1 + tables::NOT_BUILT.len(), 113);
}
