//! `kvctl top` against a cluster under load, in a terminal and without one.
//!
//! `UPDATE_SCREENSHOTS=1` writes the images of docs/images.

use crate::common;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::KVCTL;
use crate::authority::{Authority, Files, GOOD, Issued};
use crate::common::{Cluster, PATIENCE, http};
use rustix::process::Signal;
use testkit::Terminal;

/// A key that would act on a terminal, if it were written as it is.
const HOSTILE: &str = "\u{1b}]0;title\u{7}\u{1b}[2J/";
const PREFIXES: [&str; 4] = ["/registry/pods/", "/registry/leases/", "app/web/", HOSTILE];
const LEAVE: &str = "\u{1b}[?1049l";

fn top(arguments: &[&str]) -> Output {
    Command::new(KVCTL).arg("top").args(arguments).env_clear().output().unwrap()
}

fn text(output: &Output) -> String {
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Three members, and clients that use all of them until the end.
struct Loaded {
    cluster: Cluster,
    ports: Vec<u16>,
    is_over: Arc<AtomicBool>,
}

impl Loaded {
    async fn started() -> Loaded {
        let mut cluster = Cluster::new(3);
        let ports = testkit::ports(3);
        for (member, port) in cluster.members.iter_mut().zip(&ports) {
            let listen = format!("--listen-metrics-urls=http://127.0.0.1:{port}");
            member.extra = vec![listen, "--metrics-top=8".to_owned()];
        }
        cluster.start();
        let is_over = Arc::new(AtomicBool::new(false));
        for (client, prefix) in PREFIXES.into_iter().enumerate() {
            let (mut kv, is_over) = (cluster.members[client % 3].kv().await, Arc::clone(&is_over));
            tokio::spawn(async move {
                for number in (0u64..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    let key = format!("{prefix}{}", number % 500);
                    // Unanswered while there is an election, for instance.
                    let _put = kv.put(common::put(&key, &"v".repeat(100))).await;
                    let _got = kv.range(common::get(&key)).await;
                }
            });
        }
        let loaded = Loaded { cluster, ports, is_over };
        // Names are those of the last full window of 10 s.
        let deadline = Instant::now() + PATIENCE;
        while !http(loaded.ports[0], "GET /ui/status.json").contains("title") {
            assert!(Instant::now() < deadline, "the keys are not among the largest prefixes");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        loaded
    }

    fn endpoints(&self) -> String {
        self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",")
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// The cells of the row that begins with `name`, in the part with this title.
fn row<'t>(text: &'t str, part: &str, name: &str) -> Vec<&'t str> {
    let mut lines = text.lines().skip_while(|line| *line != part).take_while(|line| !line.is_empty());
    let row = lines.find(|line| line.starts_with(name));
    row.unwrap_or_else(|| panic!("no row {name:?} in {part}: {text}")).split_whitespace().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_under_load_is_shown() {
    let mut loaded = Loaded::started().await;
    let endpoints = loaded.endpoints();
    let shown = text(&top(&["--metrics-endpoints", &endpoints, "--once"]));
    let first = shown.lines().next().unwrap();
    // A disk that is slow here is the reason then.
    let health = ["Healthy: 3/3 members up, leader m", "Slow disk on m"];
    assert!(health.iter().any(|it| first.starts_with(it)) && first.contains("3/3 endpoints up"), "{shown}");
    assert!(shown.contains("\nno alarms · store "), "{shown}");
    for member in ["m0", "m1", "m2"] {
        let cells = row(&shown, "Members", member);
        let rate: f64 = cells[3].replace(',', "").parse().unwrap();
        assert!(rate > 1.0 && ["leader", "follower"].contains(&cells[1]), "{shown}");
    }
    for method in ["KV/Put", "KV/Range"] {
        let cells = row(&shown, "Calls", method);
        assert_eq!((cells[2], cells.len()), ("0", 9), "two percentiles with units each: {shown}");
    }
    row(&shown, "Clients", "127.0.0.1");
    row(&shown, "Key prefixes", "/registry/pods/");
    assert!(!shown.contains(|it: char| it.is_control() && it != '\n'), "{shown:?}");
    // The member shows it with other escapes.
    assert!(row(&shown, "Key prefixes", "\\")[0].contains("]0;title"), "{shown}");
    screenshots(&endpoints);
    in_a_terminal(&endpoints);

    loaded.cluster.members[1].kill();
    let shown = text(&top(&["--metrics-endpoints", &endpoints, "--once", "--view", "members"]));
    assert!(shown.lines().next().unwrap().contains("2/3 ENDPOINTS UP"), "{shown}");
    let down = format!("127.0.0.1:{}", loaded.ports[1]);
    assert_eq!(row(&shown, "Members", &down)[1..4], ["DOWN:", "Connection", "refused"], "{shown}");
    assert!(!shown.contains("Calls"), "{shown}");
}

/// Keys and signals end it, and the terminal is as it was.
fn in_a_terminal(endpoints: &str) {
    let arguments = ["top", "--metrics-endpoints", endpoints, "--interval", "1s"];
    type End = fn(&mut Terminal);
    let ends: [(&str, End); 4] = [
        ("q", |terminal| terminal.type_in("q")),
        ("Ctrl-C", |terminal| terminal.type_in("\u{3}")),
        ("SIGTERM", |terminal| terminal.signal(Signal::TERM)),
        ("SIGINT", |terminal| terminal.signal(Signal::INT)),
    ];
    for (how, end) in ends {
        let mut terminal = Terminal::start(KVCTL, &arguments, &[("NO_COLOR", "1")], 100, 30);
        terminal.wait_for("3/3 endpoints up");
        assert!(terminal.is_raw(), "{how}");
        terminal.type_in("6");
        terminal.wait_for("[6 Space]");
        end(&mut terminal);
        assert!(terminal.wait_end().success(), "{how}");
        terminal.wait_for(LEAVE);
        assert!(!terminal.is_raw(), "{how}");
        let colors = ["\u{1b}[31m", "\u{1b}[32m", "\u{1b}[36m", "[38;5;"];
        let seen = terminal.seen();
        assert!(colors.iter().all(|color| !seen.contains(color)), "{how}: {seen:?}");
    }
    let terminal = Terminal::start(KVCTL, &arguments, &[], 100, 30);
    terminal.wait_for("[38;5;");
    let narrow = Terminal::start(KVCTL, &arguments, &[], 50, 30);
    narrow.wait_for("60x15");
}

#[test]
fn a_line_that_makes_no_sense_is_refused() {
    for (arguments, code, wanted) in [
        (&[][..], 2, "--metrics-endpoints"),
        (&["--metrics-endpoints", "a"], 2, "--metrics-endpoints: \"http://a\" is not HOST:PORT"),
        (&["--metrics-endpoints", "a:1/metrics"], 2, "is not HOST:PORT"),
        (&["--metrics-endpoints", "a:1", "--interval", "10ms"], 2, "--interval is less than 1 s"),
        (&["--metrics-endpoints", "a:1", "--interval", "1000y"], 2, "or more than 3600 s"),
        (&["--metrics-endpoints", "a:1", "--columns", "20"], 2, "60..=400"),
        (&["--metrics-endpoints", "https://a:1", "--cacert", "/no/such/file"], 1, "/no/such/file"),
    ] {
        let output = top(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && said.contains(wanted), "{arguments:?}: {said}");
    }
}

#[test]
fn a_port_of_clients_answers_without_figures() {
    let cluster = Cluster::started(1);
    let endpoint = format!("127.0.0.1:{}", cluster.members[0].client_port);
    let output = top(&["--metrics-endpoints", &endpoint, "--interval", "1s"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.starts_with("kvctl top: no endpoint serves statistics: use listeners of --listen-"),
        "{said}"
    );
    assert!(shown.contains("NO STATISTICS: 404: no status document") && !shown.contains("DOWN"), "{shown}");
}

/// A listener with a certificate that it made itself.
#[test]
fn figures_are_read_inside_tls() {
    let mut cluster = Cluster::new(1);
    let port = testkit::port();
    let member = &mut cluster.members[0];
    member.extra = vec!["--auto-tls".to_owned(), format!("--listen-metrics-urls=https://127.0.0.1:{port}")];
    cluster.start();
    let endpoint = format!("127.0.0.1:{port}");
    let shown =
        text(&top(&["--metrics-endpoints", &endpoint, "--insecure-skip-tls-verify", "--interval", "1s"]));
    assert!(shown.lines().next().unwrap().contains(" · term "), "{shown}");
    let secure = format!("https://{endpoint}");
    let refused = top(&["--metrics-endpoints", &secure, "--cacert", "/etc/hostname", "--interval", "1s"]);
    assert!(!refused.status.success(), "{refused:?}");
    let plain = top(&["--metrics-endpoints", &endpoint, "--interval", "1s"]);
    assert!(String::from_utf8_lossy(&plain.stdout).contains("DOWN: "), "{plain:?}");
}

/// The listener requires a certificate of the authority of clients.
#[test]
fn certificates_are_shown_and_checked() {
    let (authority, files) = (Authority::new("a"), Files::new());
    files.write_pair("server", &authority.issue(GOOD));
    let ca = files.write("ca.pem", &authority.pem);
    let other = files.write("other.pem", &Authority::new("b").pem);
    let port = testkit::port();
    let path = |name: &str| files.path(name).display().to_string();
    let mut cluster = Cluster::new(1);
    cluster.members[0].extra = vec![
        format!("--cert-file={}", path("server.pem")),
        format!("--key-file={}", path("server.key")),
        format!("--trusted-ca-file={ca}"),
        format!("--listen-metrics-urls=https://127.0.0.1:{port}"),
    ];
    cluster.start();
    let endpoint = format!("127.0.0.1:{port}");
    let shown = |ca: &str, pair: Option<&Issued>| {
        let mut flags = vec!["--metrics-endpoints".to_owned(), endpoint.clone()];
        flags.extend(["--once", "--interval=1s", "--cacert", ca].map(str::to_owned));
        if let Some(issued) = pair {
            files.write_pair("top", issued);
            flags.extend(["--cert".to_owned(), path("top.pem"), "--key".to_owned(), path("top.key")]);
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        top(&flags).status.success()
    };
    let own = authority.issue(GOOD);
    assert!(shown(&ca, Some(&own)));
    assert!(!shown(&ca, None), "without a certificate");
    assert!(!shown(&other, Some(&own)), "of an authority that is not trusted");
}

/// Into docs/images if they are asked for, else into the target directory.
fn screenshots(endpoints: &str) {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images");
    let is_update = std::env::var_os("UPDATE_SCREENSHOTS").is_some();
    let folder = PathBuf::from(if is_update { docs } else { env!("CARGO_TARGET_TMPDIR") });
    for (name, view, columns, rows) in [("overview", "overview", 110, 24), ("narrow", "overview", 60, 15)] {
        let size = [columns, rows].map(|it: usize| it.to_string());
        let shown = top(&[
            "--metrics-endpoints",
            endpoints,
            "--once",
            "--color=always",
            "--view",
            view,
            "--columns",
            &size[0],
            "--rows",
            &size[1],
        ]);
        let shown = text(&shown);
        assert_eq!(shown.lines().count(), rows, "{shown}");
        assert!(shown.contains("\u{1b}[32mno alarms"), "{shown:?}");
        let image = svg(&shown, columns, rows);
        assert!(!image.contains(|it: char| it.is_control() && it != '\n'), "{image:?}");
        std::fs::write(folder.join(format!("top-{name}.svg")), image).unwrap();
    }
}

/// Text with the few colors that `top` uses, as an image. Colors are those of a common dark theme.
fn svg(text: &str, columns: usize, rows: usize) -> String {
    let (wide, high) = (8.4, 18.0);
    let (width, height) = (columns as f64 * wide + 24.0, rows as f64 * high + 24.0);
    let mut image = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" role=\"img\" \
         aria-label=\"kvctl top\">\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#15191e\"/>\n\
         <g font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\" fill=\"#e8ebef\">\n"
    );
    for (at, line) in text.lines().enumerate() {
        let y = 28.0 + at as f64 * high;
        let mut column = 0;
        for (position, part) in line.split('\u{1b}').enumerate() {
            let (codes, part) = match position {
                0 => ("0", part),
                _ => part[1..].split_once('m').expect("an SGR sequence ends with m"),
            };
            let style = match codes {
                "1;31" => " fill=\"#ff9a92\" font-weight=\"bold\"",
                "32" => " fill=\"#6fcf97\"",
                "1;36" => " fill=\"#74d3e8\" font-weight=\"bold\"",
                "2" => " fill=\"#a4adb8\"",
                _ => "",
            };
            let escaped = part.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let count = part.chars().count();
            if !part.trim().is_empty() {
                let (x, length) = (12.0 + column as f64 * wide, count as f64 * wide);
                let _always_written = writeln!(
                    image,
                    "<text x=\"{x:.1}\" y=\"{y:.0}\" textLength=\"{length:.1}\" xml:space=\"preserve\" style=\"white-space:pre\"{style}>{escaped}</text>"
                );
            }
            column += count;
        }
    }
    image + "</g>\n</svg>\n"
}
