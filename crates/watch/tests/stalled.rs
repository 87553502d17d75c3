//! Memory of responses that were handed to streams which do not send them. A member has a thousand
//! such streams.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod common;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::Client;
use mvcc::{KeyRange, LogPosition, MemoryBackend, Previous, Store, StoreOptions, Writer};
use watch::{ClientId, CreateRequest, Hub, Parcel, WatchLimits};

/// Connections from this number on belong to the same caller; each other one is a separate caller.
const OF_ONE_CALLER: u64 = 1000;
/// Bytes that a stream is handed ahead of its reading.
const HANDED_BYTES: usize = 16 << 10;

/// Serializes the tests, which measure the memory of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A store with puts of distinct keys.
fn store(puts: usize, bytes: usize) -> (Writer, Store) {
    let (mut writer, store, _) = mvcc::open(Box::new(MemoryBackend::new()), StoreOptions::default()).unwrap();
    for n in 0..puts {
        writer.begin().put(format!("k{n:06}").as_bytes(), &vec![n as u8; bytes], 0);
        writer.end_entry(LogPosition::new(n as u64 + 1, 1)).unwrap();
    }
    (writer, store)
}

/// A stream, and the parcels that it was handed and has not sent.
struct Stalled {
    owner: u64,
    client: Client,
    held: VecDeque<Parcel>,
}

impl Stalled {
    fn held_bytes(&self) -> usize {
        self.held.iter().map(Parcel::bytes).sum()
    }
}

/// A hub, and streams that it hands events to as soon as it has some.
struct Server {
    hub: Hub,
    streams: Vec<Stalled>,
}

impl Server {
    fn new(store: Store, limits: WatchLimits) -> Server {
        Server { hub: Hub::new(store, limits), streams: Vec::new() }
    }

    /// Opens a stream that watches all keys from a revision on, and sends no data.
    fn open(&mut self, owner: u64, start_revision: i64) {
        let range_end = b"\0".as_slice().into();
        self.open_for(owner, CreateRequest { range_end, start_revision, ..CreateRequest::default() });
    }

    fn open_for(&mut self, owner: u64, request: CreateRequest) {
        let client = match owner {
            OF_ONE_CALLER.. => ClientId { caller: OF_ONE_CALLER, connection: owner },
            owner => ClientId::alone(owner),
        };
        let stream = self.hub.open_of(client, Duration::ZERO);
        let client = Client::of(stream, 1 << 20);
        self.streams.push(Stalled { owner, client, held: VecDeque::new() });
        self.hub.create(stream, request);
        self.settle();
    }

    /// Sends the parcels of all streams but the last, round-robin, until the last one has a
    /// response. Returns the number of sends.
    fn sent_until_last_has_its_response(&mut self) -> usize {
        let last = self.streams.len() - 1;
        let mut sent = 0;
        while self.streams[last].held_bytes() < HANDED_BYTES {
            let mut has_sent = false;
            for number in 0..last {
                if self.streams[number].held_bytes() > HANDED_BYTES {
                    self.send(number);
                    (sent, has_sent) = (sent + 1, true);
                    if self.streams[last].held_bytes() > HANDED_BYTES {
                        return sent;
                    }
                }
            }
            assert!(has_sent, "nothing goes on: {:?}", self.hub.stats());
        }
        sent
    }

    /// Closes a stream, which drops its parcels.
    fn close(&mut self, number: usize) {
        let stalled = self.streams.remove(number);
        self.hub.close(stalled.client.stream);
        drop(stalled);
        self.settle();
    }

    fn settle(&mut self) {
        for _ in 0..5000 {
            let more = self.hub.turn().unwrap().more;
            let ready = self.hub.ready();
            if !more && ready.is_empty() {
                return;
            }
            for number in 0..self.streams.len() {
                if ready.contains(&self.streams[number].client.stream) {
                    self.hand(number);
                }
            }
        }
        panic!("the hub does not come to rest: {:?}", self.hub.stats());
    }

    fn hand(&mut self, number: usize) {
        let stalled = &mut self.streams[number];
        if let Some(bytes_max) = HANDED_BYTES.checked_sub(stalled.held_bytes()) {
            self.hub.take(stalled.client.stream, bytes_max, &mut stalled.held);
        }
    }

    /// Sends the parcels of a stream. Returns the number of events.
    fn send(&mut self, number: usize) -> usize {
        let Stalled { client, held, .. } = &mut self.streams[number];
        client.encoder.queue().append(held);
        let events = client.read(&mut self.hub, 1).iter().map(|response| response.events.len()).sum();
        self.hand(number);
        self.settle();
        events
    }

    /// Sends all data of these streams, round-robin. Returns the number of events of each.
    fn send_all(&mut self, numbers: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let numbers: Vec<usize> = numbers.into_iter().collect();
        let mut events = vec![0; numbers.len()];
        while numbers.iter().any(|number| !self.streams[*number].held.is_empty()) {
            for (number, events) in numbers.iter().zip(&mut events) {
                *events += self.send(*number);
            }
        }
        events
    }
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
}

#[test]
fn streams_that_stop_in_history_hold_little_of_it() {
    const STREAMS: usize = 300;
    const PUTS: usize = 4000;
    let _alone = alone();
    let (_writer, store) = store(PUTS, 250);
    let mut server = Server::new(store, WatchLimits::default());
    let before = resident_bytes();
    // Sequentially: each reads the history again.
    (0..STREAMS).for_each(|owner| server.open(owner as u64, 1));
    let held: usize = server.streams.iter().map(Stalled::held_bytes).sum();
    let grown = resident_bytes().saturating_sub(before);
    let bodies = server.hub.stats().body_bytes;
    assert!(bodies <= 34 << 20, "{bodies} bytes of events");
    assert!(held <= 40 << 20, "{held} bytes are held");
    assert!(grown <= 110 << 20, "resident memory has grown by {grown} bytes; {held} are held");
    assert_eq!(server.send_all((0..STREAMS).step_by(50)), [PUTS; 6]);
}

#[test]
fn large_responses_that_streams_hold_are_bounded_and_clients_have_turns() {
    clients_have_turns(|_| 1);
}

#[test]
fn connections_of_one_caller_that_wait_hold_up_no_other_caller() {
    clients_have_turns(|number| OF_ONE_CALLER + number);
}

fn clients_have_turns(owner: impl Fn(u64) -> u64) {
    const EVENT: usize = 1 << 20;
    const PUTS: usize = 12;
    const STREAMS: usize = 20;
    let _alone = alone();
    let (_writer, store) = store(PUTS, EVENT);
    let limits =
        WatchLimits { handed_bytes_max: 8 * EVENT, bodies_bytes: 4 * EVENT, ..WatchLimits::default() };
    let mut server = Server::new(store, limits);
    // Different positions, so that few share an event.
    (0..STREAMS).for_each(|n| server.open(owner(n as u64), 2 + (n % PUTS) as i64));
    let has_large = |stalled: &Stalled| stalled.held_bytes() > EVENT;
    let served = server.streams.iter().filter(|stalled| has_large(stalled)).count();
    // Bodies that are also in the hub count there.
    assert!((2..=8).contains(&served), "{served} of the first caller, which leaves some to others");
    assert!(server.hub.stats().handed_bytes <= limits.handed_bytes_max);
    assert!(server.hub.waits_for_room(), "streams of the first client wait");
    server.open(2, 2);
    assert!(has_large(&server.streams[STREAMS]), "another client has its response");
    assert_eq!(server.send_all([STREAMS]), [PUTS], "and all that follow");
    assert!(server.hub.waits_for_room(), "streams of the first client wait");
    // Streams that send their parcels unblock the rest, and all get every event.
    let wanted: Vec<usize> = (0..STREAMS).map(|n| PUTS - n % PUTS).collect();
    assert_eq!(server.send_all(0..STREAMS), wanted, "{:?}", server.hub.stats());
    assert!(!server.hub.waits_for_room());
    assert_eq!(server.hub.stats().handed_bytes, 0);
}

#[test]
fn a_small_response_does_not_wait_for_large_ones() {
    let _alone = alone();
    let (mut writer, store) = store(4, 1 << 20);
    let mut server = Server::new(store, WatchLimits { handed_bytes_max: 1 << 20, ..WatchLimits::default() });
    (0..4).for_each(|owner| server.open(owner, 2));
    assert!(server.hub.waits_for_room());
    server.open(9, 0);
    writer.begin().put(b"small", b"1", 0);
    writer.end_entry(LogPosition::new(5, 1)).unwrap();
    server.settle();
    assert_eq!(server.send_all([4]), [1]);
}

#[test]
fn clients_that_keep_coming_do_not_overtake_one_that_waits() {
    let _alone = alone();
    let (_writer, store) = store(2, 1 << 20);
    let mut server = Server::new(store, WatchLimits { handed_bytes_max: 1 << 20, ..WatchLimits::default() });
    let has_large = |stalled: &Stalled| stalled.held_bytes() > 1 << 20;
    // Connections are numbered as they are opened, so that this one has the smallest number.
    let patient = 1;
    for owner in 10..14 {
        server.open(owner, 2);
    }
    server.close(0);
    server.open(patient, 2);
    let waiting = |server: &Server| server.streams.iter().filter(|stalled| !has_large(stalled)).count();
    assert!(!has_large(server.streams.last().unwrap()), "{} wait", waiting(&server));
    let mut turns = 0;
    while let Some(holder) = server.streams.iter().position(has_large) {
        if server.streams[holder].owner == patient {
            break;
        }
        server.open(20 + turns, 2);
        server.close(holder);
        turns += 1;
        assert!(turns <= 4, "{} that came later had their turn", turns - 3);
    }
    assert_eq!(turns, 3, "those that waited before");
}

#[test]
fn smaller_responses_do_not_overtake_a_larger_one_that_waits() {
    const CLIENTS: u64 = 12;
    const PUTS: usize = 60;
    let _alone = alone();
    let (mut writer, store) = store(PUTS, 100 << 10);
    writer.begin().put(b"large", &[7; 1 << 20], 0);
    writer.end_entry(LogPosition::new(PUTS as u64 + 1, 1)).unwrap();
    let mut server = Server::new(store, WatchLimits { handed_bytes_max: 2 << 20, ..WatchLimits::default() });
    for owner in 0..CLIENTS {
        let (key, range_end) = ("k".into(), "l".into());
        let start_revision = 2 + owner as i64; // Few share an event.
        server.open_for(owner, CreateRequest { key, range_end, start_revision, ..CreateRequest::default() });
    }
    assert!(server.hub.waits_for_room());
    let key = "large".into();
    server.open_for(99, CreateRequest { key, start_revision: 2, ..CreateRequest::default() });
    let sent = server.sent_until_last_has_its_response();
    assert!(sent <= 2 * CLIENTS as usize, "only after {sent} others");
    server.send_all(0..=CLIENTS as usize);
    assert_eq!((server.hub.waits_for_room(), server.hub.stats().handed_bytes), (false, 0));
}

#[test]
fn parts_of_revisions_and_large_responses_do_not_overtake_each_other() {
    const PUTS: usize = 24; // Of 16 at most, the pairs are read at once.
    const CLIENTS: u64 = 6;
    let _alone = alone();
    let (mut writer, store) = store(PUTS, 1 << 20);
    writer.begin().delete_range(&KeyRange::all(), Previous::Skip).unwrap();
    writer.end_entry(LogPosition::new(PUTS as u64 + 1, 1)).unwrap();
    let limits =
        WatchLimits { handed_bytes_max: 4 << 20, previous_bytes_max: 2 << 20, ..WatchLimits::default() };
    let deleted = |fragment| CreateRequest {
        range_end: b"\0".as_slice().into(),
        start_revision: 2 + PUTS as i64,
        prev_kv: true,
        fragment,
        ..CreateRequest::default()
    };
    let put = || CreateRequest { key: "k000003".into(), start_revision: 2, ..CreateRequest::default() };
    for fragment in [false, true] {
        let mut server = Server::new(store.clone(), limits);
        (0..CLIENTS).for_each(|owner| server.open_for(owner, deleted(fragment)));
        assert!(server.hub.waits_for_room());
        server.open_for(99, put());
        let sent = server.sent_until_last_has_its_response();
        assert!(sent <= 2 * CLIENTS as usize, "a put only after {sent} parts");
        server.send_all(0..=CLIENTS as usize);
        assert_eq!((server.hub.waits_for_room(), server.hub.stats().handed_bytes), (false, 0));
    }
}
