use base::Term;
use mvcc::{LogPosition, MemoryBackend, StoreOptions};

use super::*;
use crate::lease::Leases;

/// A machine's leases and their store.
struct JournalFixture {
    writer: Writer,
    leases: Leases,
}

impl JournalFixture {
    fn new() -> Self {
        let (mut writer, _, _) = mvcc::open(Box::new(MemoryBackend::new()), StoreOptions::default()).unwrap();
        let leases = Leases::load(&mut writer).unwrap();
        JournalFixture { writer, leases }
    }

    fn segments(&self) -> usize {
        self.writer.store().items(PREFIX).len()
    }

    /// Asserts that a restart would load the current state.
    fn check(&self) {
        let (journal, leases, clock) = LeaseJournal::load(self.writer.store()).unwrap();
        let own = self.leases.table().scan(None, usize::MAX);
        assert_eq!(leases.into_iter().collect::<Vec<_>>(), own);
        assert_eq!(clock, self.leases.table().clock());
        let of = |journal: &LeaseJournal| (journal.closed.clone(), journal.open.clone(), journal.entries);
        assert_eq!(of(&journal), of(&self.leases.journal), "a restart changes nothing");
        assert_eq!(self.leases.journal.to_clean, 0);
    }
}

fn renew(now: i64, ids: Vec<i64>) -> crate::command::LeaseRenew {
    crate::command::LeaseRenew { term: 1, now, ids, granted: None }
}

#[test]
fn superseded_entries_are_cleaned_and_each_lease_stays_as_it_is() {
    let mut subject = JournalFixture::new();
    let JournalFixture { writer, leases } = &mut subject;
    for id in 1..=3000 {
        leases.grant(writer, LogIndex(1), id, 60 + id % 7).unwrap();
    }
    for round in 0..40 {
        let ids = (1..=3000).filter(|id| id % 3 == round % 3).collect();
        leases.renew(writer, Term(1), &renew(1000 * round, ids)).unwrap();
        leases.remove(writer, &[round * 70 + 1, round * 70 + 2]);
    }
    subject.check();
    let entries = subject.leases.journal.entries;
    let live = subject.leases.table().len();
    assert_eq!(live, 3000 - 80);
    assert!(entries <= 2 * live + ENTRIES_SPARE + 500, "{entries} entries of {live} leases");
    assert!(subject.segments() <= 50, "{} segments", subject.segments());
}

#[test]
fn a_revoked_lease_does_not_come_back_from_an_older_entry() {
    let mut subject = JournalFixture::new();
    let JournalFixture { writer, leases } = &mut subject;
    for id in 1..=2000 {
        leases.grant(writer, LogIndex(1), id, 60).unwrap();
        leases.renew(writer, Term(1), &renew(id, vec![id])).unwrap();
    }
    for id in 1..=2000 {
        leases.remove(writer, &[id]);
    }
    subject.check();
    assert!(subject.leases.table().is_empty() && subject.segments() <= 8, "{}", subject.segments());
}

#[test]
fn damaged_segments_are_refused() {
    for (name, value) in [
        (&b"lease/\0\0\0\0\0\0\0\0"[..], &b"short"[..]),
        (b"lease/\0\0\0\0\0\0\0\0", b"12345678\x3c"),
        (b"lease/\0\0\0\0\0\0\0\0", b"12345678\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"),
        (b"lease/x", b"12345678\x3c\x00"),
        (b"lease-clock", b"7"),
    ] {
        let mut subject = JournalFixture::new();
        subject.writer.set_item(name, Some(value));
        assert!(
            matches!(Leases::load(&mut subject.writer), Err(ApplyError::Item { .. })),
            "{name:?} {value:?}"
        );
    }
}

#[test]
fn leases_count_as_memory() {
    let mut subject = JournalFixture::new();
    let before = subject.writer.store().size().memory;
    let JournalFixture { writer, leases } = &mut subject;
    for id in 1..=10_000 {
        leases.grant(writer, LogIndex(1), id, 3600).unwrap();
    }
    writer.end_entry(LogPosition::new(1, 1)).unwrap();
    let each = (subject.writer.store().size().memory - before) / 10_000;
    assert!((60..100).contains(&each), "{each} bytes for each lease");
}

#[test]
fn leases_of_another_store_become_segments() {
    for count in [0, 1, 150, 5000] {
        let leases = (0..count).map(|number| (number * 7 + 1, number + 1));
        let items: Vec<_> = items(leases.clone()).map(|(key, value)| (key.into(), value.into())).collect();
        assert!(items.is_sorted() && items.iter().all(|(_, value): &(Bytes, Bytes)| value.len() < 4100));
        let wanted: Vec<_> =
            leases.map(|(id, ttl)| (id, Lease { ttl, deadline: None, granted: LogIndex::ZERO })).collect();
        assert_eq!(list(items).unwrap(), wanted);
    }
}
