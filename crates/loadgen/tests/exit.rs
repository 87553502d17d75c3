//! Exit of the program: its status, and the fate of the servers that it started.

use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn loadgen(line: &str) -> Command {
    let mut loadgen = Command::new(env!("CARGO_BIN_EXE_loadgen"));
    loadgen.args(line.split_whitespace());
    loadgen.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    loadgen
}

#[test]
fn the_exit_status_distinguishes_a_wrong_command_line_from_a_failed_run() {
    let unused = format!("127.0.0.1:{}", testkit::port());
    for (line, status) in [
        ("--version", 0),
        ("put --no-such-flag", 2),
        ("put --clients=0", 2),
        ("put --conns=2", 2),
        ("put --open-loop", 2),
        ("put --key-size=0", 2),
        ("put --cert=x", 2),
        ("put --rates=0", 2),
        ("range foo --count-only --keys-only", 2),
        ("watch --streams=0", 2),
        ("lease-keepalive --clients=0", 2),
        ("suite --members=0", 2),
        ("compare --a=x", 2),
        ("compare --a=x=/nonexistent --b=y=/nonexistent", 2),
        ("report /nonexistent.json", 1),
        (&format!("put --endpoints={unused}"), 1),
    ] {
        assert_eq!(loadgen(line).status().unwrap().code(), Some(status), "{line}");
    }
}

/// Reports whether a process still runs. Zombies do not count.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn await_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn servers_end_with_the_program_even_if_it_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (server, pid_file) = (dir.path().join("server"), dir.path().join("pid"));
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exit\necho $$ > {0}.new && mv {0}.new {0}\nexec sleep 1000\n",
        pid_file.display()
    );
    std::fs::write(&server, text).unwrap();
    std::fs::set_permissions(&server, PermissionsExt::from_mode(0o755)).unwrap();
    let line = format!("suite --members=1 --program=x={} --data-dir=.", server.display());
    let mut loadgen = loadgen(&line).current_dir(dir.path()).spawn().unwrap();
    let mut pid = 0;
    await_until("the server starts", || {
        pid = std::fs::read_to_string(&pid_file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        pid > 0
    });
    assert!(runs(pid));
    kill_process(Pid::from_raw(loadgen.id() as i32).unwrap(), Signal::KILL).unwrap();
    loadgen.wait().unwrap();
    await_until("the server outlives the program that started it", || !runs(pid));
}
