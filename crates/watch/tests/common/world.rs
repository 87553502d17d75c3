//! A hub with clients, and a naive model of the expected events, in which each watcher scans all
//! events.
//!
//! Two members apply the same log. The hub runs on the second one, which applies later, and
//! sometimes installs the store of the first one. Limits are tiny.
//!
//! Checked for each response: the next events of the watcher, each once, in order, whole revisions,
//! and the previous pair of each event; no progress notification before an event up to its
//! revision. At the end all events must be delivered. Shared by the property test and the fuzz
//! target.
#![allow(dead_code, reason = "each user has a part of the operations")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use api::etcdserverpb::WatchResponse;
use api::mvccpb::Event;
use bytes::Bytes;
use mvcc::KeyRange;
use watch::{CreateRequest, Hub};

use super::common::{self, Client, Member, revision, tiny_limits};

pub const STREAMS: usize = 3;

#[derive(Clone, Debug)]
pub enum Entry {
    Request(Vec<(u8, usize)>, Vec<u8>),
    /// Compacts at this share of the history.
    Compact(i64),
}

#[derive(Clone, Debug)]
pub enum Operation {
    Entry(Entry),
    Apply(usize),
    Steps(usize),
    Install,
    Create(usize, CreateRequest),
    /// Starts at this share of the current revision, in 1/26; below 13 after the current revision.
    CreateAt(usize, CreateRequest, i64),
    Cancel(usize, i64),
    Progress(usize),
    Periodic,
    Turn(usize),
    Read(usize, usize),
    Reconnect(usize),
}

#[derive(Clone, Debug)]
struct Made {
    main: i64,
    key: Vec<u8>,
    /// Absent for a delete.
    value: Option<Vec<u8>>,
}

/// A watcher from the client's view.
#[derive(Debug)]
struct Watcher {
    request: CreateRequest,
    start: i64,
    /// The next event, as an index into all events.
    next: usize,
    is_compacted: bool,
}

impl Watcher {
    fn matches(&self, made: &Made) -> bool {
        let key =
            if self.request.key.is_empty() { Bytes::from_static(b"\0") } else { self.request.key.clone() };
        let is_filtered = if made.value.is_some() { self.request.no_put } else { self.request.no_delete };
        KeyRange::new(key, self.request.range_end.clone()).contains(&made.key)
            && !is_filtered
            && made.main >= self.start
    }

    fn find<'m>(&mut self, all: &'m [Made]) -> Option<&'m Made> {
        while self.next < all.len() && !self.matches(&all[self.next]) {
            self.next += 1;
        }
        all.get(self.next)
    }
}

#[derive(Debug)]
enum Asked {
    Create(CreateRequest),
    Cancel(i64),
}

/// A stream from the client's view.
struct Stream {
    client: Client,
    asked: VecDeque<Asked>,
    watchers: BTreeMap<i64, Watcher>,
    /// Events of the fragments so far.
    parts: Option<(i64, Vec<Event>)>,
}

impl Stream {
    fn open(hub: &mut Hub) -> Self {
        let (client, asked) = (Client::open(hub, 200), VecDeque::new());
        Stream { client, asked, watchers: BTreeMap::new(), parts: None }
    }
}

pub struct World {
    leader: Member,
    member: Member,
    log: Vec<Entry>,
    applied: usize,
    made: Vec<Made>,
    live: BTreeSet<Vec<u8>>,
    hub: Hub,
    streams: Vec<Stream>,
    now: Duration,
}

impl World {
    pub fn new() -> Self {
        let member = Member::new();
        let mut hub = Hub::new(member.store.clone(), tiny_limits());
        let streams = (0..STREAMS).map(|_| Stream::open(&mut hub)).collect();
        World {
            leader: Member::new(),
            member,
            log: Vec::new(),
            applied: 0,
            made: Vec::new(),
            live: BTreeSet::new(),
            hub,
            streams,
            now: Duration::ZERO,
        }
    }

    fn apply(member: &mut Member, entry: &Entry) {
        match entry {
            Entry::Request(puts, deletes) => {
                let puts = puts.iter().map(|(key, length)| (vec![b'a' + key], vec![*key; *length]));
                let one = |key: &u8| KeyRange::one(Bytes::from(vec![b'a' + key]));
                member.request(&puts.collect::<Vec<_>>(), &deletes.iter().map(one).collect::<Vec<_>>());
            }
            Entry::Compact(revision) => drop(member.compact(*revision)),
        }
    }

    /// Applies a new entry on the leader. Keys of a request are distinct.
    fn propose(&mut self, entry: Entry) {
        let entry = match entry {
            Entry::Request(mut puts, mut deletes) => {
                puts.sort_unstable();
                puts.dedup_by_key(|put| put.0);
                deletes.sort_unstable();
                deletes.dedup();
                deletes.retain(|key| puts.iter().all(|put| put.0 != *key));
                Entry::Request(puts, deletes)
            }
            Entry::Compact(share) => Entry::Compact(self.leader.store.revision() * share / 100),
        };
        Self::apply(&mut self.leader, &entry);
        let main = self.leader.store.revision();
        if let Entry::Request(puts, deletes) = &entry {
            for (key, length) in puts {
                let key = vec![b'a' + key];
                self.live.insert(key.clone());
                self.made.push(Made { main, value: Some(vec![key[0] - b'a'; *length]), key });
            }
            for key in deletes {
                let key = vec![b'a' + key];
                if self.live.remove(&key) {
                    self.made.push(Made { main, key, value: None });
                }
            }
        }
        self.log.push(entry);
    }

    pub fn run(&mut self, operation: Operation) {
        match operation {
            Operation::Entry(entry) => self.propose(entry),
            Operation::Apply(count) => {
                for _ in 0..count.min(self.log.len() - self.applied) {
                    Self::apply(&mut self.member, &self.log[self.applied]);
                    self.applied += 1;
                }
            }
            Operation::Steps(count) => {
                self.member.steps(count);
                self.leader.steps(count);
            }
            Operation::Install => {
                self.member.install(&mut self.leader);
                self.applied = self.log.len();
            }
            Operation::Create(stream, request) => self.create(stream, request),
            Operation::CreateAt(stream, mut request, at) => {
                // A third starts at the present, the rest between -1 and beyond the present.
                let present = self.member.store.revision();
                request.start_revision = if at < 13 { 0 } else { (present + 4) * (at - 13) / 26 - 1 };
                self.create(stream, request);
            }
            Operation::Cancel(stream, id) => {
                let stream = &mut self.streams[stream];
                self.hub.cancel(stream.client.stream, id);
                stream.asked.push_back(Asked::Cancel(id));
            }
            Operation::Progress(stream) => self.hub.progress(self.streams[stream].client.stream),
            Operation::Periodic => {
                self.now += Duration::from_secs(700);
                self.hub.periodic(self.now);
            }
            Operation::Turn(count) => {
                for _ in 0..count {
                    self.hub.turn().unwrap();
                }
            }
            Operation::Read(stream, bytes_max) => {
                self.read(stream, bytes_max);
            }
            Operation::Reconnect(stream) => {
                self.hub.close(self.streams[stream].client.stream);
                self.streams[stream] = Stream::open(&mut self.hub);
            }
        }
        // One step may exceed the limit: by the changes that it read, twice encoded, and their previous
        // pairs.
        let bytes = self.hub.stats().body_bytes;
        assert!(bytes <= tiny_limits().bodies_bytes + 4000, "{bytes} bytes of events");
    }

    /// Whether the stream's next request may be carried out.
    pub fn accepts(&self, stream: usize) -> bool {
        self.hub.accepts(self.streams[stream].client.stream)
    }

    /// Progress under the id -1 means all watchers, so a watcher of that id has no other.
    fn create(&mut self, stream: usize, mut request: CreateRequest) {
        request.progress_notify &= request.watch_id != -1;
        let stream = &mut self.streams[stream];
        stream.asked.push_back(Asked::Create(request.clone()));
        self.hub.create(stream.client.stream, request);
    }

    /// Reads once. Returns whether there was anything.
    fn read(&mut self, stream: usize, bytes_max: usize) -> bool {
        let responses = self.streams[stream].client.read(&mut self.hub, bytes_max);
        let compacted = self.member.store.compact_revision();
        let is_any = !responses.is_empty();
        for response in responses {
            self.streams[stream].check(response, &self.made, compacted);
        }
        if self.streams[stream].client.encoder.is_broken() {
            // A large revision was compacted while it was sent: the client reconnects.
            assert!(compacted > 0, "a broken stream without a compaction");
            self.hub.close(self.streams[stream].client.stream);
            self.streams[stream] = Stream::open(&mut self.hub);
        }
        is_any
    }

    /// Applies, delivers and reads all remaining events.
    pub fn finish(&mut self) {
        self.run(Operation::Apply(usize::MAX));
        for round in 0.. {
            assert!(round < 2000, "the streams do not come to rest");
            common::settle(&mut self.hub);
            let read = (0..STREAMS).map(|stream| self.read(stream, 500)).filter(|any| *any).count();
            let is_left = self.streams.iter().any(|stream| self.hub.has_parcels(stream.client.stream));
            if read == 0 && !is_left && !self.hub.has_work() {
                break;
            }
        }
        for stream in &mut self.streams {
            assert!(stream.parts.is_none(), "a response without its last fragment");
            assert!(!stream.client.is_inside_message(), "a message without its end");
            assert!(stream.asked.iter().all(|asked| matches!(asked, Asked::Cancel(_))), "not answered");
            for (id, watcher) in &mut stream.watchers {
                let missing = watcher.find(&self.made).filter(|_| !watcher.is_compacted);
                assert!(missing.is_none(), "watcher {id} misses {missing:?}");
            }
        }
        let stats = self.hub.stats();
        assert_eq!((stats.body_bytes, stats.lagging), (0, 0));
        let watchers: usize = self.streams.iter().map(|stream| stream.watchers.len()).sum();
        assert_eq!(stats.watchers, watchers);
        for stream in &self.streams {
            self.hub.close(stream.client.stream);
        }
        common::settle(&mut self.hub);
        let stats = self.hub.stats();
        assert_eq!((stats.watchers, stats.ranges, stats.key_bytes, stats.streams), (0, 0, 0, 0));
    }
}

impl Stream {
    fn check(&mut self, response: WatchResponse, made: &[Made], compacted: i64) {
        let (id, at) = (response.watch_id, revision(&response));
        if let Some((part, _)) = &self.parts {
            assert!(*part == id && !response.events.is_empty(), "a response between two fragments");
        }
        if response.created {
            self.created(&response);
        } else if response.canceled && response.compact_revision > 0 {
            let watcher = self.watchers.get_mut(&id).expect("an open watcher");
            assert!(at == 0 && response.compact_revision <= compacted && !watcher.is_compacted);
            let missed = watcher.find(made).is_none_or(|next| next.main > 0);
            assert!(missed && response.events.is_empty());
            watcher.is_compacted = true;
        } else if response.canceled {
            // Cancels of unknown ids have no response.
            while let Some(Asked::Cancel(asked)) = self.asked.pop_front() {
                if asked == id {
                    break;
                }
            }
            self.watchers.remove(&id).expect("an open watcher");
        } else if response.events.is_empty() {
            let all = self.watchers.iter_mut().filter(|(watcher, _)| id == -1 || **watcher == id);
            for (id, watcher) in all {
                let next = watcher.find(made).map_or(i64::MAX, |next| next.main);
                assert!(next > at, "progress {at} of watcher {id} before its event at {next}");
            }
        } else {
            self.events(response, made, compacted);
        }
    }

    fn created(&mut self, response: &WatchResponse) {
        while let Some(Asked::Cancel(_)) = self.asked.front() {
            self.asked.pop_front();
        }
        let Some(Asked::Create(request)) = self.asked.pop_front() else { panic!("not asked for") };
        let key: &[u8] = if request.key.is_empty() { b"\0" } else { &request.key };
        let end = &request.range_end[..];
        let reason = if request.start_revision < 0 {
            "etcdserver: mvcc: required revision has been compacted"
        } else if !end.is_empty() && end != b"\0" && end <= key {
            "mvcc: watcher range is empty"
        } else if request.watch_id != 0 && self.watchers.contains_key(&request.watch_id) {
            "mvcc: duplicate watch ID provided on the WatchStream"
        } else {
            ""
        };
        assert_eq!(response.cancel_reason, reason);
        assert_eq!(response.canceled, !reason.is_empty());
        if response.canceled {
            assert_eq!(response.watch_id, -1);
            return;
        }
        assert!(request.watch_id == 0 || request.watch_id == response.watch_id);
        let start = if request.start_revision == 0 { revision(response) + 1 } else { request.start_revision };
        let watcher = Watcher { request, start, next: 0, is_compacted: false };
        assert!(self.watchers.insert(response.watch_id, watcher).is_none(), "an id in use");
    }

    fn events(&mut self, response: WatchResponse, made: &[Made], compacted: i64) {
        let id = response.watch_id;
        let (_, mut events) = self.parts.take().unwrap_or((id, Vec::new()));
        let watcher = self.watchers.get_mut(&id).expect("events of an open watcher");
        assert!(!watcher.is_compacted, "events of a canceled watcher");
        assert!(watcher.request.fragment || !response.fragment);
        events.extend(response.events.iter().cloned());
        if response.fragment {
            self.parts = Some((id, events));
            return;
        }
        let (mut last, mut revisions) = (0, 0);
        for event in events {
            let kv = event.kv.as_ref().unwrap();
            let expected = watcher.find(made).expect("an event that was made");
            assert_eq!((kv.mod_revision, &kv.key[..]), (expected.main, &expected.key[..]), "watcher {id}");
            assert_eq!(event.r#type, i32::from(expected.value.is_none()));
            assert_eq!(&kv.value[..], expected.value.as_deref().unwrap_or_default());
            check_previous(&event, watcher.request.prev_kv, &made[..watcher.next], compacted);
            revisions += i64::from(kv.mod_revision != last);
            last = kv.mod_revision;
            watcher.next += 1;
        }
        assert!(revision(&response) >= last && revisions <= 3, "{revisions} revisions at once");
        let next = watcher.find(made).map_or(i64::MAX, |next| next.main);
        assert!(next > last, "revision {last} is split");
    }
}

/// Checks that the previous pair is the last put of the key in an earlier revision.
fn check_previous(event: &Event, is_wanted: bool, before: &[Made], compacted: i64) {
    let kv = event.kv.as_ref().unwrap();
    let previous = event.prev_kv.as_ref().map(|kv| (kv.mod_revision, kv.value.to_vec()));
    let of_key = |made: &&Made| made.key == kv.key && made.main < kv.mod_revision;
    let newest = before.iter().rev().find(of_key);
    let expected = newest.and_then(|made| Some((made.main, made.value.clone()?))).filter(|_| is_wanted);
    let may_be_compacted = kv.mod_revision - 1 < compacted;
    assert!(
        previous == expected || (previous.is_none() && may_be_compacted),
        "before {event:?}: {previous:?}, not {expected:?}"
    );
}
