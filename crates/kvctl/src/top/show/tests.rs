//! Golden screens: documents and keys in, pictures out (`tests/*.txt`).
//!
//! ```text
//!   endpoints m0 m1          two members of a cluster, the first of which leads
//!   patch m0 {…}             a JSON merge patch of its document
//!   look                     every endpoint answers with its document, two seconds after the look before
//!   answer m0 {…}            one answers with these bytes
//!   down m0 TEXT             one does not answer
//!   keys 2 s / a b enter     presses keys
//!   screen 80x24             the picture, a bar before each line; `once 80` that of --once
//! ```

use std::path::Path;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use serde_json::{Value, json};

use super::super::figures::{Absence, ClusterFigures, document_of};
use super::*;

struct Script {
    names: Vec<String>,
    documents: Vec<Value>,
    cluster: ClusterFigures,
    state: ScreenState,
    theme: Theme,
    scroll_max: usize,
}

/// RFC 7396.
fn merge(into: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *into = patch;
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in patch {
        merge(&mut into[name], value);
    }
}

fn picture(buffer: &Buffer, theme: Theme) -> String {
    let text = text(buffer, theme).replace('\u{1b}', "^");
    text.lines().map(|line| format!("|{line}\n")).collect()
}

impl Script {
    fn new() -> Script {
        Script {
            names: Vec::new(),
            documents: Vec::new(),
            cluster: ClusterFigures::default(),
            state: ScreenState::new(ScreenView::default()),
            theme: Theme::Plain,
            scroll_max: 0,
        }
    }

    fn endpoints(&mut self, names: &str) {
        self.names = names.split(' ').map(str::to_owned).collect();
        let id = |at: usize| format!("{:x}", 0xa0 + at);
        let member = |name: &str, at, own| {
            let linked = if at == own { Value::Null } else { 60.into() };
            json!({
                "id": id(at), "name": name, "is_self": at == own, "is_leader": at == 0, "is_learner": false,
                "linked_s": linked, "lag": if at == own || own == 0 { json!(0) } else { Value::Null },
            })
        };
        let document = |own: usize| {
            let members: Vec<Value> =
                self.names.iter().enumerate().map(|(at, name)| member(name, at, own)).collect();
            json!({
                "uptime_ms": 60_000, "version": "1.0", "name": self.names[own], "id": id(own), "cluster": "c1", "leader": "a0",
                "role": if own == 0 { "leader" } else { "follower" }, "members": members,
                "raft": { "term": 2, "commit": 7, "applied": 7, "last_index": 7 },
            })
        };
        self.documents = (0..self.names.len()).map(document).collect();
        self.cluster = ClusterFigures::new(self.names.iter().map(|name| format!("{name}.example:9090")));
        self.state = ScreenState::new(ScreenView::default());
    }

    fn at(&self, name: &str) -> usize {
        self.names.iter().position(|known| known == name).expect("an endpoint of the script")
    }

    fn answer(&mut self, at: usize, json: &str) {
        let document = document_of(json.as_bytes()).map_err(Absence::from);
        self.cluster.endpoints[at].record(document);
    }

    fn key(&mut self, word: &str) {
        let code = match word {
            "tab" => KeyCode::Tab,
            "enter" => KeyCode::Enter,
            "esc" => KeyCode::Esc,
            "down" => KeyCode::Down,
            "end" => KeyCode::End,
            word => KeyCode::Char(word.chars().next().expect("a word has a character")),
        };
        let key = KeyEvent::new(code, KeyModifiers::NONE);
        assert_eq!(self.state.key(key, self.names.len(), self.scroll_max), Next::GoOn);
    }

    fn screen(&mut self, size: &str) -> String {
        let (width, height) = size.split_once('x').expect("a size is WIDTHxHEIGHT");
        let backend = TestBackend::new(width.parse().unwrap(), height.parse().unwrap());
        let mut terminal = Terminal::new(backend).unwrap();
        let draw = |frame: &mut ratatui::Frame<'_>| {
            self.scroll_max = draw(frame.buffer_mut(), &self.cluster, &self.state, self.theme);
        };
        terminal.draw(draw).unwrap();
        picture(terminal.backend().buffer(), self.theme)
    }

    fn run(&mut self, line: &str) -> String {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
        match command {
            "endpoints" => self.endpoints(rest),
            "patch" => {
                let at = self.at(name);
                merge(&mut self.documents[at], serde_json::from_str(text).expect("a patch is JSON"));
            }
            "look" => {
                for at in 0..self.documents.len() {
                    let uptime = self.documents[at]["uptime_ms"].as_u64().unwrap_or_default();
                    self.documents[at]["uptime_ms"] = (uptime + 2000).into();
                    let json = self.documents[at].to_string();
                    self.answer(at, &json);
                }
            }
            "answer" => self.answer(self.at(name), text),
            "down" => {
                let at = self.at(name);
                let absence = if text.starts_with("404") { Absence::NoFigures } else { Absence::Down };
                self.cluster.endpoints[at].record(Err(absence(text.to_owned())));
            }
            "keys" => rest.split(' ').for_each(|word| self.key(word)),
            "colors" => self.theme = Theme::Colored,
            "screen" => return self.screen(rest),
            "once" => {
                let width = rest.parse().expect("a width");
                let all = draw_all(width, None, &self.cluster, &self.state, self.theme);
                return all.iter().map(|part| picture(part, self.theme)).collect();
            }
            other => panic!("no such command: {other}"),
        }
        String::new()
    }
}

#[test]
fn screens_are_those_of_the_scripts() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/show/tests");
    testkit::golden::run_all(&dir, || {
        let mut script = Script::new();
        move |line| script.run(line)
    });
}

/// Any size, and figures that no member has.
#[test]
fn no_size_and_no_figure_ends_the_program() {
    let absurd = json!({
        "id": "a0", "uptime_ms": u64::MAX, "name": "\u{1b}c".repeat(1000), "leader": "b", "role": "鍵".repeat(100),
        "members": [{ "id": "a0", "is_self": true, "lag": u64::MAX, "name": "e\u{301}".repeat(100) }, {}, {}],
        "raft": { "term": u64::MAX, "commit": u64::MAX, "applied": u64::MAX, "proposals_pending": u64::MAX },
        "counters": { "puts": u64::MAX, "cpu_seconds": 1e308, "log_bytes": u64::MAX, "store_bytes": u64::MAX, "command_bytes": 1 },
        "calls": [{ "method": "鍵.鍵", "ended": u64::MAX, "failed": u64::MAX, "latency": [[u64::MAX, u64::MAX], [0, u64::MAX]] }],
        "space": { "quota_bytes": 1, "store_bytes": u64::MAX, "keys": u64::MAX, "revision": u64::MAX },
        "alarms": [{ "member": "\u{202e}", "alarm": "\n" }],
        "queues": { "reads_waiting": u64::MAX, "commands_waiting": u64::MAX },
        "top": { "clients": [{ "name": "\u{7}", "requests": 1e308, "bytes": 1.7e308, "keys": -5.0 }, { "name": "鍵", "requests": 1e308, "bytes": 1.7e308, "keys": 0.5 }], "prefixes": [] },
    });
    let mut script = Script::new();
    script.endpoints("m0 m1 m2");
    script.answer(0, "{\"id\":\"a0\"}");
    script.answer(0, &absurd.to_string());
    script.answer(1, &absurd.to_string().replace("a0", "a1"));
    for view in ["1", "2", "3", "4", "5", "6", "7"] {
        script.key(view);
        for size in
            ["1x1", "1x40", "59x15", "60x14", "60x15", "61x16", "80x24", "133x50", "400x200", "65535x15"]
        {
            let drawn = script.screen(size);
            assert!(!drawn.contains(|it: char| it.is_control() && it != '\n'), "{view} {size}: {drawn}");
        }
        script.key("down");
        script.key("s");
    }
}
