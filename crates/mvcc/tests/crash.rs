//! A disk that fails at every possible operation. A restart always finds a state between two entries,
//! not older than the last checkpoint that was reported as durable.

use crate::common::failing::{Allowance, FailingBackend};
use crate::common::{Oracle, range, tiny_options};
use mvcc::{CompactProgress, Error, LogPosition, MemoryBackend};

/// Known state at the time of the failure.
struct Run {
    past: Vec<Oracle>,
    persisted: LogPosition,
    is_complete: bool,
}

/// Runs entries, checkpoints and two compactions until the disk fails.
fn run_until_failure(disk: &MemoryBackend, allowance: usize) -> Run {
    let backend = Box::new(FailingBackend::new(disk.clone(), &Allowance::of(allowance)));
    let mut oracle = Oracle::default();
    let mut run = Run { past: vec![oracle.clone()], persisted: LogPosition::default(), is_complete: false };
    let Ok((mut writer, _store, mut maintainer)) = mvcc::open(backend, tiny_options()) else { return run };
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
        oracle.applied = LogPosition::new(round, 1);
        writer.end_entry(oracle.applied).unwrap();
        run.past.push(oracle.clone());
        let Ok(persisted) = maintainer.persist() else { return failed(run, maintainer) };
        assert_eq!(persisted.applied, oracle.applied);
        run.persisted = persisted.applied;
        loop {
            match maintainer.compact_step(3) {
                Ok(CompactProgress::More | CompactProgress::Waiting | CompactProgress::Finished { .. }) => {}
                Ok(CompactProgress::Idle) => break,
                Err(_) => return failed(run, maintainer),
            }
        }
    }
    run.is_complete = true;
    run
}

fn failed(run: Run, mut maintainer: mvcc::Maintainer) -> Run {
    assert!(matches!(maintainer.persist(), Err(Error::Poisoned)), "nothing is written after a failure");
    run
}

#[test]
fn a_disk_that_fails_at_any_operation_leaves_a_complete_checkpoint() {
    for allowance in 0.. {
        let disk = MemoryBackend::new();
        let run = run_until_failure(&disk, allowance);
        let (mut writer, store, mut maintainer) = mvcc::open(Box::new(disk.fork()), tiny_options()).unwrap();
        let found = store.applied();
        assert!(found >= run.persisted, "allowance {allowance}: {found:?} after {:?}", run.persisted);
        let mut expected = run.past[found.index.0 as usize].clone();
        expected.check_all(&store);

        // An interrupted compaction is resumed, and new entries follow.
        while maintainer.compact_step(2).unwrap() != CompactProgress::Idle {}
        expected.check_all(&store);
        expected.request(|request| request.put("next", "value", 7));
        writer.begin().put(b"next", b"value", 7);
        expected.applied = LogPosition::new(found.index.0 + 1, 2);
        writer.end_entry(expected.applied).unwrap();
        maintainer.persist().unwrap();
        expected.check_all(&store);
        if run.is_complete {
            assert!(allowance > 50, "a run of only {allowance} operations");
            break;
        }
    }
}
