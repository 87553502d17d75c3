//! A disk that stops working at every single operation in turn. Whatever it had done by then, a restart finds a state
//! between two entries, not older than the last checkpoint that was reported as persisted.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::dying::{Allowance, DyingBackend};
use common::{Oracle, range, tiny_options};
use mvcc::{Applied, CompactProgress, Error, MemoryBackend};

/// What a run knew when the disk died.
struct Story {
    past: Vec<Oracle>,
    persisted: Applied,
    is_complete: bool,
}

/// Entries, checkpoints and two compactions, until the disk dies.
fn live(disk: &MemoryBackend, allowance: usize) -> Story {
    let backend = Box::new(DyingBackend::new(disk.clone(), &Allowance::of(allowance)));
    let mut oracle = Oracle::default();
    let mut story = Story { past: vec![oracle.clone()], persisted: Applied::default(), is_complete: false };
    let Ok((mut writer, _store, mut maintainer)) = mvcc::open(backend, tiny_options()) else { return story };
    for round in 1..=12u64 {
        for step in 0..6u64 {
            let (key, value) =
                (format!("key{}", (round * 5 + step) % 8), format!("{round}.{step}").repeat(20));
            oracle.request(|request| request.put(&key, &value, 0));
            writer.begin().put(key.as_bytes(), value.as_bytes(), 0);
        }
        let doomed = range("key3", "key5");
        oracle.request(|request| drop(request.delete(&doomed)));
        writer.begin().delete_range(&doomed, mvcc::Previous::Skip).unwrap();
        if round % 5 == 0 {
            oracle.compact_revision = oracle.revision() - 4;
            writer.compact(oracle.compact_revision).unwrap();
        }
        oracle.items.insert(b"round".to_vec(), vec![round as u8]);
        writer.set_item(b"round", Some(&[round as u8]));
        oracle.applied = Applied { index: round, term: 1 };
        writer.end_entry(oracle.applied).unwrap();
        story.past.push(oracle.clone());
        let Ok(persisted) = maintainer.persist() else { return dies(story, maintainer) };
        assert_eq!(persisted.applied, oracle.applied);
        story.persisted = persisted.applied;
        loop {
            match maintainer.compact_step(3) {
                Ok(CompactProgress::More | CompactProgress::Finished { .. }) => {}
                Ok(CompactProgress::Idle) => break,
                Err(_) => return dies(story, maintainer),
            }
        }
    }
    story.is_complete = true;
    story
}

fn dies(story: Story, mut maintainer: mvcc::Maintainer) -> Story {
    assert!(matches!(maintainer.persist(), Err(Error::Poisoned)), "nothing is written after a failure");
    story
}

#[test]
fn a_disk_that_dies_at_any_operation_leaves_a_whole_checkpoint() {
    for allowance in 0.. {
        let disk = MemoryBackend::new();
        let story = live(&disk, allowance);
        let (mut writer, store, mut maintainer) = mvcc::open(Box::new(disk.fork()), tiny_options()).unwrap();
        let found = store.applied();
        assert!(found >= story.persisted, "allowance {allowance}: {found:?} after {:?}", story.persisted);
        let mut expected = story.past[found.index as usize].clone();
        expected.check_all(&store);

        // And life goes on: a compaction is resumed, new entries follow.
        while maintainer.compact_step(2).unwrap() != CompactProgress::Idle {}
        expected.check_all(&store);
        expected.request(|request| request.put("next", "value", 7));
        writer.begin().put(b"next", b"value", 7);
        expected.applied = Applied { index: found.index + 1, term: 2 };
        writer.end_entry(expected.applied).unwrap();
        maintainer.persist().unwrap();
        expected.check_all(&store);
        if story.is_complete {
            assert!(allowance > 50, "a story of only {allowance} operations");
            break;
        }
    }
}
