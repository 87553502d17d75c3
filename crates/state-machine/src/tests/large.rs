//! Large ranges: their windows, concatenated, are the encoded ordinary response.

use api::etcdserverpb::{RangeRequest, RangeResponse};
use bytes::Bytes;
use mvcc::{
    CompactProgress, KeyRange, LogPosition, Maintainer, MemoryBackend, Previous, Store, StoreOptions, Writer,
};
use proptest::prelude::*;
use prost::Message;

use super::world::refusal;
use crate::{LargeRange, range};

/// A store of small parts: some records per block, some blocks per file, one or two blocks in the cache.
struct Tiny {
    writer: Writer,
    store: Store,
    maintainer: Maintainer,
    index: u64,
}

#[derive(Clone, Debug)]
enum Act {
    Put {
        key: u16,
        bytes: usize,
        lease: i64,
    },
    Delete {
        from: u16,
        to: u16,
    },
    /// Number of revisions that stay readable.
    Compact {
        left: i64,
    },
    Persist,
    Tidy,
}

impl Tiny {
    fn new() -> Self {
        let options = StoreOptions {
            block_bytes: 256,
            block_file_bytes: 2048,
            cache_bytes: 1024,
            checkpoint_due_bytes: 1 << 20,
            checkpoint_full_bytes: 4 << 20,
            dropped_max: 1000,
            ..StoreOptions::default()
        };
        let (writer, store, maintainer) = mvcc::open(Box::new(MemoryBackend::new()), options).unwrap();
        Tiny { writer, store, maintainer, index: 0 }
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Put { key, bytes, lease } => {
                let value = vec![key as u8; bytes];
                self.writer.begin().put(&key.to_be_bytes(), &value, lease);
            }
            Act::Delete { from, to } => {
                let [from, to] = [from, to].map(|key| Bytes::copy_from_slice(&key.to_be_bytes()));
                self.writer.begin().delete_range(&KeyRange::new(from, to), Previous::Skip).unwrap();
            }
            // A lower revision is rejected and has no effect.
            Act::Compact { left } => drop(self.writer.compact(self.store.revision() - left)),
            Act::Persist => drop(self.maintainer.persist().unwrap()),
            Act::Tidy => while self.maintainer.compact_step(7).unwrap() == CompactProgress::More {},
        }
        self.index += 1;
        self.writer.end_entry(LogPosition::new(self.index, 1)).unwrap();
    }

    /// Performs all operations that could remove the records of a resolved range.
    fn shake(&mut self) {
        for key in 0..60 {
            self.act(&Act::Put { key, bytes: 90, lease: 0 });
        }
        for act in [Act::Persist, Act::Delete { from: 10, to: 50 }, Act::Compact { left: 0 }, Act::Persist] {
            self.act(&act);
        }
        for _ in 0..3 {
            self.act(&Act::Tidy);
            self.act(&Act::Persist);
        }
    }
}

/// Returns the concatenated buffers of a message. Windows are read again from `again`, as for a
/// client that stopped reading there.
fn pieces(large: &LargeRange, window_bytes: usize, again: u64) -> Vec<u8> {
    let mut message = large.before(large.header());
    let (before, mut at) = (message.len(), 0);
    while at < large.pairs_bytes() {
        let pieces = large.window(at, window_bytes).unwrap();
        assert!(pieces.iter().all(|piece| !piece.is_empty()), "a piece of nothing");
        let window: Vec<u8> = pieces.into_iter().flatten().collect();
        let end = at + window.len() as u64;
        let taken = if at < again && again < end { (again - at) as usize } else { window.len() };
        message.extend_from_slice(&window[..taken]);
        at += taken as u64;
    }
    assert_eq!((message.len() - before) as u64, large.pairs_bytes());
    message.extend_from_slice(&large.after());
    message
}

fn whole(store: &Store, request: &RangeRequest) -> Vec<u8> {
    range(store, request, &()).unwrap().encode_to_vec()
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let size = prop_oneof![4 => 0..60usize, 1 => 100..400usize];
    let lease = prop_oneof![3 => Just(0i64), 1 => Just(7i64), 1 => Just(-1i64)];
    let act = prop_oneof![
        20 => (0..60u16, size, lease).prop_map(|(key, bytes, lease)| Act::Put { key, bytes, lease }),
        2 => (0..60u16, 0..60u16).prop_map(|(from, to)| Act::Delete { from, to }),
        1 => (0..30i64).prop_map(|left| Act::Compact { left }),
        2 => Just(Act::Persist),
        1 => Just(Act::Tidy),
    ];
    prop::collection::vec(act, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_pieces_are_the_whole_whatever_happens_between_them(
        acts in acts(),
        (from, to) in prop_oneof![Just((0, u16::MAX)), (0..60u16, 0..60u16)],
        back in 0..40i64,
        limit in prop_oneof![2 => Just(0i64), 1 => Just(-3i64), 2 => 1..50i64],
        window_bytes in 1..600usize,
        again in 0..4000u64,
    ) {
        let mut tiny = Tiny::new();
        for act in &acts {
            tiny.act(act);
        }
        let newest = tiny.store.revision();
        let revision = if back == 0 { 0 } else { (newest - back).max(tiny.store.compact_revision()).max(1) };
        let request = RangeRequest {
            key: Bytes::copy_from_slice(&from.to_be_bytes()),
            range_end: Bytes::copy_from_slice(&to.to_be_bytes()),
            revision,
            limit,
            ..RangeRequest::default()
        };
        let wanted = whole(&tiny.store, &request);
        let large = LargeRange::find(&tiny.store, &request, 0, &()).unwrap();
        prop_assert_eq!(&pieces(&large, window_bytes, again), &wanted);
        tiny.shake();
        prop_assert_eq!(&pieces(&large, window_bytes, again), &wanted);
        prop_assert_eq!(pieces(&large, 1 << 20, again), wanted);
    }
}

/// All keys, in key order or scattered, most of them in stored blocks.
#[test]
fn keys_in_order_and_scattered_ones_come_out_alike() {
    for step in [1, 7919u32] {
        let mut tiny = Tiny::new();
        for number in 0..5000u32 {
            tiny.act(&Act::Put { key: (number * step % 5000) as u16, bytes: 40, lease: 0 });
        }
        tiny.act(&Act::Persist);
        let request =
            RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..RangeRequest::default() };
        let wanted = whole(&tiny.store, &request);
        let large = LargeRange::find(&tiny.store, &request, 0, &()).unwrap();
        tiny.shake();
        assert!(pieces(&large, 10_000, 12_345) == wanted, "step {step}");
        assert_eq!(RangeResponse::decode(&wanted[..]).unwrap().kvs.len(), 5000);
    }
}

#[test]
fn a_window_comes_in_pieces() {
    let mut tiny = Tiny::new();
    (0..9).for_each(|key| tiny.act(&Act::Put { key, bytes: 400_000 + usize::from(key), lease: 0 }));
    let request = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..RangeRequest::default() };
    let large = LargeRange::find(&tiny.store, &request, 0, &()).unwrap();
    let lengths: Vec<_> =
        large.window(0, 2_900_000).unwrap().iter().map(|piece| piece.len() / 1000).collect();
    assert_eq!(lengths, [800, 800, 800, 400]);
    assert!(pieces(&large, 2_900_000, 500_000) == whole(&tiny.store, &request));
}

#[test]
fn what_a_range_refuses_a_large_one_refuses() {
    let mut tiny = Tiny::new();
    (0..9).for_each(|key| tiny.act(&Act::Put { key, bytes: 1, lease: 0 }));
    tiny.act(&Act::Compact { left: 3 });
    let compacted = tiny.store.compact_revision();
    for (revision, wanted) in [
        (compacted - 1, Some(api::Error::Compacted)),
        (compacted, None),
        (tiny.store.revision() + 1, Some(api::Error::FutureRev)),
    ] {
        let request = RangeRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            revision,
            ..RangeRequest::default()
        };
        let refused = LargeRange::find(&tiny.store, &request, 0, &()).map_err(refusal).err();
        assert_eq!(refused, wanted, "revision {revision}");
    }
}

#[test]
fn only_pairs_in_full_and_in_key_order_are_served_so() {
    let plain = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..RangeRequest::default() };
    assert!(LargeRange::serves(&plain));
    assert!(LargeRange::serves(&RangeRequest { sort_order: 1, limit: 5, revision: 3, ..plain.clone() }));
    for other in [
        RangeRequest { sort_order: 2, ..plain.clone() },
        RangeRequest { sort_order: 1, sort_target: 1, ..plain.clone() },
        RangeRequest { sort_target: 4, ..plain.clone() },
        RangeRequest { keys_only: true, ..plain.clone() },
        RangeRequest { count_only: true, ..plain.clone() },
        RangeRequest { min_mod_revision: 1, ..plain.clone() },
        RangeRequest { max_create_revision: 1, ..plain.clone() },
    ] {
        assert!(!LargeRange::serves(&other), "{other:?}");
    }
}
