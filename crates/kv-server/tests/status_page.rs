//! The status page in a real browser, for a cluster under load: metrics are displayed, names are escaped, the
//! content security policy is not violated, no overflow on a phone, no axe-core findings.
//!
//! Requires Chromium; only built with the feature `chromium` (see `.ci/run report`). `AXE` is the path of
//! axe-core's script; without it, that check is skipped with a message. `UPDATE_SCREENSHOTS=1` writes the
//! images of docs/images.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use common::{Cluster, PATIENCE, http};
use serde_json::Value;

/// A key that would run as a script if it were inserted as HTML.
const HOSTILE: &str = "<img src=x onerror=console.log(1)>/<script>console.log(2)</script>/";
const DESKTOP: (u32, u32) = (1000, 860);
const SHORT: (u32, u32) = (1000, 520);
const PHONE: (u32, u32) = (500, 1100);
const DAY: Duration = Duration::from_secs(86_400);
const LIGHT: u8 = 1;
const DARK: u8 = 0;
/// Maximum size of an image in docs/images, which every clone contains.
const IMAGE_BYTES_MAX: u64 = 120 << 10;
/// Number of 5 s rows of a plot in an image.
const ROWS: usize = 6;

/// Members under load. The clients use the first member. Some keys are markup.
struct Loaded {
    cluster: Cluster,
    port: u16,
    is_over: Arc<AtomicBool>,
}

impl Loaded {
    async fn started(members: usize, flags: &[String]) -> Loaded {
        Loaded::of(Cluster::new(members), flags).await
    }

    async fn of(mut cluster: Cluster, flags: &[String]) -> Loaded {
        let port = testkit::port();
        cluster.members.iter_mut().for_each(|member| member.extra.extend_from_slice(flags));
        // Slow request warnings of a busy machine would appear in the image.
        let calm = "--warning-unary-request-duration=1m".to_owned();
        cluster.members.iter_mut().for_each(|member| member.extra.push(calm.clone()));
        let own = [format!("--listen-metrics-urls=http://127.0.0.1:{port}"), "--metrics-top=8".to_owned()];
        cluster.members[0].extra.extend(own);
        cluster.start();
        let is_over = Arc::new(AtomicBool::new(false));
        for client in 0..4 {
            let (mut kv, is_over) = (cluster.members[0].kv().await, Arc::clone(&is_over));
            tokio::spawn(async move {
                for number in (0u64..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    let prefix = ["/registry/pods/", "/registry/leases/", "app/web/", HOSTILE][client];
                    let key = format!("{prefix}{}", number % 500);
                    // Fails during an election, for instance.
                    let _put = kv.put(common::put(&key, &"v".repeat(100))).await;
                    let _got = kv.range(common::get(&key)).await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
        }
        let loaded = Loaded { cluster, port, is_over };
        let deadline = Instant::now() + PATIENCE;
        while !http(port, "GET /ui/status.json").contains("onerror") {
            assert!(Instant::now() < deadline, "the keys are not among the largest prefixes");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        loaded
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Proxy between browser and member. `/hold` completes when the browser requests `/done`: the browser then
/// considers the page loaded, and takes its screenshot.
fn between(port: u16, script: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let axe =
        std::env::var("AXE").map(|path| std::fs::read(path).expect("AXE is a file")).unwrap_or_default();
    let is_done = Arc::new(AtomicBool::new(false));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, script, axe) = (stream.unwrap(), script.clone(), axe.clone());
            let is_done = Arc::clone(&is_done);
            std::thread::spawn(move || answer(stream, port, &script, &axe, &is_done));
        }
    });
    own
}

fn answer(mut stream: TcpStream, port: u16, script: &str, axe: &[u8], is_done: &AtomicBool) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let body = |path: &str| {
        let answer = http(port, &format!("GET {path}"));
        answer.split_once("\r\n\r\n").map(|(_, body)| body.as_bytes().to_vec()).unwrap_or_default()
    };
    let (kind, body) = match path {
        "/ui/" => {
            let page = String::from_utf8(body("/ui/")).unwrap();
            let probe = "<img alt=\"\" hidden src=\"/hold\"><pre id=\"probe\" hidden></pre>";
            let scripts = format!("{probe}<script src=\"/axe.js\"></script><script>{script}</script></body>");
            ("text/html; charset=utf-8", page.replace("</body>", &scripts).into_bytes())
        }
        "/axe.js" => ("text/javascript", axe.to_vec()),
        "/done" => {
            is_done.store(true, Ordering::Release);
            ("text/plain", Vec::new())
        }
        "/hold" => {
            let deadline = Instant::now() + PATIENCE;
            while !is_done.load(Ordering::Acquire) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            ("text/plain", Vec::new())
        }
        path => ("application/json", body(path)),
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    // The browser may have disconnected.
    let _unsent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
}

fn chromium(profile: &Path, (width, height): (u32, u32), scheme: u8) -> Command {
    let program = std::env::var_os("CHROMIUM").unwrap_or_else(|| "chromium".into());
    let mut command = Command::new(program);
    // A container has neither a sandbox nor a large /dev/shm.
    let fixed = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run \
                 --disable-background-networking --enable-logging=stderr --log-level=0 --timeout=60000";
    command.args(fixed.split_whitespace());
    command.arg(format!("--user-data-dir={}", profile.display()));
    command.arg(format!("--window-size={width},{height}"));
    command.arg(format!("--blink-settings=preferredColorScheme={scheme}"));
    command
}

struct Seen {
    dom: String,
    console: Vec<String>,
}

fn browse(size: (u32, u32), scheme: u8, address: &str) -> Seen {
    let profile = tempfile::tempdir().unwrap();
    let output = chromium(profile.path(), size, scheme).args(["--dump-dom", address]).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    let console = log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    Seen { dom: String::from_utf8(output.stdout).unwrap(), console }
}

/// Returns a script that runs `then` once rates are displayed, which need two polls.
fn when_shown(then: &str) -> String {
    format!(
        "const wait = setInterval(async () => {{
           const shown = [...document.querySelectorAll('#calls tr')].some((row) => / (µs|ms|s)$/.test(row.cells[row.cells.length - 1].textContent));
           const drawn = [...document.querySelectorAll('.plot > svg path')];
           const twice = drawn.some((path) => path.getAttribute('d').includes('L'));
           if (!shown || !twice) return;
           clearInterval(wait);
           {then}
           fetch('/done');
         }}, 50);"
    )
}

const PROBE: &str = "
  const wide = [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll') && !e.closest('svg'));
  const plot = document.querySelector('.plot');
  plot.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft' }));
  const value = plot.querySelector('output').textContent;
  const axes = window.axe ? await axe.run() : null;
  document.getElementById('probe').textContent = JSON.stringify({
    width: document.documentElement.scrollWidth, window: innerWidth, wide: wide.map((e) => e.tagName),
    images: document.querySelectorAll('main img').length, scripts: document.querySelectorAll('main script').length,
    members: document.querySelectorAll('#members tr').length, value,
    dashes: [...document.querySelectorAll('#members tr')]
      .filter((it) => it.cells[5].textContent === '–').length,
    health: document.getElementById('health').textContent,
    clients: document.querySelector('#clients th').textContent, prefixes: document.getElementById('prefixes').textContent,
    passes: axes && axes.passes.length,
    violations: axes && axes.violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.html).join(' ')) });";

fn probed(port: u16, size: (u32, u32), scheme: u8) -> Value {
    let between = between(port, when_shown(PROBE));
    let seen = browse(size, scheme, &format!("http://127.0.0.1:{between}/ui/"));
    let begin =
        seen.dom.find("<pre id=\"probe\" hidden=\"\">").unwrap() + "<pre id=\"probe\" hidden=\"\">".len();
    let text = &seen.dom[begin..begin + seen.dom[begin..].find("</pre>").unwrap()];
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {:?}", seen.console))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_a_cluster_under_load() {
    let loaded = Loaded::started(3, &[]).await;
    for size in [DESKTOP, PHONE] {
        for scheme in [LIGHT, DARK] {
            let probe = probed(loaded.port, size, scheme);
            let what = format!("{size:?}, {scheme}: {probe}");
            assert!(probe["width"].as_u64() <= probe["window"].as_u64(), "{what}");
            assert_eq!((&probe["wide"], &probe["members"]), (&Value::Array(vec![]), &3.into()), "{what}");
            assert_eq!((&probe["images"], &probe["scripts"]), (&0.into(), &0.into()), "{what}");
            assert_eq!(probe["dashes"], 0, "{what}");
            assert!(probe["value"].as_str().unwrap().contains(": puts "), "{what}");
            assert_eq!(probe["clients"], "127.0.0.1", "{what}");
            assert!(probe["prefixes"].as_str().unwrap().contains("<img src=x onerror"), "{what}");
            if std::env::var_os("AXE").is_some() {
                assert!(probe["passes"].as_u64() > Some(10), "{what}");
                assert_eq!(probe["violations"], Value::Array(vec![]), "{what}");
            } else {
                println!("axe-core was not run: AXE names no file");
            }
        }
    }
    // Directly from the member, with its policy. A violation is logged to the console.
    let seen = browse((1280, 1500), LIGHT, &format!("http://127.0.0.1:{}/ui/", loaded.port));
    assert_eq!(seen.console, Vec::<String>::new());
}

/// Returns a script that takes the screenshot once the headline or a reason below it contains these words, and
/// the plots have [`ROWS`] rows.
fn once_it_says(words: &str) -> String {
    format!(
        "const wait = setInterval(() => {{
           const said = ['health', 'findings'].map((id) => document.getElementById(id).textContent);
           const says = said.join().includes({words:?});
           const path = document.querySelector('.plot > svg path');
           if (!says || path.getAttribute('d').split('L').length < {ROWS}) return;
           clearInterval(wait);
           fetch('/done');
         }}, 50);"
    )
}

/// Writes a screenshot to docs/images if updates are enabled, else to the target directory.
fn screenshot(port: u16, name: &str, says: &str, size: (u32, u32), scheme: u8) {
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images"));
    let is_update = std::env::var_os("UPDATE_SCREENSHOTS").is_some();
    let folder = if is_update { docs } else { Path::new(env!("CARGO_TARGET_TMPDIR")) };
    std::fs::create_dir_all(folder).unwrap();
    let between = between(port, once_it_says(says));
    let profile = tempfile::tempdir().unwrap();
    let file = format!("status-{name}.png");
    let shot = folder.join(&file);
    let output = chromium(profile.path(), size, scheme)
        .arg(format!("--screenshot={}", shot.display()))
        .arg(format!("http://127.0.0.1:{between}/ui/"))
        .output();
    assert!(output.unwrap().status.success(), "{name}");
    // A busy machine may cause a more severe status.
    let health = ["status", "cluster"].map(|of| http(port, &format!("GET /ui/{of}.json"))).join("");
    assert!(health.contains(says), "{name}: {health}");
    let png = std::fs::read(&shot).unwrap();
    // The header of a PNG has its width at byte 16.
    assert_eq!(png[16..20], size.0.to_be_bytes());
    assert!(png.len() > 20_000, "{name}: {} bytes", png.len());
    // Checks the committed image: the size of a new one depends on fonts and on the plots.
    let kept = std::fs::metadata(docs.join(file)).unwrap().len();
    assert!(kept < IMAGE_BYTES_MAX, "{name}: {kept} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_state_of_a_cluster_has_its_picture() {
    let mut loaded = Loaded::started(3, &[]).await;
    let port = loaded.port;
    for (name, size, scheme) in
        [("healthy", DESKTOP, LIGHT), ("dark", DESKTOP, DARK), ("phone", PHONE, LIGHT)]
    {
        screenshot(port, name, "Healthy: 3/3 members up", size, scheme);
    }
    loaded.cluster.members[2].kill();
    screenshot(port, "member-down", "losing one more member loses quorum", SHORT, LIGHT);
    loaded.cluster.members[1].kill();
    screenshot(port, "no-quorum", "No quorum: 1/3 voters up", SHORT, LIGHT);
    drop(loaded);

    let loaded = Loaded::started(5, &[]).await;
    screenshot(loaded.port, "five-members", "Healthy: 5/5 members up", SHORT, LIGHT);
    drop(loaded);

    let loaded = Loaded::started(3, &["--quota-backend-bytes=1048576".to_owned()]).await;
    // Digits with low compressibility.
    let large: String =
        (1..6000u64).map(|n| format!("{:x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let mut kv = loaded.cluster.members[0].kv().await;
    while kv.put(common::put("large", &large)).await.is_ok() {}
    screenshot(loaded.port, "nospace", "Alarm NOSPACE", SHORT, LIGHT);
}

/// The certificate belongs to another member than the displayed page.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_about_to_expire_has_its_picture() {
    let files = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(3);
    cluster.members[1].extra =
        https_until(SystemTime::now() + 9 * DAY + DAY / 2, &cluster.members[1], files.path());
    let loaded = Loaded::of(cluster, &[]).await;
    let says = "Certificate of m1's client port expires in 9 d";
    screenshot(loaded.port, "certificate", says, SHORT, LIGHT);
}

/// Returns flags for clients with TLS, with a certificate that expires at `end`.
fn https_until(end: SystemTime, member: &common::Member, folder: &Path) -> Vec<String> {
    let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    params.not_after = end.into();
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(folder.join("cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
    let at = format!("127.0.0.1:{}", member.client_port);
    let file = |name: &str| folder.join(name).display().to_string();
    vec![
        format!("--listen-client-urls=http://{at},https://{at}"),
        format!("--cert-file={}", file("cert.pem")),
        format!("--key-file={}", file("key.pem")),
    ]
}
