//! Random operations against a naive model, in which each watcher scans all events: `common/world.rs`.
//!
//! Some streams hardly read.

use crate::world::{Entry, Operation, STREAMS, World};
use bytes::Bytes;
use proptest::prelude::*;
use watch::CreateRequest;

fn key() -> impl Strategy<Value = Bytes> {
    (0..9u8).prop_map(|key| if key == 8 { Bytes::new() } else { Bytes::from(vec![b'a' + key]) })
}

fn create() -> impl Strategy<Value = (CreateRequest, i64)> {
    let end = prop_oneof![
        3 => Just(Bytes::new()),
        1 => Just(Bytes::from_static(b"\0")),
        2 => (0..9u8).prop_map(|key| Bytes::from(vec![b'a' + key])),
    ];
    let flags = (prop::bool::weighted(0.3), any::<bool>(), prop::bool::weighted(0.15), any::<bool>());
    // Not -1, which means all watchers in a progress notification.
    let id = prop_oneof![8 => Just(0), 1 => Just(-2), 2 => 1..4i64];
    (key(), end, id, flags, prop::bool::weighted(0.15), 0..40i64).prop_map(
        |(key, range_end, id, flags, del, at)| {
            let (prev_kv, progress_notify, no_put, fragment) = flags;
            let request = CreateRequest {
                key,
                range_end,
                start_revision: 0,
                watch_id: id,
                prev_kv,
                progress_notify,
                no_put,
                no_delete: del,
                fragment,
            };
            (request, at)
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let puts = prop::collection::vec((0..8u8, 0..60usize), 0..5);
    let request = (puts, prop::collection::vec(0..8u8, 0..3)).prop_map(|(p, d)| Entry::Request(p, d));
    let stream = 0..STREAMS;
    prop_oneof![
        24 => request.prop_map(Operation::Entry),
        2 => (0..100i64).prop_map(|share| Operation::Entry(Entry::Compact(share))),
        16 => (1..6usize).prop_map(Operation::Apply),
        3 => (1..8usize).prop_map(Operation::Steps),
        1 => Just(Operation::Install),
        8 => (stream.clone(), create()).prop_map(|(stream, (request, at))| Operation::CreateAt(stream, request, at)),
        2 => (stream.clone(), -2..6i64).prop_map(|(stream, id)| Operation::Cancel(stream, id)),
        3 => stream.clone().prop_map(Operation::Progress),
        1 => Just(Operation::Periodic),
        14 => (1..4usize).prop_map(Operation::Turn),
        // The last stream hardly reads.
        8 => (0..STREAMS - 1, 1..900usize).prop_map(|(stream, bytes)| Operation::Read(stream, bytes)),
        1 => (Just(STREAMS - 1), 1..200usize).prop_map(|(stream, bytes)| Operation::Read(stream, bytes)),
        1 => stream.prop_map(Operation::Reconnect),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 3000, ..ProptestConfig::default() })]

    #[test]
    fn each_watcher_gets_its_events_once_and_in_order(
        operations in prop::collection::vec(operation(), 1..150),
    ) {
        let mut world = World::new();
        for operation in operations {
            world.run(operation);
        }
        world.finish();
    }
}

/// Creates a watch of keys, from the present or from a share of the current revision.
fn create_at(stream: usize, key: &'static str, range_end: &'static str, prev_kv: bool, at: i64) -> Operation {
    let request = CreateRequest {
        key: Bytes::from_static(key.as_bytes()),
        range_end: Bytes::from_static(range_end.as_bytes()),
        prev_kv,
        ..CreateRequest::default()
    };
    Operation::CreateAt(stream, request, at)
}

/// A stream was held back for a large response, which was then evicted. When it was granted
/// capacity, history delivered a revision in parts instead. No part was encoded while the stream
/// had its grant, which ended with the first part, so no stream got large responses any more.
#[test]
fn a_stream_whose_turn_comes_may_go_on_with_a_revision_in_parts() {
    let entry = |puts: &[(u8, usize)], deletes: &[u8]| {
        Operation::Entry(Entry::Request(puts.to_vec(), deletes.to_vec()))
    };
    let operations = [
        entry(&[(3, 45), (0, 24), (1, 49)], &[]),
        Operation::Steps(1),
        Operation::Apply(1),
        create_at(2, "b", "\0", true, 0),
        entry(&[(1, 7), (2, 59)], &[]),
        Operation::Install,
        entry(&[(2, 4)], &[]),
        create_at(0, "b", "g", true, 39),
        entry(&[(3, 11), (5, 51)], &[]),
        Operation::Apply(2),
        create_at(1, "", "\0", false, 0),
        Operation::Read(1, 1),
        Operation::Read(0, 1),
        Operation::Cancel(0, 1),
        entry(&[(2, 20)], &[1]),
        entry(&[(3, 24), (7, 43), (5, 52), (4, 0)], &[0]),
        create_at(2, "a", "", false, 13),
        create_at(2, "e", "", false, 0),
        entry(&[(1, 18), (3, 43), (7, 38)], &[]),
        create_at(0, "a", "", false, 13),
        Operation::Cancel(0, 1),
        entry(&[(3, 16), (0, 32), (5, 51)], &[7]),
        create_at(1, "a", "\0", false, 0),
        create_at(1, "a", "\0", false, 0),
    ];
    let mut world = World::new();
    operations.into_iter().for_each(|operation| world.run(operation));
    world.finish();
}
