//! Bounded turns with very many watchers.

use crate::common;
use crate::common::{Client, Member};
use watch::{CreateRequest, Hub, WatchLimits};

const WATCHERS: usize = 10_000;
const CLIENTS: usize = 10;

fn put(member: &mut Member, times: usize) {
    for _ in 0..times {
        member.request(&[(b"k".to_vec(), b"v".to_vec())], &[]);
    }
}

/// Opens clients that share the watchers, all of the same key and start revision.
fn clients(hub: &mut Hub, start_revision: i64) -> Vec<Client> {
    let clients: Vec<Client> = (0..CLIENTS).map(|_| Client::open(hub, 1 << 20)).collect();
    for client in &clients {
        for _ in 0..WATCHERS / CLIENTS {
            let request =
                CreateRequest { key: b"k".as_slice().into(), start_revision, ..CreateRequest::default() };
            hub.create(client.stream, request);
        }
    }
    clients
}

/// Events of each watcher of a client.
fn events(client: &mut Client, hub: &mut Hub) -> Vec<usize> {
    let mut events = vec![0; WATCHERS / CLIENTS];
    for response in client.read(hub, usize::MAX) {
        events[response.watch_id as usize] += response.events.len();
    }
    events
}

/// Runs turns until the hub is idle. Returns the largest number of watchers that became live in a
/// turn.
fn most_in_a_turn(hub: &mut Hub, waiting: impl Fn(&Hub) -> usize) -> (usize, usize) {
    let (mut most, mut turns) = (0, 0);
    loop {
        let before = waiting(hub);
        let more = hub.turn().unwrap().more;
        most = most.max(before - waiting(hub));
        if before > waiting(hub) {
            turns += 1;
        }
        if !more {
            return (most, turns);
        }
    }
}

#[test]
fn watchers_of_one_future_revision_become_live_in_rounds() {
    let limits = WatchLimits::default();
    let mut member = Member::new();
    let mut hub = Hub::new(member.store.clone(), limits);
    let mut clients = clients(&mut hub, 4);
    let mut reader = Client::open(&mut hub, 1 << 20);
    let request = CreateRequest { key: b"k".as_slice().into(), ..CreateRequest::default() };
    hub.create(reader.stream, request);
    put(&mut member, 3);
    assert_eq!(hub.stats().future, WATCHERS);
    hub.turn().unwrap();
    let delivered =
        reader.read(&mut hub, usize::MAX).iter().map(|response| response.events.len()).sum::<usize>();
    assert_eq!(delivered, 2, "what comes before the revision is delivered in the first round");
    assert_eq!(hub.stats().future, WATCHERS - limits.turn_watchers);
    hub.progress(reader.stream);
    let (most, turns) = most_in_a_turn(&mut hub, |hub| hub.stats().future);
    assert_eq!((most, turns), (limits.turn_watchers, WATCHERS.div_ceil(limits.turn_watchers) - 1));
    let responses = reader.read(&mut hub, usize::MAX);
    assert_eq!(responses.iter().map(|response| response.events.len()).collect::<Vec<_>>(), [1, 0]);
    for client in &mut clients {
        assert_eq!(events(client, &mut hub), [1; WATCHERS / CLIENTS]);
    }
}

#[test]
fn watchers_that_were_created_while_the_hub_lagged_become_live_in_rounds() {
    let limits = WatchLimits::default();
    let mut member = Member::new();
    let mut hub = Hub::new(member.store.clone(), limits);
    let mut reader = Client::open(&mut hub, 1 << 20);
    let request = CreateRequest { key: b"k".as_slice().into(), ..CreateRequest::default() };
    hub.create(reader.stream, request);
    put(&mut member, 2);
    let mut clients = clients(&mut hub, 0);
    for turn in 1..=WATCHERS.div_ceil(limits.turn_watchers) {
        assert!(hub.turn().unwrap().more == (turn * limits.turn_watchers < WATCHERS), "turn {turn}");
        // Live watchers get the next event; the rest wait for it.
    }
    put(&mut member, 1);
    common::settle(&mut hub);
    assert_eq!(
        reader.read(&mut hub, usize::MAX).iter().map(|response| response.events.len()).sum::<usize>(),
        3
    );
    for client in &mut clients {
        assert_eq!(events(client, &mut hub), [1; WATCHERS / CLIENTS]);
    }
}

#[test]
fn each_watcher_of_a_slow_stream_has_its_turn() {
    const STARTS: [i64; 4] = [2, 4, 4, 50];
    let mut member = Member::new();
    let mut put = |times: usize| {
        for _ in 0..times {
            member.request(&[(b"k".to_vec(), vec![b'v'; 2000])], &[]);
        }
        member.store.clone()
    };
    let limits = WatchLimits { outbox_bytes: 4 << 10, step_bytes: 2 << 10, ..WatchLimits::default() };
    let mut hub = Hub::new(put(200), limits);
    let mut client = Client::open(&mut hub, 1 << 20);
    for start_revision in STARTS {
        let request =
            CreateRequest { key: b"k".as_slice().into(), start_revision, ..CreateRequest::default() };
        hub.create(client.stream, request);
    }
    // The client reads one response for each new event. Four are due.
    let mut events = [0; STARTS.len()];
    for _ in 0..1000 {
        put(1);
        common::settle(&mut hub);
        for response in client.read(&mut hub, 1) {
            events[response.watch_id as usize] += response.events.len();
        }
    }
    assert!(events.iter().all(|events| *events >= 20), "{events:?}");
}
