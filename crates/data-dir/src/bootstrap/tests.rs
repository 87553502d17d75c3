use super::*;
use config::flags::{ParsedFlags, parse};
use state_machine::command::{self, Change, Kind, MemberAdd, MemberChange};

fn settings(line: &str) -> Settings {
    match parse(line.split_whitespace().map(Into::into), []) {
        Ok(ParsedFlags::Flags(flags, _)) => Settings::from_flags(&flags).expect(line),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn a_lone_member_is_the_one_that_etcd_would_be() {
    let identity = first_identity(&settings("")).unwrap();
    assert_eq!(format!("{:x}", identity.member_id), "8e9e05c52164694d");
    assert_eq!(format!("{:x}", identity.cluster_id), "cdf818194e3a8c32");
}

#[test]
fn members_with_the_same_flags_agree_on_everything_but_themselves() {
    let cluster = "--initial-cluster c=http://h:3,a=http://h:1,b=http://h:2,a=http://h:4";
    let identity = |name: &str, urls: &str| {
        first_identity(&settings(&format!("--name {name} --initial-advertise-peer-urls {urls} {cluster}")))
            .unwrap()
    };
    let (a, b) = (identity("a", "http://h:4,http://h:1"), identity("b", "http://h:2"));
    assert_eq!((&a.members, a.cluster_id), (&b.members, b.cluster_id));
    assert_ne!(a.member_id, b.member_id);
    assert!(a.members.windows(2).all(|pair| pair[0].id < pair[1].id));
}

#[test]
fn a_cluster_that_does_not_hold_together_is_refused_in_etcds_words() {
    let cases = [
        (
            "--name y --initial-cluster x=http://127.0.0.1:1",
            "couldn't find local name \"y\" in the initial cluster configuration: it has \"x\"; set --name \
             to one of these, or add y=URL",
        ),
        (
            "--name y --initial-cluster=,",
            "couldn't find local name \"y\" in the initial cluster configuration: it has no member; omit \
             the flag, or add y=URL",
        ),
        (
            "--name x --initial-cluster x=http://127.0.0.1:2 --initial-advertise-peer-urls http://127.0.0.1:1",
            "--initial-cluster has x=http://127.0.0.1:2 but missing from \
             --initial-advertise-peer-urls=http://127.0.0.1:1 \
             (resolved urls: \"http://127.0.0.1:1\" != \"http://127.0.0.1:2\")",
        ),
        (
            "--name x --initial-cluster x=http://127.0.0.1:1,y=http://127.0.0.1:1",
            "initial cluster x=http://127.0.0.1:1,y=http://127.0.0.1:1 has duplicate url: write \
             http://127.0.0.1:1 once",
        ),
        (
            "--name x --initial-cluster x=http://127.0.0.1:1,x=http://127.0.0.1:1",
            "initial cluster x=http://127.0.0.1:1,x=http://127.0.0.1:1 has duplicate url: write \
             http://127.0.0.1:1 once",
        ),
        (
            "--name x --initial-cluster x=http://127.0.0.1:1;y=http://127.0.0.1:2",
            "error setting up initial cluster: \"x=http://127.0.0.1:1;y=http://127.0.0.1:2\" is not \
             NAME=URL: no blanks, quotes or semicolons; separate members with commas",
        ),
        (
            "--name x --initial-cluster x=ftp://127.0.0.1:1",
            "error setting up initial cluster: URL scheme must be http, https, unix, or unixs: ftp://127.0.0.1:1",
        ),
        ("--name x --initial-cluster x", "error setting up initial cluster: empty URL given for \"x\""),
    ];
    for (line, wanted) in cases {
        let said = causes(&first_identity(&settings(line)).expect_err(line));
        assert!(said.starts_with(wanted), "{line}: {said}");
    }
}

#[test]
fn own_urls_may_be_spelled_differently_if_they_mean_the_same() {
    let line =
        "--name x --initial-cluster x=http://localhost:1 --initial-advertise-peer-urls http://127.0.0.1:1";
    first_identity(&settings(line)).unwrap();
}

#[test]
fn a_name_that_does_not_resolve_yet_is_asked_for_again() {
    let settings = settings(
        "--name x --initial-cluster x=http://pod:1 --initial-advertise-peer-urls http://127.0.0.1:1",
    );
    let own = Urls::parse("http://pod:1").unwrap();
    for (known_after, starts) in [(0, true), (29, true), (30, false)] {
        let asked = std::cell::Cell::new(0);
        let resolve = |url: &Url| {
            let is_pod = url.host() == "pod";
            asked.set(asked.get() + u32::from(is_pod));
            match is_pod && asked.get() <= known_after {
                true => Err(io::Error::other("no such name")),
                false => Ok("http://127.0.0.1:1".to_owned()),
            }
        };
        let checked = check_own_urls(&settings, &own, resolve, (RESOLVE_ATTEMPTS, Duration::ZERO));
        assert_eq!(checked.is_ok(), starts, "{known_after}");
        if let Err(error) = checked {
            assert!(error.to_string().contains("cannot be compared: http://pod:1: no such name"), "{error}");
        }
    }
}

#[test]
fn a_restart_ignores_what_the_flags_say_of_the_cluster_but_not_another_name() {
    let own = "--initial-advertise-peer-urls http://127.0.0.1:1";
    let identity =
        first_identity(&settings(&format!("--name x --initial-cluster x=http://127.0.0.1:1 {own}")));
    let identity = identity.unwrap();
    let cases = [
        (
            "--name x --initial-cluster x=http://127.0.0.1:1 --initial-advertise-peer-urls http://127.0.0.1:2",
            true,
        ),
        ("--name x --initial-cluster x=http://127.0.0.1:1,y=http://127.0.0.1:2", true),
        ("--name x --initial-cluster y=http://127.0.0.1:2", true),
        ("--name x --initial-cluster nonsense", true),
        // A single lookup.
        ("--name x --initial-cluster x=http://a.invalid:1", true),
        ("--name x", true),
        ("", true),
        ("--name y", false),
    ];
    let begun = Instant::now();
    for (line, wanted) in cases {
        let checked = check_belongs(&identity, &settings(line), Path::new("data"));
        assert_eq!(checked.is_ok(), wanted, "{line}: {checked:?}");
    }
    assert!(begun.elapsed() < RESOLVE_PAUSE * RESOLVE_ATTEMPTS / 2, "{:?}", begun.elapsed());
}

/// Two members with the same flags have the same ids: two clusters of one member with the default name.
#[test]
fn a_member_starts_with_its_own_log_only() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings("");
    let start = |data: &str, log: &str| {
        let directory = Directory::open(&dir.path().join(data), Some(&dir.path().join(log))).unwrap();
        let started = establish(&settings, &directory, log_fs(Arc::default()), |_| None, |_, _| None);
        started.map(|started| started.identity)
    };
    let imported = |data: &str, log: &str| {
        let directory = Directory::open(&dir.path().join(data), Some(&dir.path().join(log))).unwrap();
        establish_after_import(&first_identity(&settings).unwrap(), &directory).unwrap();
    };
    let (a, b) = (start("a", "log-a").unwrap(), start("b", "log-b").unwrap());
    assert_eq!(a.log_identity(), b.log_identity());
    imported("c", "log-c");
    for data in ["a", "b", "c"] {
        for log in ["log-a", "log-b", "log-c"] {
            let started = start(data, log);
            let is_own = log.ends_with(data);
            assert_eq!(started.is_ok(), is_own, "{data} with {log}: {started:?}");
            assert!(is_own || matches!(started, Err(BootstrapError::OtherLog(_))), "{data} with {log}");
        }
    }
    // A directory that was made before identities had a digest of the log.
    let path = dir.path().join("a/identity.json");
    Identity { log: 0, ..a }.write(&path).unwrap();
    assert_eq!(start("a", "log-a").unwrap().log, 0);
}

/// The initial members are 1 and 9. 2 was added, 9 removed, and then 3 was added, which owns this
/// log.
#[test]
fn a_forced_joiner_begins_with_the_first_members() {
    let add = |id| Change::Add(MemberAdd { id, ..MemberAdd::default() });
    let whole = vec![add(2), Change::Remove(9), add(3)];
    let refused = vec![add(2), Change::Remove(9), Change::Remove(8), add(3)];
    for (changes, first) in [(whole, vec![1, 9]), (refused, vec![1]), (vec![add(2)], vec![1, 3])] {
        let dir = tempfile::tempdir().unwrap();
        let fs = log_fs(Arc::default());
        let member = |id| FirstMember { id, name: String::new(), peer_urls: Vec::new(), is_learner: false };
        let identity = Identity {
            cluster_id: ids::cluster_id([1, 9]),
            member_id: 3,
            members: [1, 2, 3].map(member).to_vec(),
            forced: Some(1),
            ..first_identity(&settings("")).unwrap()
        };
        let options = log_options();
        let mut log = Wal::create(fs.clone(), dir.path(), b"", LogPosition::default(), options).unwrap();
        log.put_state(&raft_node::state_after(LogPosition::default(), &[1]));
        log.sync().unwrap();
        drop(log);
        for change in changes {
            let (mut log, recovery) = Wal::open(fs.clone(), dir.path(), log_options()).unwrap();
            let change = Kind::MemberChange(MemberChange { change: Some(change), is_strict: false });
            raft_node::force_change(&mut log, &recovery, 1, 7, &command::encode(change)).unwrap();
        }
        let (log, recovery) = Wal::open(fs, dir.path(), log_options()).unwrap();
        let established = MemberStart { identity, log, recovery };
        let ids = |applied| -> Vec<u64> {
            let genesis = genesis(&established, applied).unwrap();
            genesis.members.iter().map(|member| member.id).collect()
        };
        assert_eq!(ids(LogPosition::default()), first);
        assert_eq!(ids(LogPosition::new(1, 1)), [1, 2, 3], "a store with entries has its list");
    }
}

/// Lines of the log.
#[derive(Clone, Default)]
struct LogBuffer(Arc<std::sync::Mutex<Vec<u8>>>);

impl io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn syncs_of_a_second_are_logged() {
    use std::sync::atomic::AtomicU64;
    use wal::{File as _, Fs as _};

    // Each reading of the clock is `STEP_MS` after the one before.
    static NOW_MS: AtomicU64 = AtomicU64::new(0);
    static STEP_MS: AtomicU64 = AtomicU64::new(0);
    fn clock() -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        let step = STEP_MS.load(Ordering::Relaxed);
        let now = NOW_MS.fetch_add(step, Ordering::Relaxed) + step;
        *START.get_or_init(Instant::now) + Duration::from_millis(now)
    }
    let directory = tempfile::tempdir().unwrap();
    for (took, is_logged) in [(999, false), (1000, false), (1001, true)] {
        STEP_MS.store(took, Ordering::Relaxed);
        let (buffer, metrics) = (LogBuffer::default(), Arc::new(Metrics::default()));
        let writer = buffer.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let fs = log_fs_by(clock, Arc::clone(&metrics));
            let file = fs.create(&directory.path().join(took.to_string())).unwrap();
            file.write_at(0, b"x").unwrap();
            file.sync_data().unwrap();
        });
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.contains("slow fdatasync"), is_logged, "{took} ms: {text}");
        assert_eq!(metrics.syncs_us.load(Ordering::Relaxed), took * 1000);
    }
}
