//! Members with the same contents recount the same digests, independently of their blocks; a flipped bit
//! changes one digest.

use std::cell::Cell;

use crate::common::{range, tiny_options};
use mvcc::{
    CompactProgress, Error, Flip, LogPosition, Maintainer, MemoryBackend, Meter, Previous, RecountAnswer,
    RecountBounds, RecountSpan, Revision, Store, StoreOptions, Writer,
};

const BOUNDS: RecountBounds = RecountBounds { records: 7, raw_bytes: 500 };

struct Member {
    writer: Writer,
    store: Store,
    maintainer: Maintainer,
    backend: MemoryBackend,
    options: StoreOptions,
}

impl Member {
    fn new(block_bytes: usize) -> Member {
        let options = StoreOptions { block_bytes, cache_bytes: 1 << 20, ..tiny_options() };
        let backend = MemoryBackend::new();
        let (writer, store, maintainer) = mvcc::open(Box::new(backend.clone()), options).unwrap();
        Member { writer, store, maintainer, backend, options }
    }

    /// Writes puts, deletes, leases, and requests that change a key more than once.
    fn entry(&mut self, number: u64) {
        let key = |number: u64| format!("k{:02}", number % 23).into_bytes();
        let lease = if number.is_multiple_of(4) { number as i64 } else { 0 };
        self.writer.begin().put(&key(number * 7), format!("{number}-").repeat(9).as_bytes(), lease);
        if number.is_multiple_of(5) {
            let mut request = self.writer.begin();
            let doomed = range(&String::from_utf8(key(number)).unwrap(), "");
            request.delete_range(&doomed, Previous::Skip).unwrap();
            request.put(&key(number), b"again", 0);
            if number.is_multiple_of(10) {
                request.delete_range(&doomed, Previous::Skip).unwrap();
            }
        }
        self.end(number);
    }

    fn end(&mut self, index: u64) {
        self.writer.end_entry(LogPosition::new(index, 1)).unwrap();
    }

    fn settle(&mut self) {
        self.maintainer.persist().unwrap();
        while self.maintainer.compact_step(3).unwrap() == CompactProgress::More {}
    }

    fn reopen(&mut self) {
        self.maintainer.persist().unwrap();
        (self.writer, self.store, self.maintainer) =
            mvcc::open(Box::new(self.backend.clone()), self.options).unwrap();
    }

    /// Returns the digests of all spans of `self`, here and on the other member.
    fn compare(&self, other: &Member) -> Vec<(RecountSpan, RecountAnswer, RecountAnswer)> {
        let (mut all, mut pass) = (Vec::new(), self.store.recount_pass());
        while let Some(span) = self.store.next_span(&mut pass, BOUNDS) {
            let [here, there] = [self, other].map(|member| member.store.recount(&span, &()).unwrap());
            all.push((span, here, there));
        }
        all
    }
}

fn are_equal(one: &Member, other: &Member) -> usize {
    let all = one.compare(other);
    for (span, one, other) in &all {
        assert!(matches!(one, RecountAnswer::Digest(_)) && one == other, "{span:?}: {one:?} {other:?}");
    }
    all.len()
}

/// Creates members with blocks of different sizes and the same 300 entries, the first 140 revisions
/// compacted.
fn members() -> (Member, Member) {
    let (mut one, mut other) = (Member::new(300), Member::new(2000));
    for number in 1..=300 {
        if number == 200 {
            one.writer.compact(140).unwrap();
            other.writer.compact(140).unwrap();
        }
        one.entry(number);
        other.entry(number);
        if number.is_multiple_of(60) {
            one.settle();
        }
    }
    (one, other)
}

#[test]
fn equal_members_have_equal_digests_whatever_is_stored_and_reclaimed() {
    let (mut one, mut other) = members();
    assert!(are_equal(&one, &other) > 20, "many spans");
    assert_eq!(are_equal(&one, &other), one.compare(&one).len());
    // The other way round, after a restart, and after all space was reclaimed.
    one.settle();
    other.settle();
    are_equal(&other, &one);
    one.reopen();
    are_equal(&one, &other);
    // A member that is ahead, and has compacted less.
    let spans: Vec<_> = one.compare(&other).into_iter().map(|(span, digest, _)| (span, digest)).collect();
    (301..=330).for_each(|number| other.entry(number));
    for (span, digest) in spans {
        assert_eq!(other.store.recount(&span, &()).unwrap(), digest, "{span:?}");
    }
}

#[test]
fn a_pass_ends_while_records_come_faster_than_spans() {
    let (mut one, _) = members();
    let (mut pass, mut spans) = (one.store.recount_pass(), Vec::new());
    let newest = one.store.revision();
    while let Some(span) = one.store.next_span(&mut pass, BOUNDS) {
        spans.push(span);
        assert!(spans.len() < 1000, "{span:?}");
        let number = 300 + spans.len() as u64;
        (0..20).for_each(|more| one.entry(number * 20 + more));
    }
    assert_eq!(spans.last().map(|span| span.to.main), Some(newest));
    assert!(spans.windows(2).all(|pair| pair[0].to < pair[1].from), "{spans:?}");
}

/// For example a store that was imported into a running cluster, and will be replaced soon.
#[test]
fn a_store_of_fewer_entries_is_not_compared() {
    let (mut one, other) = members();
    let mut pass = one.store.recount_pass();
    let span = one.store.next_span(&mut pass, BOUNDS).unwrap();
    assert!(matches!(other.store.recount(&span, &()), Ok(RecountAnswer::Digest(_))));
    one.end(301);
    let mut pass = one.store.recount_pass();
    let span = one.store.next_span(&mut pass, BOUNDS).unwrap();
    assert!(matches!(other.store.recount(&span, &()), Ok(RecountAnswer::NotYet)));
}

struct Third(Cell<u32>);

impl Meter for Third {
    fn hold(&self, _pairs: u64, _bytes: u64) -> mvcc::Result<()> {
        self.0.set(self.0.get() + 1);
        if self.0.get() == 3 { Err(Error::Interrupted) } else { Ok(()) }
    }
}

#[test]
fn a_recount_of_all_blocks_ends_when_its_meter_says_so() {
    let (one, _) = members();
    let to = Revision { main: one.store.revision(), sub: i64::MAX };
    let (from, compacted) = (Revision::first_of(0), one.store.compact_revision());
    let span = RecountSpan { from, to, compacted, applied: one.store.applied().index };
    assert!(matches!(one.store.recount(&span, &()), Ok(RecountAnswer::Digest(_))));
    let meter = Third(Cell::new(0));
    assert!(matches!(one.store.recount(&span, &meter), Err(Error::Interrupted)));
    assert_eq!(meter.0.get(), 3);
}

#[test]
fn a_flipped_bit_changes_one_digest() {
    let flips = [Flip::Value, Flip::RecordVersion, Flip::Kind, Flip::Version, Flip::Lease];
    for (flip, wanted_min) in flips.into_iter().zip([23, 23, 23, 5, 5]) {
        let mut flipped = 0;
        for (number, is_stored) in (0..23).flat_map(|number| [(number, false), (number, true)]) {
            let (mut one, mut other) = members();
            if is_stored {
                other.writer.compact(other.store.revision()).unwrap();
                one.writer.compact(one.store.revision()).unwrap();
                one.end(301);
                other.end(301);
                other.settle();
            }
            if !other.store.flip(format!("k{number:02}").as_bytes(), flip) {
                continue;
            }
            flipped += 1;
            let all = one.compare(&other).into_iter();
            let differ: Vec<_> = all.filter(|(_, one, other)| one != other).map(|(_, _, it)| it).collect();
            let [differs] = differ[..] else {
                panic!("{flip:?} of key {number}, stored: {is_stored}: {differ:?}")
            };
            assert_eq!(differs == RecountAnswer::Damaged, flip == Flip::Kind, "{flip:?}: {differs:?}");
        }
        assert!(flipped >= wanted_min, "{flip:?}: {flipped}");
    }
}
