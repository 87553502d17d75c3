//! Streams of intact chunks that are not one checkpoint: from a faulty member, or mixed from two. They
//! must be rejected.

use bytes::Bytes;

use super::*;
use crate::backend::MemoryBackend;
use crate::block::{BlockLocation, DeadList, OpenBlock, Record, RecordBody};
use crate::checkpoint::{block_entry, item_entry};
use crate::transfer::stream::ChunkWriter;

type RawEntry = (Vec<u8>, Vec<u8>);

/// Returns the entry, as in some sender's catalogue, and the frame of a block of puts at these main
/// revisions.
fn block(mains: std::ops::Range<i64>, dead: &[i64]) -> (RawEntry, Vec<u8>) {
    let mut open = OpenBlock::default();
    for main in mains {
        let body = RecordBody::Put { create: main, version: 1, lease: 0, value: b"value" };
        let key = main.to_be_bytes();
        open.append(&Record { revision: Revision::first_of(main), key: &key, body }, 4096);
    }
    let (decoded, mut stored) = (open.sealed(), Vec::new());
    codec::store(&decoded, &mut stored);
    let location = place_of(&stored);
    let dead = DeadList::pack(&dead.iter().copied().map(Revision::first_of).collect::<Vec<_>>());
    let identity = codec::check(&stored).unwrap().identity;
    let block = Block { identity, content: BlockSource::Stored(location.clone()), dead };
    (block_entry(&block, &location), stored)
}

/// Returns the sender's location of a frame. The receiver ignores it.
fn place_of(stored: &[u8]) -> BlockLocation {
    BlockFiles::new(1 << 20, 0).append(&mut MemoryBackend::new(), stored).unwrap()
}

/// A stream under construction: parts in any order. Its marks match unless a test changes them.
#[derive(Default)]
struct TestStream {
    parts: Vec<(PartKind, RawEntry, Vec<u8>)>,
    blocks: Digest,
    items: Digest,
}

impl TestStream {
    fn item(mut self, key: &str) -> Self {
        let entry = item_entry(key.as_bytes(), b"content");
        self.items.add(crc_of(&entry.1));
        self.parts.push((PartKind::Entry, entry, Vec::new()));
        self
    }

    fn block(mut self, mains: std::ops::Range<i64>, dead: &[i64]) -> Self {
        let (entry, stored) = block(mains, dead);
        self.blocks.add(crc_of(&entry.1));
        self.parts.push((PartKind::Block, entry, stored));
        self
    }

    fn part(mut self, kind: PartKind, entry: RawEntry, stored: &[u8]) -> Self {
        self.parts.push((kind, entry, stored.to_vec()));
        self
    }

    fn marks(&self) -> Marks {
        Marks {
            applied: LogPosition::new(90, 4),
            revision: 50,
            blocks: self.blocks,
            items: self.items,
            ..Marks::EMPTY
        }
    }

    fn chunks(&self, marks: Marks) -> Vec<Bytes> {
        let mut writer = ChunkWriter::default();
        let (key, value) = marks.entry();
        writer.push(PartKind::Entry, &key, &value, &[]);
        for (kind, (key, value), stored) in &self.parts {
            writer.push(*kind, key, value, stored);
        }
        std::iter::from_fn(|| writer.cut(100)).collect()
    }

    fn received(self) -> Result<StagedStore> {
        let marks = self.marks();
        received(&self.part(PartKind::End, RawEntry::default(), &[]).chunks(marks))
    }
}

fn received(chunks: &[Bytes]) -> Result<StagedStore> {
    let backend = MemoryBackend::new().incoming();
    let mut staging = Staging::begin(Box::new(backend.clone()), &StoreOptions::default())?;
    let outcome = chunks.iter().try_for_each(|chunk| staging.add(chunk)).and_then(|()| staging.finish());
    assert_eq!(backend.staged().unwrap().is_some(), outcome.is_ok(), "complete is what was accepted");
    outcome
}

fn whole() -> TestStream {
    TestStream::default().item("a").item("b").block(2..10, &[3, 5]).block(10..30, &[]).block(44..51, &[44])
}

#[test]
fn a_stream_in_order_is_a_store() {
    let staged = whole().received().unwrap();
    assert_eq!((staged.applied().index.0, staged.revision(), staged.compact_revision()), (90, 50, -1));
    let (_, store, _) = crate::open(staged.backend, StoreOptions::default()).unwrap();
    assert_eq!((store.revision(), store.items(b"").len()), (50, 2));
    let all = store.range(&crate::KeyRange::all(), 0, &crate::RangeOptions::default()).unwrap();
    assert_eq!(all.count, 8 - 2 + 20 + 7 - 1, "dead records stay dead");
}

#[test]
fn parts_that_contradict_each_other_are_refused() {
    let (entry, stored) = block(40..44, &[]);
    let (other, _) = block(40..43, &[]);
    let item = item_entry(b"c", b"content");
    let marks = whole().marks().entry();
    let wrong_place = "a part in the wrong place";
    for (what, stream, reason) in [
        ("blocks in the wrong order", whole().block(31..35, &[]), "blocks overlap"),
        ("blocks that overlap", TestStream::default().block(2..10, &[]).block(9..12, &[]), "blocks overlap"),
        ("a block beyond the newest revision", whole().block(51..52, &[]), "blocks overlap"),
        (
            "a frame of another block",
            TestStream::default().part(PartKind::Block, other, &stored),
            "not the block",
        ),
        (
            "a frame that is cut",
            TestStream::default().part(PartKind::Block, entry.clone(), &stored[..60]),
            "checksum",
        ),
        (
            "a block without a frame",
            TestStream::default().part(PartKind::Block, entry.clone(), &[]),
            "shorter",
        ),
        ("a dead record that is not there", TestStream::default().block(2..10, &[30]), "dead record"),
        ("marks in the middle", whole().part(PartKind::Entry, marks, &[]), wrong_place),
        ("a block as a lone entry", whole().part(PartKind::Entry, entry, &[]), wrong_place),
        ("an item with a frame", whole().part(PartKind::Block, item.clone(), b"frame"), wrong_place),
        (
            "an item whose value was altered",
            whole().part(PartKind::Entry, (item.0, b"other".into()), &[]),
            "checksum",
        ),
    ] {
        let error = stream.received().err().unwrap_or_else(|| panic!("{what}: accepted"));
        assert!(matches!(error, Error::Corrupt { .. }), "{what}: {error}");
        assert!(error.to_string().contains(reason), "{what}: {error}");
    }
}

#[test]
fn a_part_too_few_or_too_many_is_noticed_by_the_digests() {
    let (entry, stored) = block(40..44, &[]);
    for (what, stream) in [
        ("an item that the marks do not count", whole().part(PartKind::Entry, item_entry(b"c", b""), &[])),
        ("a block that they do not count", TestStream::default().part(PartKind::Block, entry, &stored)),
        ("a block that is missing", {
            let mut stream = whole();
            stream.parts.pop();
            stream
        }),
        ("an item that is missing", {
            let mut stream = whole();
            stream.parts.remove(0);
            stream
        }),
    ] {
        let error = stream.received().err().unwrap_or_else(|| panic!("{what}: accepted")).to_string();
        assert!(error.contains("missing or of another checkpoint"), "{what}: {error}");
    }
}

#[test]
fn a_stream_without_its_end_or_with_more_behind_it_is_refused() {
    let stream = whole();
    let marks = stream.marks();
    assert!(received(&stream.chunks(marks)).err().unwrap().to_string().contains("the stream is cut"));
    let ended = || whole().part(PartKind::End, RawEntry::default(), &[]);
    let twice = ended().part(PartKind::End, RawEntry::default(), &[]);
    assert!(received(&twice.chunks(marks)).err().unwrap().to_string().contains("after the end"));
    let more = ended().item("late");
    assert!(received(&more.chunks(marks)).err().unwrap().to_string().contains("after the end"));
    assert!(received(&[]).err().unwrap().to_string().contains("the stream is cut"));
}

#[test]
fn a_stream_that_does_not_begin_with_marks_is_refused() {
    let mut writer = ChunkWriter::default();
    let (key, value) = item_entry(b"a", b"content");
    writer.push(PartKind::Entry, &key, &value, &[]);
    let chunks: Vec<Bytes> = std::iter::from_fn(|| writer.cut(100)).collect();
    assert!(received(&chunks).err().unwrap().to_string().contains("wrong place"));
}

#[test]
fn many_entries_are_written_as_they_come_and_not_kept() {
    let mut stream = TestStream::default();
    for number in 0..60 {
        let entry = item_entry(format!("item {number}").as_bytes(), &[7; 50_000]);
        stream.items.add(crc_of(&entry.1));
        stream.parts.push((PartKind::Entry, entry, Vec::new()));
    }
    let marks = stream.marks();
    let chunks = stream.part(PartKind::End, RawEntry::default(), &[]).chunks(marks);
    let mut staging =
        Staging::begin(Box::new(MemoryBackend::new().incoming()), &StoreOptions::default()).unwrap();
    for chunk in &chunks {
        staging.add(chunk).unwrap();
        assert!(staging.update_bytes <= UPDATE_BYTES + 100_000, "{} bytes are held", staging.update_bytes);
    }
    assert_eq!(staging.finish().unwrap().applied().index.0, 90);
}
