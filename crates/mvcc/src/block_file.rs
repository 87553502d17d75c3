//! Block files: where stored blocks are appended, and when a file's space comes back.
//!
//!   file header │ frame │ frame │ frame │ … leftover of a crash, overwritten
//!   └ magic 8, version u32, number u64, crc u32
//!
//! * A frame is written once, at `end`, which only grows; nothing that the catalogue names is ever overwritten.
//! * A file is removed when no block of it is in use and it is not the one appended to. Its number is not used again
//!   while the store is open, so (number, offset) names one block for good.
//! * Frames gather in a buffer and are written together; `sync` writes the rest and syncs every file touched.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use bytes::BufMut;

use crate::backend::{Backend, BlockFile};
use crate::error::{Error, Result};
use crate::record::Cursor;

/// The first bytes of every block file: it is told from other files before anything in it is believed.
const MAGIC: &[u8; 8] = b"mvccblks";
/// Of the file's form, frames included. A file of another version is refused, not guessed at.
const VERSION: u32 = 1;
/// Where the first frame begins.
pub(crate) const HEADER_BYTES: u64 = 24;
/// Frames written per system call: large enough that the call costs nothing, small enough to stay in the cache.
const WRITE_BYTES: usize = 1 << 20;

/// Where a stored block is. Holding one keeps the file readable, even after its name is removed.
#[derive(Clone)]
pub(crate) struct Place {
    /// Which store it is a place of: numbers begin anew in a store that was received.
    generation: u64,
    pub number: u64,
    pub offset: u64,
    pub bytes: u32,
    file: Arc<dyn BlockFile>,
}

impl Place {
    /// What tells this place from every other one that this process has seen.
    pub fn name(&self) -> (u64, u64, u64) {
        (self.generation, self.number, self.offset)
    }

    /// The stored bytes, unchecked.
    pub fn read(&self) -> Result<Vec<u8>> {
        let mut stored = vec![0; self.bytes as usize];
        match self.file.read_at(&mut stored, self.offset) {
            Ok(()) => Ok(stored),
            Err(source) if source.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(self.damaged("the file is cut"))
            }
            Err(source) => Err(refused("read", &*self.file, source)),
        }
    }

    /// The error that says what is wrong with the bytes here.
    pub fn damaged(&self, what: &'static str) -> Error {
        Error::Corrupt { file: self.file.name(), offset: self.offset, what }
    }
}

/// All block files of a store, and the one that is appended to.
pub(crate) struct BlockFiles {
    files: BTreeMap<u64, Usage>,
    /// Number of the file that is appended to, if any, and the bytes for it that are not written yet.
    current: Option<u64>,
    buffer: Vec<u8>,
    /// Files written to since the last sync.
    unsynced: Vec<u64>,
    next_number: u64,
    file_bytes: u64,
    generation: u64,
}

/// A file in use. It counts its blocks instead of naming them: the directory knows where each of them is, and only the
/// last one to leave matters here.
struct Usage {
    file: Arc<dyn BlockFile>,
    /// Where the next frame goes, buffered ones included.
    end: u64,
    /// Blocks in use.
    blocks: usize,
}

impl BlockFiles {
    /// `file_bytes`: size at which a file is cut. `generation`: stores that were installed before in this process.
    pub fn new(file_bytes: u64, generation: u64) -> Self {
        BlockFiles {
            files: BTreeMap::new(),
            current: None,
            buffer: Vec::new(),
            unsynced: Vec::new(),
            next_number: 1,
            file_bytes,
            generation,
        }
    }

    /// Takes in a block that the catalogue names.
    pub fn adopt(
        &mut self,
        backend: &mut dyn Backend,
        number: u64,
        offset: u64,
        bytes: u32,
    ) -> Result<Place> {
        let usage = match self.files.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let file = backend.open_file(number)?;
                check_header(&*file, number)?;
                new.insert(Usage { file, end: HEADER_BYTES, blocks: 0 })
            }
        };
        // Numbers only grow, or a cached block could be taken for another one at the same place.
        self.next_number = self.next_number.max(number.saturating_add(1));
        usage.blocks += 1;
        usage.end = usage.end.max(offset.saturating_add(u64::from(bytes)));
        Ok(Place { generation: self.generation, number, offset, bytes, file: usage.file.clone() })
    }

    /// After all blocks were adopted: removes files that none of them is in, and cuts what a crash left behind the last
    /// block of the newest file, which is then appended to.
    pub fn clean(&mut self, backend: &mut dyn Backend) -> Result<()> {
        for number in backend.files()? {
            self.next_number = self.next_number.max(number.saturating_add(1));
            // No block of it is named: a crash left it, between the sync of its blocks and the update that was to name them, or
            // between the update that freed it and its removal.
            if !self.files.contains_key(&number) {
                backend.remove_file(number)?;
            }
        }
        if let Some((&number, usage)) = self.files.last_key_value() {
            let file = &*usage.file;
            // What lies behind is no part of the store. Cut, so that the next frame is not followed by the rest of an old one.
            file.truncate(usage.end).map_err(|source| refused("truncate", file, source))?;
            self.current = Some(number);
            self.unsynced.push(number);
        }
        Ok(())
    }

    /// Appends a stored block. It is durable after `sync`, and in use from now on.
    pub fn append(&mut self, backend: &mut dyn Backend, frame: &[u8]) -> Result<Place> {
        let number = self.file_with_room(backend, frame.len() as u64)?;
        let usage = self.files.get_mut(&number).expect("the current file is known");
        let bytes = u32::try_from(frame.len()).expect("a block is far below 4 GiB");
        assert!(usage.end >= HEADER_BYTES && !frame.is_empty(), "frames lie behind the header");
        let (generation, offset) = (self.generation, usage.end);
        let place = Place { generation, number, offset, bytes, file: usage.file.clone() };
        usage.end += frame.len() as u64;
        usage.blocks += 1;
        // Gathered, not written: a checkpoint of 130 blocks is eight system calls.
        self.buffer.extend_from_slice(frame);
        if self.buffer.len() >= WRITE_BYTES {
            self.write_buffer()?;
        }
        Ok(place)
    }

    /// Makes every appended block durable.
    pub fn sync(&mut self) -> Result<()> {
        self.write_buffer()?;
        assert!(self.buffer.is_empty(), "a sync that leaves bytes behind");
        for number in self.unsynced.drain(..) {
            // In the order in which they were filled; each is synced once, however often it was written to.
            // A file may have been emptied and removed meanwhile: then nothing of it is needed.
            let Some(usage) = self.files.get(&number) else { continue };
            if !cfg!(feature = "mutant-unsynced-blocks") {
                usage.file.sync().map_err(|source| refused("sync", &*usage.file, source))?;
            }
        }
        Ok(())
    }

    /// Says that a block is no longer in use, neither in memory nor in the durable catalogue.
    pub fn release(&mut self, place: &Place) {
        let usage = self.files.get_mut(&place.number).expect("a block in use keeps its file");
        usage.blocks = usage.blocks.checked_sub(1).expect("every block is released once");
    }

    /// Removes the files that no block in use is in.
    pub fn remove_unused(&mut self, backend: &mut dyn Backend) -> Result<()> {
        let is_unused = |(number, usage): (&u64, &Usage)| {
            (usage.blocks == 0 && Some(*number) != self.current).then_some(*number)
        };
        let unused: Vec<u64> = self.files.iter().filter_map(is_unused).collect();
        for number in unused {
            // No place of it is in the catalogue any more; those that readers hold keep the file itself.
            backend.remove_file(number)?;
            self.files.remove(&number);
        }
        Ok(())
    }

    /// Numbers of all files, and the bytes behind the header of each.
    pub fn sizes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.files.iter().map(|(number, usage)| (*number, usage.end - HEADER_BYTES))
    }

    /// Appends nothing more to this file: if it is the current one, the next block begins another.
    pub fn close(&mut self, number: u64) -> Result<()> {
        assert!(self.files.contains_key(&number), "a file that is not there");
        if self.current == Some(number) {
            self.write_buffer()?;
            self.current = None;
        }
        Ok(())
    }

    /// Bytes of all files.
    pub fn allocated(&self) -> u64 {
        self.files.values().map(|usage| usage.end).sum()
    }

    /// Number of the file to append to, cut anew if the current one is full.
    fn file_with_room(&mut self, backend: &mut dyn Backend, frame_bytes: u64) -> Result<u64> {
        if let Some(number) = self.current {
            let end = self.files[&number].end;
            if end == HEADER_BYTES || end + frame_bytes <= self.file_bytes {
                return Ok(number);
            }
        }
        self.write_buffer()?;
        let number = self.next_number;
        assert!(!self.files.contains_key(&number), "a number names one file for good");
        let file = backend.create_file(number)?;
        self.next_number += 1;
        self.files.insert(number, Usage { file, end: HEADER_BYTES, blocks: 0 });
        self.current = Some(number);
        self.buffer.extend_from_slice(&header(number));
        Ok(number)
    }

    /// Writes what has gathered, at the place that it was given when it was appended. A short or failed write is final: the
    /// caller poisons the maintainer, and the next start finds these bytes beyond the last named block.
    fn write_buffer(&mut self) -> Result<()> {
        let Some(number) = self.current.filter(|_| !self.buffer.is_empty()) else { return Ok(()) };
        let Usage { file, end, .. } = &self.files[&number];
        let start = end - self.buffer_bytes_of(*end);
        file.write_at(&self.buffer, start).map_err(|source| refused("write", &**file, source))?;
        self.buffer.clear();
        if self.unsynced.last() != Some(&number) {
            self.unsynced.push(number);
        }
        Ok(())
    }

    /// The buffer always holds the last bytes before `end`, and never more than the file.
    fn buffer_bytes_of(&self, end: u64) -> u64 {
        let buffered = self.buffer.len() as u64;
        assert!(buffered <= end, "a buffer larger than its file");
        buffered
    }
}

/// The header of block file `number`. The number is inside as well as in the name, so that a file that was renamed or
/// copied over another is noticed.
fn header(number: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES as usize);
    header.put_slice(MAGIC);
    header.put_u32_le(VERSION);
    header.put_u64_le(number);
    header.put_u32_le(crc32c::crc32c(&header));
    assert_eq!(header.len() as u64, HEADER_BYTES, "the header's size is part of the format");
    header
}

/// Whether `file` begins as block file `number` must. Done once per file and start; frames have checksums of their own.
fn check_header(file: &dyn BlockFile, number: u64) -> Result<()> {
    let mut found = vec![0; HEADER_BYTES as usize];
    let damaged = |what| Error::Corrupt { file: file.name(), offset: 0, what };
    match file.read_at(&mut found, 0) {
        Ok(()) => check_header_bytes(&found, number).map_err(damaged),
        Err(source) if source.kind() == std::io::ErrorKind::UnexpectedEof => {
            Err(damaged("the file is shorter than its header"))
        }
        Err(source) => Err(refused("read", file, source)),
    }
}

/// Whether these are the first bytes of block file `number`. The error says what is wrong with them.
pub(crate) fn check_header_bytes(found: &[u8], number: u64) -> Result<(), &'static str> {
    if found.len() < HEADER_BYTES as usize {
        return Err("the file is shorter than its header");
    }
    if found == header(number) {
        return Ok(());
    }
    let mut cursor = Cursor::new(found);
    let is_ours = cursor.take(MAGIC.len()) == Some(MAGIC.as_slice());
    let version = cursor.u32_le();
    let is_intact = crc32c::crc32c(&found[..20]).to_le_bytes() == found[20..];
    Err(match (is_intact, is_ours) {
        (false, _) => "the file header's checksum does not match",
        (true, false) => "not a block file",
        (true, true) if version != Some(VERSION) => "a version of the format that this program does not know",
        (true, true) => "a block file under the number of another",
    })
}

/// The error for an operation that the file system refused.
fn refused(attempt: &'static str, file: &dyn BlockFile, source: std::io::Error) -> Error {
    Error::Io { attempt, path: file.name().into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryBackend;

    /// Appends `count` frames of 100 bytes to files of 300.
    fn fill(files: &mut BlockFiles, disk: &mut MemoryBackend, count: u8) -> Vec<Place> {
        (0..count).map(|number| files.append(disk, &[number; 100]).unwrap()).collect()
    }

    #[test]
    fn frames_are_cut_into_files_and_read_back() {
        let (mut disk, mut files) = (MemoryBackend::new(), BlockFiles::new(300, 0));
        let places = fill(&mut files, &mut disk, 7);
        files.sync().unwrap();
        assert_eq!(places.iter().map(|place| place.number).collect::<Vec<_>>(), [1, 1, 2, 2, 3, 3, 4]);
        for (number, place) in places.iter().enumerate() {
            assert_eq!(place.read().unwrap(), [number as u8; 100]);
        }
        let expected: u64 =
            disk.files().unwrap().iter().map(|n| disk.open_file(*n).unwrap().bytes().unwrap()).sum();
        assert_eq!(files.allocated(), expected);
    }

    #[test]
    fn a_file_goes_with_its_last_block_and_its_readers_stay() {
        let (mut disk, mut files) = (MemoryBackend::new(), BlockFiles::new(300, 0));
        let places = fill(&mut files, &mut disk, 6);
        files.sync().unwrap();
        files.release(&places[0]);
        files.remove_unused(&mut disk).unwrap();
        assert_eq!(disk.files().unwrap(), [1, 2, 3], "one block of the first file is in use");
        files.release(&places[1]);
        files.release(&places[4]);
        files.release(&places[5]);
        files.remove_unused(&mut disk).unwrap();
        assert_eq!(disk.files().unwrap(), [2, 3], "the current file stays, empty as it is");
        assert_eq!(places[1].read().unwrap(), [1; 100]);
    }

    #[test]
    fn leftovers_of_a_crash_are_cut_and_overwritten() {
        let (mut disk, mut files) = (MemoryBackend::new(), BlockFiles::new(300, 0));
        let places = fill(&mut files, &mut disk, 5);
        files.sync().unwrap();

        // Only the first block of file 2 was catalogued.
        let mut reopened = BlockFiles::new(300, 0);
        for place in &places[..3] {
            reopened.adopt(&mut disk, place.number, place.offset, place.bytes).unwrap();
        }
        reopened.clean(&mut disk).unwrap();
        assert_eq!(disk.files().unwrap(), [1, 2]);
        assert_eq!(disk.open_file(2).unwrap().bytes().unwrap(), HEADER_BYTES + 100);
        let place = reopened.append(&mut disk, &[9; 100]).unwrap();
        assert_eq!((place.number, place.offset), (2, HEADER_BYTES + 100));
        assert_eq!(fill(&mut reopened, &mut disk, 1)[0].number, 4, "a number is not used twice");
    }

    #[test]
    fn a_header_that_is_not_exactly_right_is_refused() {
        let mut disk = MemoryBackend::new();
        let file = disk.create_file(1).unwrap();
        assert!(check_header(&*file, 1).is_err(), "empty");
        file.write_at(&header(1), 0).unwrap();
        assert!(check_header(&*file, 1).is_ok());
        assert!(check_header(&*file, 2).is_err(), "another file's");
        for position in 0..HEADER_BYTES {
            let mut byte = [0];
            file.read_at(&mut byte, position).unwrap();
            file.write_at(&[byte[0] ^ 4], position).unwrap();
            assert!(check_header(&*file, 1).is_err(), "byte {position}");
            file.write_at(&byte, position).unwrap();
        }
    }
}
