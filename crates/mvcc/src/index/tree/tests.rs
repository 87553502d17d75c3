use std::ops::ControlFlow;

use bytes::Bytes;

use super::*;
use crate::index::history::Visible;
use crate::index::walk::IndexWalk;
use crate::types::Revision;

fn key(number: usize) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

/// Inserts keys in an order that is neither ascending nor random: every `step`-th, wrapping around.
fn index(keys: usize, step: usize) -> Index {
    let mut index = Index::new();
    for number in 0..keys {
        index.put(&key(number * step % keys), Revision::first_of(number as i64 + 2), false);
    }
    index
}

fn range(from: usize, to: usize) -> KeyRange {
    KeyRange::new(Bytes::from(key(from)), Bytes::from(key(to)))
}

fn delete(index: &mut Index, number: usize, main: i64) {
    let one = KeyRange::one(Bytes::from(key(number)));
    let mut deleted = 0;
    let walk = index.delete_live(&one, Revision::first_of(main), &mut 1000, |_, _| {
        deleted += 1;
        true
    });
    assert_eq!((walk, deleted), (IndexWalk::Done, 1));
}

fn live_keys(index: &Index, range: &KeyRange) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let walk = index.visit_at::<()>(range, i64::MAX, &mut usize::MAX.clone(), |key, _| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    });
    assert_eq!(walk, IndexWalk::Done);
    keys
}

/// Checks the invariants: leaves ascend, fence keys are lower bounds, and the counts are right.
fn check(index: &Index) {
    let (mut last, mut stats): (Option<Vec<u8>>, _) = (None, IndexStats::default());
    assert!(index.leaves.contains_key(&b""[..]), "the first leaf never goes");
    for (fence, leaf) in &index.leaves {
        assert!(leaf.is_lone() || fence.len() <= LONE_KEY_BYTES, "a long name");
        assert!(last.as_deref() < Some(fence) || fence.is_empty(), "a name that is no lower bound");
        for position in 0..leaf.len() {
            let key = leaf.key(fence, position);
            assert!(key >= fence.as_ref() && last.as_deref() < Some(key));
            last = Some(key.to_vec());
            let history = leaf.history(position);
            stats.add_key(key.len(), history);
            stats.records += history.records() as u64 - 1;
        }
        let histories = || (0..leaf.len()).map(|position| leaf.history(position));
        assert_eq!(leaf.live(), histories().filter(|history| history.is_live()).count());
        assert_eq!(leaf.has_history(), histories().any(|history| history.is_many()));
    }
    assert_eq!(index.stats, stats, "what was counted is what is there");
}

#[test]
fn every_key_is_found_in_any_order_of_arrival() {
    for step in [1, 7, 1999] {
        let index = index(2000, step);
        check(&index);
        for number in 0..2000 {
            assert!(index.get(&key(number)).is_some(), "step {step}, key {number}");
        }
        assert!(index.get(b"absent").is_none() && index.get(b"").is_none());
        assert_eq!(live_keys(&index, &KeyRange::all()), (0..2000).map(key).collect::<Vec<_>>());
    }
}

#[test]
fn keys_that_arrive_in_order_fill_their_leaves() {
    assert_eq!(index(2560, 1).leaves.len(), 10);
}

#[test]
fn sorted_changes_are_restored_into_an_empty_index_and_between_other_keys() {
    let mut index = Index::new();
    for (begin, step, version) in [(1, 3, 1), (0, 1, 2), (0, 7, 3)] {
        let keys: Vec<_> = (begin..3000).step_by(step).map(key).collect();
        let put = |main| Visible { revision: Revision::first_of(main), create: 2, version: 1 };
        let follow = |history: &mut KeyHistory, main| {
            let newest = history.newest().expect("nothing was deleted");
            let put = Visible { create: 2, version: newest.version + 1, ..put(main) };
            history.push_put(put);
            Ok::<_, ()>(())
        };
        let changes = keys.iter().map(|key| (key.as_slice(), 10 * version));
        index.restore(changes, |main| KeyHistory::with_put(put(main)), follow).unwrap();
        check(&index);
    }
    for (number, version) in [(0, 2), (1, 2), (2, 1), (7, 3), (14, 2), (2999, 1)] {
        let newest = index.get(&key(number)).unwrap().newest().unwrap();
        assert_eq!(newest.version, version, "{number}");
    }
    assert_eq!(index.count_live(&KeyRange::all()), 3000);
}

#[test]
fn counting_by_leaves_equals_counting_by_keys() {
    let mut index = index(1500, 7);
    for number in (0..1500).step_by(3) {
        delete(&mut index, number, 5000 + number as i64);
    }
    check(&index);
    for (from, to) in [(0, 1500), (1, 2), (255, 257), (100, 1400), (700, 700), (900, 100), (1499, 9999)] {
        let range = range(from, to);
        assert_eq!(index.count_live(&range), live_keys(&index, &range).len(), "{from} to {to}");
    }
    assert_eq!(index.count_live(&KeyRange::all()), 1000);
    assert_eq!(index.count_live(&KeyRange::one(Bytes::from(key(1)))), 1);
    assert_eq!(index.count_live(&KeyRange::one(Bytes::from(key(3)))), 0);
}

#[test]
fn pruning_in_steps_of_any_size_drops_the_same() {
    let build = || {
        let mut index = index(1000, 3);
        for number in 0..1000 {
            let revision = Revision::first_of(2000 + number as i64);
            if number % 50 == 0 {
                index.put(&key(number), revision, false);
            } else {
                delete(&mut index, number, revision.main);
            }
        }
        index
    };
    let mut all = SupersededRecords::default();
    assert_eq!(build().prune(b"", 4000, usize::MAX, &mut all), NextLeaf::End);
    let sorted = |superseded: SupersededRecords| {
        let mut revisions: Vec<_> = superseded.into_revisions().collect();
        revisions.sort();
        revisions
    };
    let all = sorted(all);
    for keys_max in [1, 100, 300] {
        let (mut index, mut dropped, mut from, mut steps) =
            (build(), SupersededRecords::default(), Box::from(&b""[..]), 0);
        while let NextLeaf::From(next) = index.prune(&from, 4000, keys_max, &mut dropped) {
            from = next;
            steps += 1;
            check(&index);
        }
        assert_eq!((sorted(dropped), index.count_live(&KeyRange::all())), (all.clone(), 20));
        assert!(steps > 1, "{keys_max} keys at a time took {steps} steps");
        check(&index);
    }
}

#[test]
fn leaves_that_shrink_are_merged() {
    let mut index = index(5000, 1);
    for number in (0..5000).filter(|number| number % 100 != 0) {
        delete(&mut index, number, 6000 + number as i64);
    }
    index.prune(b"", 20_000, usize::MAX, &mut SupersededRecords::default());
    check(&index);
    assert_eq!(live_keys(&index, &KeyRange::all()).len(), 50);
    assert_eq!(index.leaves.len(), 1);
    index.put(b"key00050", Revision::first_of(30_000), false);
    check(&index);
}

/// Keys of zeros that differ in their last bytes, 100 KiB and a few bytes long, in several orders of
/// insertion.
#[test]
fn a_long_key_is_in_memory_once() {
    const LONG: usize = 100 << 10;
    let long = |number: usize| {
        let mut key = vec![0; LONG];
        key[LONG - 8..].copy_from_slice(&number.to_be_bytes());
        key
    };
    for (step, restored) in [(1, false), (7, false), (99, false), (1, true)] {
        let mut index = Index::new();
        let mut keys: Vec<_> = (0..100).map(|number| long(number * step % 100)).collect();
        keys.extend((0..100).map(|number| {
            let mut key = long(number * step % 100);
            key.truncate(LONG - number % 90);
            key
        }));
        keys.extend((0..100).map(|number| vec![0; number * step % 100 + 1]));
        if restored {
            keys.sort();
            keys.dedup();
            let put = Visible { revision: Revision::first_of(2), create: 2, version: 1 };
            let changes = keys.iter().map(|key| (key.as_slice(), ()));
            index.restore(changes, |()| KeyHistory::with_put(put), |_, ()| Err(())).unwrap();
        } else {
            for (number, key) in keys.iter().enumerate() {
                index.put(key, Revision::first_of(number as i64 + 2), false);
            }
        }
        check(&index);
        let fences: usize = index.leaves.keys().map(|fence| fence.len()).sum();
        let (columns, stats) = (index.leaves.values().map(Leaf::reserved_bytes).sum::<usize>(), index.stats);
        // Without lone leaves: at least twice as much, for fence key, key, and reserved capacity.
        assert!(fences + columns < stats.key_bytes as usize * 102 / 100, "{fences} + {columns} of {stats:?}");
        for key in &keys {
            assert!(index.get(key).is_some());
        }
        for (number, key) in keys.iter().enumerate() {
            if index.get(key).unwrap().is_live() {
                index.delete(key, Revision::first_of(1000 + number as i64));
            }
        }
        check(&index);
        index.prune(b"", 5000, 40, &mut SupersededRecords::default());
        check(&index);
        index.prune(b"", 5000, usize::MAX, &mut SupersededRecords::default());
        check(&index);
        assert_eq!((index.leaves.len(), index.stats), (1, IndexStats::default()));
    }
}

#[test]
#[should_panic(expected = "only a key that is there")]
fn deleting_an_unknown_key_is_our_bug() {
    Index::new().delete(b"a", Revision::first_of(2));
}

fn put(main: i64) -> KeyHistory {
    KeyHistory::with_put(Visible { revision: Revision::first_of(main), create: main, version: 1 })
}

fn leaf(keys: &[&str]) -> Leaf {
    let mut leaf = Leaf::default();
    for (number, key) in keys.iter().enumerate() {
        let position = leaf.search(b"", key.as_bytes()).unwrap_err();
        leaf.insert(position, key.as_bytes(), put(number as i64 + 2));
    }
    leaf
}

fn keys(leaf: &Leaf) -> Vec<&str> {
    (0..leaf.len()).map(|position| std::str::from_utf8(leaf.key(b"", position)).unwrap()).collect()
}

#[test]
fn keys_are_found_in_order_however_they_were_inserted() {
    let leaf = leaf(&["m", "", "zz", "a", "mm"]);
    assert_eq!(keys(&leaf), ["", "a", "m", "mm", "zz"]);
    assert_eq!(leaf.search(b"", b"mm"), Ok(3));
    assert_eq!(leaf.search(b"", b"n"), Err(4));
    assert_eq!(leaf.history(leaf.search(b"", b"zz").unwrap()), &put(4));
    assert_eq!(leaf.live(), 5);
}

#[test]
fn splitting_and_appending_are_inverse() {
    let mut lower = leaf(&["a", "bb", "c", "dddd", "e"]);
    lower.update(3, |history| history.push_tombstone(Revision::first_of(99)));
    let upper = lower.split_off(2);
    assert_eq!((keys(&lower), lower.live()), (vec!["a", "bb"], 2));
    assert_eq!((keys(&upper), upper.live()), (vec!["c", "dddd", "e"], 2));
    lower.append(upper);
    assert_eq!((keys(&lower), lower.live()), (vec!["a", "bb", "c", "dddd", "e"], 4));
}

#[test]
fn retaining_moves_keys_and_histories_together() {
    for mask in 0u32..32 {
        let mut leaf = leaf(&["a", "bb", "", "dddd", "e"]);
        let all: Vec<_> = (0..5).map(|n| (leaf.key(b"", n).to_vec(), leaf.history(n).clone())).collect();
        let mut asked = 0;
        leaf.retain(b"", |_, _| {
            asked += 1;
            mask >> (asked - 1) & 1 == 1
        });
        let expected: Vec<_> = (0..5).filter(|n| mask >> n & 1 == 1).map(|n| all[n].clone()).collect();
        let left: Vec<_> =
            (0..leaf.len()).map(|n| (leaf.key(b"", n).to_vec(), leaf.history(n).clone())).collect();
        assert_eq!(left, expected, "mask {mask:05b}");
        assert_eq!(leaf.live(), expected.len());
    }
}

#[test]
fn long_keys_split_a_leaf_early() {
    let mut leaf = leaf(&["a"]);
    for number in 0..16 {
        assert!(!leaf.must_split(LONE_KEY_BYTES - 1), "{number}");
        let key = format!("b{number:0>width$}", width = LONE_KEY_BYTES - 2);
        leaf.insert(leaf.len(), key.as_bytes(), put(9));
    }
    assert!(leaf.must_split(LONE_KEY_BYTES));
}

#[test]
fn columns_reserve_an_eighth_at_most_and_a_split_gives_it_back() {
    let mut leaf = Leaf::default();
    for number in 0..KEYS_MAX {
        leaf.insert(number, format!("{number:020}").as_bytes(), put(2));
        let len = leaf.len();
        assert!(leaf.ends.capacity() <= len + (len / 8).max(2), "{len}");
        assert!(leaf.histories.capacity() <= len + (len / 8).max(2), "{len}");
        assert!(leaf.bytes.capacity() <= 20 * (len + (len / 8).max(2)), "{len}");
    }
    let upper = leaf.split_off(100);
    for (half, len) in [(&leaf, 100), (&upper, 156)] {
        let capacities = (half.bytes.capacity(), half.ends.capacity(), half.histories.capacity());
        assert_eq!(capacities, (20 * len, len, len));
    }
}

#[test]
fn a_lone_leaf_has_its_fence_key_as_its_key() {
    let fence = "long".as_bytes();
    let mut leaf = Leaf::lone(put(7));
    assert_eq!((leaf.len(), leaf.live(), leaf.key(fence, 0)), (1, 1, fence));
    assert_eq!(leaf.search(fence, fence), Ok(0));
    assert_eq!((leaf.search(fence, b"a"), leaf.search(fence, b"z")), (Err(0), Err(1)));
    assert_eq!((leaf.search_from_last(fence, fence), leaf.search_from_last(fence, b"z")), (Ok(0), Err(1)));
    leaf.update(0, |history| history.push_tombstone(Revision::first_of(9)));
    assert_eq!((leaf.live(), leaf.has_history()), (0, true));
    leaf.retain(fence, |key_bytes, _| key_bytes != 4);
    assert!(leaf.is_empty() && !leaf.is_lone());
}
