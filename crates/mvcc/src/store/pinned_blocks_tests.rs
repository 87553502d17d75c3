use bytes::Bytes;

use super::*;
use crate::{
    CompactProgress, Export, KeyRange, LogPosition, Maintainer, MemoryBackend, PinnedRange, Store,
    StoreOptions, Writer,
};

const KEYS: u64 = 100;
const VALUE_BYTES: usize = 1000;
/// Eight files, the limit below which holders do not lose blocks. The store is smaller.
const BYTES_MAX: u64 = 8 * (32 << 10);

struct Subject {
    writer: Writer,
    store: Store,
    maintainer: Maintainer,
    entries: u64,
}

impl Subject {
    fn new() -> Self {
        let options =
            StoreOptions { block_bytes: 2048, block_file_bytes: 32 << 10, ..StoreOptions::default() };
        let (writer, store, maintainer) = crate::open(Box::new(MemoryBackend::new()), options).unwrap();
        let mut subject = Subject { writer, store, maintainer, entries: 0 };
        subject.rewrite();
        subject
    }

    /// Puts all keys, without a checkpoint.
    fn put_all(&mut self) {
        self.put(0..KEYS);
    }

    fn put(&mut self, keys: std::ops::Range<u64>) {
        for key in keys {
            let mut state = (self.entries + 1) * KEYS + key;
            let noise = std::iter::repeat_with(|| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u8
            });
            let value: Vec<u8> = noise.take(VALUE_BYTES).collect();
            self.writer.begin().put(&key.to_be_bytes(), &value, 0);
        }
        self.entries += 1;
        self.writer.end_entry(LogPosition::new(self.entries, 1)).unwrap();
    }

    /// Puts all keys and removes the previous values.
    fn rewrite(&mut self) {
        self.rewrite_some(0..KEYS);
    }

    fn rewrite_some(&mut self, keys: std::ops::Range<u64>) {
        self.put(keys);
        self.maintainer.persist().unwrap();
        self.writer.compact(self.store.revision()).unwrap();
        self.entries += 1;
        self.writer.end_entry(LogPosition::new(self.entries, 1)).unwrap();
        while self.maintainer.compact_step(1000).unwrap() != CompactProgress::Idle {}
        while self.maintainer.close_removed_files() {}
    }

    fn pin(&self, caller: u64) -> PinnedRange {
        self.pin_some(&KeyRange::all(), caller)
    }

    fn pin_some(&self, range: &KeyRange, caller: u64) -> PinnedRange {
        self.store.pin_range(range, 0, 0, caller, &(), |kv| kv.value.len() as u32).unwrap()
    }

    fn removed_bytes(&self) -> u64 {
        self.maintainer.checkpoints.durable.files.removed_bytes()
    }
}

fn below(key: u64) -> KeyRange {
    KeyRange::new(Bytes::from_static(&[0]), Bytes::copy_from_slice(&key.to_be_bytes()))
}

fn read(range: &PinnedRange) -> Result<Vec<Bytes>> {
    let mut values = vec![Bytes::new(); range.len()];
    range.visit(0..range.len(), |number, kv| values[number] = Bytes::copy_from_slice(kv.value))?;
    Ok(values)
}

fn send(mut export: Export) -> Result<()> {
    while export.next(1000)?.is_some() {}
    Ok(())
}

#[test]
fn ranges_that_are_not_read_hold_a_bounded_space_of_removed_files() {
    let mut subject = Subject::new();
    let export = subject.maintainer.export();
    let (mut slow, mut held_most) = (Vec::new(), 0);
    for round in 0..40 {
        slow.push(subject.pin(1));
        let fast = subject.pin(2);
        let wanted = read(&fast).unwrap();
        subject.rewrite();
        assert!(read(&fast).unwrap() == wanted, "round {round}: the range of its moment");
        drop(fast);
        let held = subject.removed_bytes();
        assert!(held <= BYTES_MAX, "round {round}: {held} bytes of removed files");
        held_most = held_most.max(held);
    }
    assert!(held_most > BYTES_MAX / 2, "nothing is taken away before the bound is reached");
    let lost = slow.iter().position(|range| read(range).is_ok()).expect("the newest is within the bound");
    assert!(lost > 0 && slow[..lost].iter().all(|range| matches!(read(range), Err(Error::Released))));
    assert!(slow[lost..].iter().all(|range| read(range).is_ok()), "the oldest are lost first");
    send(export).expect("no export is lost while ranges are");
    let held = subject.store.removed_bytes();
    assert!(held > 0);
    drop(slow);
    assert_eq!(subject.removed_bytes(), held, "those who held them close none");
    while subject.maintainer.close_removed_files() {}
    assert_eq!((subject.store.removed_bytes(), subject.removed_bytes()), (0, 0));
}

#[test]
fn the_caller_that_holds_most_loses_first_although_another_began_before() {
    let mut subject = Subject::new();
    let modest = subject.pin(2);
    let wanted = read(&modest).unwrap();
    let mut greedy = Vec::new();
    for _ in 0..20 {
        subject.rewrite();
        greedy.push(subject.pin(1));
    }
    assert!(read(&modest).unwrap() == wanted && read(&greedy[0]).is_err());
}

#[test]
fn a_holder_of_blocks_that_were_only_moved_loses_none() {
    let mut subject = Subject::new();
    let unchanged = subject.pin_some(&below(50), 1);
    let wanted = read(&unchanged).unwrap();
    assert_eq!(wanted.len(), 50);
    let mut others = Vec::new();
    for _ in 0..40 {
        others.push(subject.pin(1));
        subject.rewrite_some(50..KEYS);
        assert!(subject.removed_bytes() <= BYTES_MAX);
    }
    assert!(read(&others[0]).is_err(), "the bound was reached");
    assert!(read(&unchanged).unwrap() == wanted);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the time is what it judges")]
fn choosing_among_thousands_of_holders_looks_at_each_once() {
    let mut subject = Subject::new();
    let mut held = Vec::new();
    for _ in 0..4 {
        let _pin = subject.pin(0);
        let registry = &subject.store.shared.pinned_blocks;
        let holder = registry.holders().pop().expect("the range that was pinned");
        // Each file is released with the last of its holders.
        held.extend((0..2500).map(|caller| {
            let sources = holder.sources.lock().clone().unwrap();
            registry.add(BlockOwner::Caller(caller), sources)
        }));
        drop(holder);
        subject.put_all();
        subject.maintainer.persist().unwrap();
    }
    let began = std::time::Instant::now();
    subject.rewrite();
    // It would take a minute if each choice examined all holders.
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    assert!(subject.removed_bytes() <= BYTES_MAX && held[0].get(0).is_err());
}

#[test]
fn a_record_of_the_open_block_is_counted_and_keeps_no_block() {
    let mut subject = Subject::new();
    subject.put(0..1);
    let ranges = [subject.pin(1), subject.pin(1)];
    let holders = subject.store.shared.pinned_blocks.holders();
    let records = [0, 1].map(|at| match holders[at].sources.lock().as_ref().and_then(|all| all.last()) {
        Some(RecordSource::Open { record, .. }) => record.clone(),
        _ => panic!("no record of the open block"),
    });
    assert!(records[0].as_ptr() != records[1].as_ptr(), "copies");
    let sources = 40 * holders[0].len() as u64;
    assert!(sources > 40, "blocks and a record");
    assert_eq!(ranges[0].memory_bytes(), 12 * KEYS + sources + records[0].len() as u64);
}

#[test]
fn the_oldest_of_several_exports_ends() {
    let mut subject = Subject::new();
    let mut exports = Vec::new();
    for _ in 0..20 {
        exports.push(subject.maintainer.export());
        subject.rewrite();
        assert!(subject.removed_bytes() <= BYTES_MAX);
    }
    let sent: Vec<bool> = exports.into_iter().map(|export| send(export).is_ok()).collect();
    assert!(sent[0] && !sent[19], "{sent:?}");
}

#[test]
fn a_range_holds_no_block_in_memory_that_a_checkpoint_has_stored() {
    let mut subject = Subject::new();
    subject.put_all();
    let range = subject.pin(1);
    let wanted = read(&range).unwrap();
    let holders = subject.store.shared.pinned_blocks.holders();
    let in_memory = || {
        let sources = holders[0].sources.lock();
        let blocks = sources.iter().flatten().filter_map(RecordSource::block);
        blocks.filter(|block| block.location().is_none()).count()
    };
    assert!(in_memory() > 10);
    subject.maintainer.persist().unwrap();
    assert_eq!(in_memory(), 0);
    subject.rewrite();
    assert!(read(&range).unwrap() == wanted);
}
