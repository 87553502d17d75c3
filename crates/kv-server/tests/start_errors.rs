//! Starts that etcd refuses: this server refuses them with the same exit code, and says why in the same
//! words.
//!
//! The usual mistakes are in `start_errors/mistakes.txt`: each line ends with what to change.
//! `UPDATE_SCRIPTS=1` writes it.
//!
//! `start_errors/recorded.txt` has the cases, and what etcd said to each. `RECORD=1` asks the etcd of
//! `interop/bin` again, and writes the file.

use crate::common;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;

/// A start, and how it ends.
struct Case {
    /// Variables as `ETCD_NAME=x`, then flags, apart by blanks. After `file`: lines of a configuration file,
    /// apart by `\n`. `PORT1` to `PORT3` are free ports.
    start: String,
    exit: i32,
    said: String,
    /// Exit code and words of this server, where they differ.
    ours: Option<(i32, String)>,
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/start_errors/recorded.txt")
}

fn cases() -> (String, Vec<Case>) {
    let text = std::fs::read_to_string(path()).unwrap();
    let (head, rest) = text.split_once("\n\n").unwrap();
    let case = |block: &str| {
        let lines: Vec<&str> = block.lines().collect();
        let start = lines[0].strip_prefix("> ").unwrap_or_else(|| panic!("{block}")).to_owned();
        let exit = lines.get(1).and_then(|line| line.strip_prefix("exit ")?.parse().ok()).unwrap_or(-1);
        let is_ours = |line: &&&str| line.starts_with("here ");
        let ours = lines.iter().find(is_ours).and_then(|line| line["here ".len()..].split_once(' '));
        let ours = ours.map(|(exit, said)| (exit.parse().unwrap(), said.to_owned()));
        let said: Vec<&str> = lines.iter().skip(2).filter(|line| !is_ours(line)).copied().collect();
        Case { start, exit, said: said.join("\n"), ours }
    };
    let blocks = rest.split("\n\n").map(str::trim).filter(|block| !block.is_empty());
    (head.to_owned(), blocks.map(case).collect())
}

/// Exit code, and all that was printed.
fn started(program: &Path, start: &str) -> (i32, String) {
    static PORTS: LazyLock<Vec<u16>> = LazyLock::new(|| testkit::ports(3));
    let names = ["PORT1", "PORT2", "PORT3"].into_iter().zip(PORTS.iter().map(ToString::to_string));
    let names: Vec<(&str, String)> = names.collect();
    let start = names.iter().fold(start.to_owned(), |start, (name, port)| start.replace(name, port));
    let (code, said) = started_with(program, &start);
    (code, names.iter().fold(said, |said, (name, port)| said.replace(port, name)))
}

fn started_with(program: &Path, start: &str) -> (i32, String) {
    let place = tempfile::tempdir().unwrap();
    let others = [
        "of-etcd/member",
        "of-both/member",
        "of-both/identity.json",
        "of-no-member/store",
        "of-import/live-import.json",
        "of-archive/archive.json",
    ];
    for directory in others.iter().chain(&["data"]) {
        std::fs::create_dir_all(place.path().join(directory)).unwrap();
    }
    std::fs::write(place.path().join("file"), "not a certificate").unwrap();
    mknodat(CWD, place.path().join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut command = Command::new(program);
    let start = match start.strip_prefix("descriptors=").and_then(|rest| rest.split_once(' ')) {
        Some((limit, rest)) => {
            let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
            command = Command::new("sh");
            command.args(["-c", &script]).arg(program);
            rest
        }
        None => start,
    };
    command.env_clear().current_dir(place.path()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(text) = start.strip_prefix("file ") {
        std::fs::write(place.path().join("member.yml"), text.replace("\\n", "\n")).unwrap();
        command.arg("--config-file=member.yml");
    } else {
        for word in start.split(' ') {
            match word.split_once('=').filter(|_| word.starts_with("ETCD_")) {
                Some((name, value)) => command.env(name, value),
                None => command.arg(word),
            };
        }
    }
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + common::PATIENCE;
    let code = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code().unwrap_or(-1);
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            break -1;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (code, said)
}

/// The reason among what etcd prints: the error of its last line that has one, or its first line of plain
/// text.
fn reason(said: &str) -> String {
    let lines: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |line: &Value| {
        let is_bad = matches!(line["level"].as_str(), Some("warn" | "error" | "fatal"));
        let text = line["error"].as_str().or_else(|| line["msg"].as_str());
        text.filter(|_| is_bad).map(str::to_owned)
    };
    let plain = said.lines().find(|line| !line.is_empty() && !line.starts_with('{'));
    lines.iter().rev().find_map(of).or_else(|| plain.map(str::to_owned)).unwrap_or_default()
}

/// The head of the file, and its mistakes: what is wrong, and variables and flags.
fn mistakes() -> (PathBuf, String, Vec<(String, String)>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/start_errors/mistakes.txt");
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once("\n\n").unwrap();
    let blocks = rest.split("\n\n").map(str::trim).filter(|block| !block.is_empty());
    let of = |block: &str| {
        let mut lines = block.lines().map(str::to_owned);
        (lines.next().unwrap(), lines.next().unwrap().split_off(2))
    };
    (path, head.to_owned(), blocks.map(of).collect())
}

#[test]
fn a_usual_mistake_ends_with_what_to_change() {
    let _ports = common::default_ports();
    let (path, head, mistakes) = mistakes();
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = busy.local_addr().unwrap().port().to_string();
    let mut text = head + "\n";
    for (title, start) in mistakes {
        let (code, said) = started(Path::new(common::server()), &start.replace("BUSY", &port));
        let line = said.lines().find(|line| line.starts_with("kv-server: ")).unwrap_or_default();
        text += &format!("\n{title}\n> {start}\nexit {code}: {}\n", line.replace(&port, "BUSY"));
    }
    if std::env::var_os("UPDATE_SCRIPTS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap());
}

#[test]
fn a_start_that_etcd_refuses_is_refused_in_its_words() {
    let (head, mut cases) = cases();
    if std::env::var_os("RECORD").is_some() {
        let etcd = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/bin/etcd");
        for case in &mut cases {
            let (code, said) = started(&etcd, &case.start);
            (case.exit, case.said) = (code, reason(&said));
        }
        let block = |case: &Case| {
            let ours = case.ours.as_ref().map(|(exit, said)| format!("here {exit} {said}\n"));
            let ours = ours.unwrap_or_default();
            format!("> {}\nexit {}\n{}\n{ours}\n", case.start, case.exit, case.said)
        };
        let text: String = cases.iter().map(block).collect();
        std::fs::write(path(), format!("{head}\n\n{}\n", text.trim_end())).unwrap();
    }
    let _ports = common::default_ports();
    let mut wrong = Vec::new();
    for case in &cases {
        let (code, said) = started(Path::new(common::server()), &case.start);
        let etcd = (case.exit, case.said.clone());
        let (exit, wanted) = case.ours.as_ref().unwrap_or(&etcd);
        if code != *exit || !said.contains(wanted.as_str()) {
            wrong.push(format!(
                "{}\n  etcd, {}: {}\n  here, {code}: {said}",
                case.start, case.exit, case.said
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
