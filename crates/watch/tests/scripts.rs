//! Golden scripts of the hub, in `scripts/`. `testkit::golden` describes the files.
//!
//! One line is one command. The hub does nothing by itself: `turn` and `read` let it work and send.
//!
//!   put a=1 | del a | del a..c | request put a=1; del b | fill k 100 v*30       changes of the store
//!   compact REV | steps                                       logical compaction; physical compaction
//!   leader COMMAND | install                              changes of another member; its store is installed
//!   watch S KEY [..END] [from=3 id=7 prev noput nodelete fragment notify]
//!   cancel S ID | refuse S REASON | progress S | close S | accepts S
//!   review S KEY [..END]     cancels the watchers of a stream that begin outside the range
//!   a name of a stream may be CLIENT.STREAM: streams of one client share what it may use of the limits
//!   turn [N]       one turn or N; without a number until nothing is left to do
//!   read S [N]     takes parcels of N bytes, or all, and shows the responses
//!   periodic SECONDS | stats | ready | limits outbox=700 bodies=1500 step=300 revisions=3 watchers=4
//!   fragment=100
//!                                              matches=5 copied=100 previous=150 part=60
//!
//! `..` alone is everything from the key on, `_` is the empty key. An event is shown as
//! key=value@create.mod.version or key@mod, the pair before it in brackets.

use crate::common;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::common::{Client, Member, revision};
use api::etcdserverpb::WatchResponse;
use api::mvccpb::{Event, KeyValue};
use bytes::Bytes;
use mvcc::KeyRange;
use watch::{CreateRequest, Hub, WatchLimits};

#[test]
fn scripts_give_their_output() {
    testkit::golden::run_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts"), || {
        let mut script = Script::new(WatchLimits::default(), 1 << 20);
        move |line| script.command(line)
    });
}

struct Script {
    member: Member,
    leader: Member,
    hub: Hub,
    limits: WatchLimits,
    fragment_bytes: usize,
    clients: BTreeMap<String, Client>,
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(if text == "_" { b"" } else { text.as_bytes() })
}

/// `v*30` is 30 times v.
fn value(text: &str) -> Vec<u8> {
    match text.split_once('*') {
        Some((unit, times)) => unit.repeat(times.parse().unwrap()).into_bytes(),
        None => text.as_bytes().to_vec(),
    }
}

fn range(text: &str) -> KeyRange {
    match text.split_once("..") {
        Some((start, "")) => KeyRange::new(bytes(start), Bytes::from_static(b"\0")),
        Some((start, end)) if end.contains('*') => KeyRange::new(bytes(start), value(end).into()),
        Some((start, end)) => KeyRange::new(bytes(start), bytes(end)),
        None => KeyRange::one(bytes(text)),
    }
}

fn change(member: &mut Member, line: &str) -> Option<String> {
    let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
    match name {
        "put" | "del" => return change(member, &format!("request {line}")),
        "request" => {
            let (mut puts, mut deletes) = (Vec::new(), Vec::new());
            for part in rest.split("; ") {
                match part.split_once(' ').unwrap() {
                    ("put", pair) => {
                        let (key, text) = pair.split_once('=').unwrap();
                        puts.push((key.as_bytes().to_vec(), value(text)));
                    }
                    (_, keys) => deletes.push(range(keys)),
                }
            }
            member.request(&puts, &deletes);
        }
        "fill" => {
            let words: Vec<&str> = rest.split(' ').collect();
            for number in 0..words[1].parse::<usize>().unwrap() {
                let key = format!("{}{number:03}", words[0]).into_bytes();
                member.request(&[(key, value(words[2]))], &[]);
            }
        }
        "compact" => drop(member.compact(rest.parse().unwrap())),
        "steps" => drop(member.steps(1000)),
        "sweep" => {
            return Some(member.steps(1000).map_or("waits".into(), |at| format!("removed below r{at}")));
        }
        _ => return None,
    }
    Some(String::new())
}

impl Script {
    fn new(limits: WatchLimits, fragment_bytes: usize) -> Self {
        let member = Member::new();
        let hub = Hub::new(member.store.clone(), limits);
        Script { member, leader: Member::new(), hub, limits, fragment_bytes, clients: BTreeMap::new() }
    }

    fn client(&mut self, name: &str) -> &mut Client {
        let (hub, fragment_bytes) = (&mut self.hub, self.fragment_bytes);
        self.clients.entry(name.to_owned()).or_insert_with(|| match name.split_once('.') {
            Some((client, _)) => {
                let owner = client.bytes().map(u64::from).sum();
                Client::of(hub.open_of(watch::ClientId::alone(owner), Duration::ZERO), fragment_bytes)
            }
            None => Client::open(hub, fragment_bytes),
        })
    }

    fn command(&mut self, line: &str) -> String {
        if let Some(output) = change(&mut self.member, line) {
            return output;
        }
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["leader", ..] => drop(change(&mut self.leader, &line["leader ".len()..]).unwrap()),
            ["install"] => self.member.install(&mut self.leader),
            ["limits", ..] => self.set_limits(&words[1..]),
            ["turn"] => common::settle(&mut self.hub),
            ["turn", count] => {
                for _ in 0..count.parse().unwrap() {
                    self.hub.turn().unwrap();
                }
            }
            ["periodic", seconds] => self.hub.periodic(Duration::from_secs(seconds.parse().unwrap())),
            ["stats"] => return self.stats(),
            ["ready"] => return self.ready(),
            [name, stream, ..] => {
                let stream_id = self.client(stream).stream;
                let rest = &words[2..];
                match name {
                    "watch" => self.hub.create(stream_id, create_request(rest)),
                    "cancel" => self.hub.cancel(stream_id, rest[0].parse().unwrap()),
                    "refuse" => self.hub.refuse(stream_id, &rest.join(" ")),
                    "review" => {
                        let kept = range(rest[0]);
                        let is_kept = |watched: KeyRange| kept.contains(watched.start());
                        let mut from = Some(0);
                        while let Some(next) = from {
                            from = self.hub.review(stream_id, next, &"denied".into(), is_kept);
                        }
                    }
                    "progress" => self.hub.progress(stream_id),
                    "accepts" => return self.hub.accepts(stream_id).to_string(),
                    "close" => {
                        self.hub.close(stream_id);
                        self.clients.remove(stream);
                    }
                    "read" => {
                        let bytes_max = rest.first().map_or(usize::MAX, |bytes| bytes.parse().unwrap());
                        let client = self.clients.get_mut(stream).unwrap();
                        let responses = client.read(&mut self.hub, bytes_max);
                        let mut shown: String =
                            responses.iter().map(|response| show(response) + "\n").collect();
                        if client.is_inside_message() {
                            shown += "a message has begun\n";
                        }
                        if client.encoder.is_broken() {
                            shown += "broken\n";
                        }
                        return shown;
                    }
                    _ => panic!("an unknown command: {line}"),
                }
            }
            _ => panic!("an unknown command: {line}"),
        }
        String::new()
    }

    fn set_limits(&mut self, words: &[&str]) {
        for word in words {
            let (name, number) = word.split_once('=').unwrap();
            let number: usize = number.parse().unwrap();
            match name {
                "outbox" => self.limits.outbox_bytes = number,
                "bodies" => self.limits.bodies_bytes = number,
                "answers" => self.limits.answers_max = number,
                "always" => self.limits.answers_always = number,
                "total" => self.limits.answers_total_max = number,
                "watchers" => self.limits.watchers_max = number,
                "keys" => self.limits.key_bytes_max = number,
                "matches" => self.limits.matches_max = number,
                "copied" => self.limits.copied_bytes_max = number,
                "previous" => self.limits.previous_bytes_max = number,
                "part" => self.limits.part_bytes = number,
                "step" => self.limits.step_bytes = number,
                "served" => self.limits.step_watchers = number,
                "turn" => self.limits.turn_watchers = number,
                "revisions" => self.limits.response_revisions_max = number,
                "fragment" => self.fragment_bytes = number,
                _ => panic!("an unknown limit: {word}"),
            }
        }
        self.hub = Hub::new(self.member.store.clone(), self.limits);
        self.clients.clear();
    }

    fn stats(&self) -> String {
        let stats = self.hub.stats();
        format!(
            "streams {}, watchers {}, lagging {}, future {}, ranges {}, keys {} B, bodies {} B, evictions {}",
            stats.streams,
            stats.watchers,
            stats.lagging,
            stats.future,
            stats.ranges,
            stats.key_bytes,
            stats.body_bytes,
            stats.evictions
        )
    }

    fn ready(&mut self) -> String {
        let ready = self.hub.ready();
        let named = self.clients.iter().filter(|(_, client)| ready.contains(&client.stream));
        let names: Vec<&str> = named.map(|(name, _)| &name[..]).collect();
        format!("ready: {}", names.join(" "))
    }
}

fn create_request(words: &[&str]) -> CreateRequest {
    let (key, end) = words[0].split_once("..").unwrap_or((words[0], "-"));
    let range_end = match end {
        "-" => Bytes::new(),
        "" => Bytes::from_static(b"\0"),
        end => bytes(end),
    };
    let mut request = CreateRequest { key: bytes(key), range_end, ..CreateRequest::default() };
    for word in &words[1..] {
        match word.split_once('=').unwrap_or((word, "0")) {
            ("from", number) => request.start_revision = number.parse().unwrap(),
            ("id", number) => request.watch_id = number.parse().unwrap(),
            ("prev", _) => request.prev_kv = true,
            ("noput", _) => request.no_put = true,
            ("nodelete", _) => request.no_delete = true,
            ("fragment", _) => request.fragment = true,
            ("notify", _) => request.progress_notify = true,
            _ => panic!("an unknown option: {word}"),
        }
    }
    request
}

fn show(response: &WatchResponse) -> String {
    let (id, at) = (response.watch_id, revision(response));
    let what = match (response.created, response.canceled, response.compact_revision) {
        (true, true, _) => format!("refused {id} ({})", response.cancel_reason),
        (true, false, _) => format!("created {id}"),
        (false, true, 0) if !response.cancel_reason.is_empty() => {
            format!("canceled {id} ({})", response.cancel_reason)
        }
        (false, true, 0) => format!("canceled {id}"),
        (false, true, compacted) => format!("canceled {id} compacted {compacted}"),
        (false, false, _) if response.events.is_empty() => format!("progress {id}"),
        (false, false, _) => {
            let events: Vec<String> = response.events.iter().map(show_event).collect();
            let fragment = if response.fragment { " …" } else { "" };
            return format!("events {id} r{at}: {}{fragment}", events.join(" "));
        }
    };
    format!("{what} r{at}")
}

fn show_event(event: &Event) -> String {
    let kv = event.kv.as_ref().unwrap();
    let previous = event.prev_kv.as_ref().map(|kv| format!("[{}]", show_pair(kv))).unwrap_or_default();
    let text = if event.r#type == 0 {
        show_pair(kv)
    } else {
        assert_eq!((kv.create_revision, kv.version, kv.value.len()), (0, 0, 0), "a delete has only a key");
        format!("{}@{}", String::from_utf8_lossy(&kv.key), kv.mod_revision)
    };
    text + &previous
}

fn show_pair(kv: &KeyValue) -> String {
    let (key, value) = (String::from_utf8_lossy(&kv.key), String::from_utf8_lossy(&kv.value));
    let value = if value.len() > 12 { format!("({} bytes)", value.len()) } else { value.into_owned() };
    format!("{key}={value}@{}.{}.{}", kv.create_revision, kv.mod_revision, kv.version)
}
