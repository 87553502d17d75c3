//! The report's page in a real browser: no console messages, tables equal to the result, no overflow on a
//! phone, sufficient contrast in light and dark mode.
//!
//! Needs Chromium; built with the feature `chromium` only (see `.ci/run report`). Screenshots are left in
//! the target directory for inspection. `REPORT=FILE.json` opens a saved comparison instead of the sample.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench-report/tests/data/report.json");
const DESKTOP: (u32, u32) = (1280, 2400);
const PHONE: (u32, u32) = (390, 2400);

#[derive(Clone, Copy, PartialEq)]
enum Scheme {
    Light,
    Dark,
}

/// Returns the JSON of the page: the sample, or the requested one.
fn json() -> PathBuf {
    std::env::var_os("REPORT").map_or_else(|| SAMPLE.into(), PathBuf::from)
}

/// The generated page, in a separate directory.
struct Page {
    dir: tempfile::TempDir,
    html: String,
}

/// Result of loading a page in a browser.
struct Seen {
    dom: String,
    console: Vec<String>,
}

impl Page {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.html");
        let status = Command::new(env!("CARGO_BIN_EXE_loadgen"))
            .arg("report")
            .arg(json())
            .arg("--html")
            .arg(&path)
            .status();
        assert!(status.unwrap().success());
        let html = std::fs::read_to_string(path).unwrap();
        Self { dir, html }
    }

    /// Appends a script to the page, and removes the policy that forbids scripts.
    fn with_probe(&self, script: &str) -> String {
        let policy = self.html.find("<meta http-equiv=\"Content-Security-Policy\"").unwrap();
        let end = policy + self.html[policy..].find('>').unwrap() + 1;
        let without = format!("{}{}", &self.html[..policy], &self.html[end..]);
        without.replace("</body>", &format!("<pre id=\"probe\"></pre><script>{script}</script></body>"))
    }

    fn browse(&self, html: &str, size: (u32, u32), scheme: Scheme) -> Seen {
        let path = self.dir.path().join("shown.html");
        std::fs::write(&path, html).unwrap();
        let output = chromium(self.dir.path(), size, scheme).arg("--dump-dom").arg(&path).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{log}");
        let console = log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
        Seen { dom: String::from_utf8(output.stdout).unwrap(), console }
    }

    /// Returns the JSON that the script wrote into `#probe`. The page is displayed in a frame of this size,
    /// because windows have a minimum width.
    fn probe(&self, script: &str, size: (u32, u32), scheme: Scheme) -> Value {
        let framed = self.with_probe(script).replace('&', "&amp;").replace('"', "&quot;");
        let (width, height) = size;
        let html = format!(
            "<!doctype html><meta name=\"color-scheme\" content=\"light dark\"><link rel=\"icon\" href=\"data:,\">\
             <iframe width=\"{width}\" height=\"{height}\" style=\"border:0\" srcdoc=\"{framed}\"></iframe><pre id=\"result\"></pre>\
             <script>onload = () => {{ document.getElementById(\"result\").textContent = \
             document.querySelector(\"iframe\").contentDocument.getElementById(\"probe\").textContent; }};</script>"
        );
        let seen = self.browse(&html, size, scheme);
        assert_eq!(seen.console, Vec::<String>::new());
        let begin = seen.dom.find("<pre id=\"result\">").unwrap() + "<pre id=\"result\">".len();
        let text = &seen.dom[begin..begin + seen.dom[begin..].find("</pre>").unwrap()];
        let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

fn chromium(profile: &Path, (width, height): (u32, u32), scheme: Scheme) -> Command {
    let program = std::env::var_os("CHROMIUM").unwrap_or_else(|| "chromium".into());
    let mut command = Command::new(program);
    // Containers offer neither a sandbox nor a large /dev/shm.
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ]);
    command.args([
        "--no-first-run",
        "--disable-background-networking",
        "--enable-logging=stderr",
        "--log-level=0",
    ]);
    command.arg(format!("--user-data-dir={}", profile.join("profile").display()));
    command.arg(format!("--window-size={width},{height}"));
    command
        .arg(format!("--blink-settings=preferredColorScheme={}", if scheme == Scheme::Dark { 0 } else { 1 }));
    command
}

/// Extracts every table as rows of cells, each as its text without small elements.
const TABLES: &str = r#"
const text = (cell) => { const copy = cell.cloneNode(true); copy.querySelectorAll("small").forEach((s) => s.remove()); return copy.textContent.trim(); };
const tables = [...document.querySelectorAll("table")].map((table) => [...table.tBodies[0].rows].map((row) => [...row.cells].map(text)));
document.getElementById("probe").textContent = JSON.stringify(tables);
"#;

/// Measures the overflow of the page, its fetched resources, empty plots, and texts with a low contrast.
const LAYOUT: &str = r#"
document.querySelectorAll("details").forEach((d) => { d.open = true; });
const parts = (c) => c.match(/[\d.]+/g).map(Number);
const light = (c) => { const [r, g, b] = parts(c).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (c !== "rgba(0, 0, 0, 0)") return c; } return "rgb(255, 255, 255)"; };
const faint = [];
for (const e of document.querySelectorAll("body *")) {
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || ["STYLE", "SCRIPT", "TITLE", "DESC"].includes(e.tagName.toUpperCase())) continue;
  const style = getComputedStyle(e);
  const [a, b] = [light(e.closest("svg") ? style.fill : style.color), light(ground(e))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) faint.push(e.tagName + "." + (e.getAttribute("class") || "") + ": " + e.textContent.slice(0, 30));
}
const plots = [...document.querySelectorAll("svg.plot")];
const wide = [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll") && !e.closest("svg"));
document.getElementById("probe").textContent = JSON.stringify({
  width: document.documentElement.scrollWidth, window: innerWidth, wide: wide.map((e) => e.tagName + "." + e.className).slice(0, 5),
  fetched: performance.getEntriesByType("resource").map((r) => r.name),
  plots: plots.length, empty: plots.filter((p) => p.getBBox().height < 50 || !p.querySelector("path.line")).length,
  unnamed: [...document.querySelectorAll("svg[role=img]")].filter((p) => !p.querySelector("title").textContent).length,
  twice: [...document.querySelectorAll("[id]")].map((e) => e.id).filter((id, n, all) => all.indexOf(id) !== n),
  dangling: [...document.querySelectorAll("a[href^='#']")].filter((a) => !document.getElementById(a.getAttribute("href").slice(1))).length,
  paper: getComputedStyle(document.body).backgroundColor, faint: [...new Set(faint)].slice(0, 5) });
"#;

#[test]
fn the_page_renders_without_a_word_on_the_console() {
    let page = Page::new();
    for scheme in [Scheme::Light, Scheme::Dark] {
        let seen = page.browse(&page.html, DESKTOP, scheme);
        assert_eq!(seen.console, Vec::<String>::new());
        assert!(seen.dom.contains("<h1>kv-server and etcd, side by side</h1>"));
    }
}

#[test]
fn a_page_that_fetches_or_runs_something_would_be_noticed() {
    let page = Page::new();
    for trespass in ["<img src=\"https://example.invalid/x.png\">", "<script>console.log('here')</script>"] {
        let seen =
            page.browse(&page.html.replace("</body>", &format!("{trespass}</body>")), DESKTOP, Scheme::Light);
        assert!(!seen.console.is_empty(), "{trespass} went unnoticed");
    }
}

/// Parses a number of the page; rounded.
fn number(text: &str) -> Option<f64> {
    text.replace(',', "").parse().ok()
}

#[test]
fn the_tables_hold_the_numbers_of_the_result() {
    let page = Page::new();
    let tables = page.probe(TABLES, DESKTOP, Scheme::Light);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json()).unwrap()).unwrap();
    // Per suite: speed, cost, sums and differences if any, then a table per row. Columns: published, second
    // side (etcd), first side, ratio.
    let mut tables = tables.as_array().unwrap().iter();
    let mut compared = 0;
    let mut close = |cell: &Value, value: &Value, what: &str| {
        let Some(value) = value.as_f64() else { return };
        let shown = number(cell.as_str().unwrap()).unwrap_or_else(|| panic!("{what}: {cell} is no number"));
        assert!(
            (shown - value).abs() <= value.abs() * 0.006 + 0.000_6,
            "{what}: shown {shown}, measured {value}"
        );
        compared += 1;
    };
    for suite in report["suites"].as_array().unwrap() {
        let rows = suite["rows"].as_array().unwrap();
        let speed = tables.next().unwrap().as_array().unwrap();
        assert_eq!(speed.len(), rows.len(), "{}", suite["id"]);
        // The last columns are for p99, whether or not values were published.
        for (cells, row) in speed.iter().zip(rows) {
            let cells = cells.as_array().unwrap();
            assert_eq!(cells[0], row["title"]);
            let p99 = cells.len() - 3;
            for (cell, side) in [(p99, 1), (p99 + 1, 0)] {
                close(&cells[cell], &row["sides"][side]["median"]["p99_ms"], "p99");
            }
            let rate = if cells.len() == 12 { 2 } else { cells.len() - 9 };
            close(&cells[rate], &row["sides"][1]["median"]["requests_per_second"], "etcd's rate");
            close(&cells[rate + 1], &row["sides"][0]["median"]["requests_per_second"], "our rate");
            let is_sum = row["load"]["target"] == "each-summed";
            if let ([published], false) = (row["published"].as_array().unwrap().as_slice(), is_sum) {
                close(&cells[1], &published["requests_per_second"], "published rate");
            }
        }
        let has_sums = rows.iter().any(|row| row["load"]["target"] == "each-summed");
        let published = || rows.iter().flat_map(|row| row["published"].as_array().unwrap());
        let has_changes = published().any(|published| !published["change"].is_null());
        for _ in 0..1 + usize::from(has_sums) + usize::from(has_changes) {
            tables.next().unwrap();
        }
        for row in rows {
            let full = tables.next().unwrap().as_array().unwrap();
            // A metric missing on both sides has no line in the table.
            let nothing = Value::Array(vec![Value::Null; 3]);
            let find = |title: &str| {
                let line = full.iter().find(|cells| cells[0].as_str().unwrap().starts_with(title));
                line.unwrap_or(&nothing).clone()
            };
            for (title, key) in [
                ("requests/s", "requests_per_second"),
                ("p99.9", "p999_ms"),
                ("WAL fsync mean", "sync_mean_ms"),
            ] {
                close(&find(title)[1], &row["sides"][1]["median"][key], title);
                close(&find(title)[2], &row["sides"][0]["median"][key], title);
            }
        }
    }
    assert!(tables.next().is_none());
    assert!(compared > 200, "only {compared} numbers were compared");
}

#[test]
fn it_fits_its_window_fetches_nothing_and_can_be_read_in_light_and_dark() {
    let page = Page::new();
    let mut papers = Vec::new();
    for (size, scheme) in
        [(DESKTOP, Scheme::Light), (DESKTOP, Scheme::Dark), (PHONE, Scheme::Light), (PHONE, Scheme::Dark)]
    {
        let layout = page.probe(LAYOUT, size, scheme);
        let expected = u64::from(size.0);
        assert_eq!(layout["window"], expected);
        assert!(layout["width"].as_u64().unwrap() <= expected, "wider than {size:?}: {layout}");
        for nothing in ["wide", "fetched", "twice", "faint"] {
            assert_eq!(layout[nothing], Value::Array(Vec::new()), "{nothing} at {size:?}");
        }
        for none in ["empty", "unnamed", "dangling"] {
            assert_eq!(layout[none], 0, "{none} at {size:?}");
        }
        assert!(layout["plots"].as_u64().unwrap() > 50, "{layout}");
        papers.push(layout["paper"].clone());
    }
    assert_eq!(papers[0], papers[2]);
    assert_ne!(papers[0], papers[1], "dark is another colour than light");
}

#[test]
fn screenshots_are_taken_for_people_to_look_at() {
    let page = Page::new();
    let path = page.dir.path().join("shown.html");
    std::fs::write(&path, &page.html).unwrap();
    let shots = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("report-page");
    std::fs::create_dir_all(&shots).unwrap();
    for (name, (width, _), scheme) in
        [("light", DESKTOP, Scheme::Light), ("dark", DESKTOP, Scheme::Dark), ("phone", PHONE, Scheme::Light)]
    {
        let shot = shots.join(format!("{name}.png"));
        let size = (width, 5000);
        let output = chromium(page.dir.path(), size, scheme)
            .arg(format!("--screenshot={}", shot.display()))
            .arg(&path)
            .output();
        assert!(output.unwrap().status.success());
        let png = std::fs::read(&shot).unwrap();
        // The header of a PNG contains its width at byte 16.
        assert_eq!(png[16..20], width.to_be_bytes());
        assert!(png.len() > 50_000, "{name} is nearly empty: {} bytes", png.len());
    }
}
