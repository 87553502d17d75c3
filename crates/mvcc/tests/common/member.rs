//! Members of a cluster reduced to their stores: their contents, and transfers between them.

use bytes::Bytes;
use mvcc::{
    CompactProgress, Error, Export, LogPosition, Maintainer, MemoryBackend, StagedStore, Staging, Store,
    Writer,
};

use super::location::Location;
use super::{Oracle, range, tiny_options};

pub struct Member {
    pub writer: Writer,
    pub store: Store,
    pub maintainer: Maintainer,
    pub oracle: Oracle,
}

impl Location {
    pub fn open(&self) -> Member {
        let (writer, store, maintainer) = mvcc::open(self.backend(), tiny_options()).unwrap();
        Member { writer, store, maintainer, oracle: Oracle::default() }
    }
}

impl Member {
    /// Writes an entry: a put, sometimes a delete and an item.
    fn entry(&mut self, number: u64) {
        let (key, value) = (format!("k{:02}", number * 7 % 23), format!("{number}-").repeat(12));
        self.oracle.request(|request| request.put(&key, &value, 0));
        self.writer.begin().put(key.as_bytes(), value.as_bytes(), 0);
        if number.is_multiple_of(5) {
            let doomed = range(&format!("k{:02}", number % 23), "");
            self.oracle.request(|request| drop(request.delete(&doomed)));
            self.writer.begin().delete_range(&doomed, mvcc::Previous::Skip).unwrap();
        }
        if number.is_multiple_of(9) {
            let item = format!("item/{}", number % 4);
            self.oracle.items.insert(item.clone().into(), value.clone().into());
            self.writer.set_item(item.as_bytes(), Some(value.as_bytes()));
        }
        self.oracle.applied = LogPosition::new(number, 1);
        self.writer.end_entry(self.oracle.applied).unwrap();
    }

    pub fn entries(&mut self, numbers: std::ops::RangeInclusive<u64>) {
        numbers.for_each(|number| self.entry(number));
    }

    pub fn compact(&mut self, back: i64) {
        self.oracle.compact_revision = self.oracle.revision() - back;
        self.writer.compact(self.oracle.compact_revision).unwrap();
        self.oracle.applied.index += 1;
        self.writer.end_entry(self.oracle.applied).unwrap();
    }

    pub fn settle(&mut self) {
        self.maintainer.persist().unwrap();
        while self.maintainer.compact_step(7).unwrap() == CompactProgress::More {}
    }

    pub fn check(&self) {
        self.oracle.check_all(&self.store);
    }
}

/// Creates a member with some history, part of it compacted, and all of it durable.
pub fn leader() -> Member {
    let mut leader = Location::Memory(MemoryBackend::new()).open();
    leader.entries(1..=60);
    leader.compact(20);
    leader.settle();
    leader.entries(100..=140);
    leader.maintainer.persist().unwrap();
    leader
}

pub fn chunks(mut export: Export, bytes_max: usize) -> Vec<Bytes> {
    std::iter::from_fn(|| export.next(bytes_max).unwrap()).collect()
}

pub fn receive(home: &Location, chunks: &[Bytes]) -> Result<StagedStore, Error> {
    let mut staging = Staging::begin(home.incoming(), &tiny_options())?;
    for chunk in chunks {
        staging.add(chunk)?;
    }
    staging.finish()
}
