//! Block files: appends and syncs frames, and removes unused files.
//!
//!   file header │ frame │ frame │ frame │ … leftover of a crash, overwritten
//!   └ magic 8, version u32, number u64, crc u32
//!
//! * A frame is written once, at `end`, which only grows. Bytes that the catalogue refers to are never
//!   overwritten.
//! * A file without blocks in use is removed, unless it is the current file. Its number is not reused
//!   while the store is open, so (number, offset) always identifies the same block.
//! * A removed file stays open until `close_unused` finds that no reader uses it: closing frees its
//!   space, which takes tens of milliseconds for 64 MiB. Readers never do it, and it is done for one
//!   file at a time, because a slow reader or an install may leave hundreds.
//! * Frames are buffered. `sync` writes the buffer and syncs every written file.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::backend::{Backend, BlockFile};
use crate::cursor::{Cursor, stamped};
use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"mvccblks";
/// Version of the file format, including frames. Files of other versions are rejected.
const VERSION: u32 = 1;
/// Offset of the first frame.
pub(crate) const HEADER_BYTES: u64 = 24;
/// Buffer size for writes: large enough to amortize the system call, small enough for the processor's
/// cache.
const WRITE_BYTES: usize = 1 << 20;

/// Location of a stored block. Keeps the file open and readable after its removal.
#[derive(Clone)]
pub(crate) struct BlockLocation {
    /// Generation of the store. A received store numbers its files from 1 again.
    generation: u64,
    pub number: u64,
    pub offset: u64,
    pub bytes: u32,
    file: Arc<dyn BlockFile>,
}

impl BlockLocation {
    /// Returns an identifier that is unique among all locations used by this process.
    pub fn name(&self) -> (u64, u64, u64) {
        (self.generation, self.number, self.offset)
    }

    pub fn file_name(&self) -> FileName {
        (self.generation, self.number)
    }

    /// Reads the stored bytes without validation.
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

    pub fn damaged(&self, what: &'static str) -> Error {
        Error::Corrupt { file: self.file.name(), offset: self.offset, what }
    }
}

pub(crate) struct BlockFiles {
    files: BTreeMap<u64, FileUsage>,
    current: Option<u64>,
    buffer: Vec<u8>,
    unsynced: Vec<u64>,
    next_number: u64,
    file_bytes: u64,
    generation: u64,
    /// Removed files that are still open, with their sizes.
    removed: BTreeMap<FileName, (Arc<dyn BlockFile>, u64)>,
}

/// Unique identifier of a file within this process: the store's generation and the file's number.
pub(crate) type FileName = (u64, u64);

pub(crate) type RemovedFiles = BTreeMap<FileName, u64>;

struct FileUsage {
    file: Arc<dyn BlockFile>,
    /// Offset of the next frame, including buffered frames.
    end: u64,
    blocks: usize,
}

impl BlockFiles {
    /// Creates an empty set. `file_bytes` is the size at which a new file is started.
    pub fn new(file_bytes: u64, generation: u64) -> Self {
        BlockFiles {
            files: BTreeMap::new(),
            current: None,
            buffer: Vec::new(),
            unsynced: Vec::new(),
            next_number: 1,
            file_bytes,
            generation,
            removed: BTreeMap::new(),
        }
    }

    pub fn adopt(
        &mut self,
        backend: &mut dyn Backend,
        number: u64,
        offset: u64,
        bytes: u32,
    ) -> Result<BlockLocation> {
        let usage = match self.files.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let file = backend.open_file(number)?;
                check_header(&*file, number)?;
                new.insert(FileUsage { file, end: HEADER_BYTES, blocks: 0 })
            }
        };
        // Numbers only grow. Otherwise a cached block could be mistaken for another one at the same location.
        self.next_number = self.next_number.max(number.saturating_add(1));
        usage.blocks += 1;
        usage.end = usage.end.max(offset.saturating_add(u64::from(bytes)));
        Ok(BlockLocation { generation: self.generation, number, offset, bytes, file: usage.file.clone() })
    }

    /// Frees space left by a crash or a compaction: files without blocks, and the bytes after the last
    /// block of each file. The latest file becomes the current one. Requires all blocks to be adopted.
    pub fn clean(&mut self, backend: &mut dyn Backend) -> Result<()> {
        for number in backend.files()? {
            self.next_number = self.next_number.max(number.saturating_add(1));
            // No entry refers to the file. A crash happened before the update for its blocks, or after the
            // update that freed the file but before its removal.
            if !self.files.contains_key(&number) {
                backend.remove_file(number)?;
            }
        }
        for (&number, usage) in &self.files {
            let file = &*usage.file;
            if file.bytes().map_err(|source| refused("read", file, source))? > usage.end {
                file.truncate(usage.end).map_err(|source| refused("truncate", file, source))?;
                self.unsynced.push(number);
            }
        }
        self.current = self.files.keys().next_back().copied();
        Ok(())
    }

    /// Appends a stored block. It is in use immediately, and durable after `sync`.
    pub fn append(&mut self, backend: &mut dyn Backend, frame: &[u8]) -> Result<BlockLocation> {
        let number = self.file_with_room(backend, frame.len() as u64)?;
        let usage = self.files.get_mut(&number).expect("the current file is known");
        let bytes = u32::try_from(frame.len()).expect("a block is far below 4 GiB");
        assert!(usage.end >= HEADER_BYTES && !frame.is_empty(), "frames follow the header");
        let (generation, offset) = (self.generation, usage.end);
        let location = BlockLocation { generation, number, offset, bytes, file: usage.file.clone() };
        usage.end += frame.len() as u64;
        usage.blocks += 1;
        // Buffered: a checkpoint of 130 blocks takes eight system calls.
        self.buffer.extend_from_slice(frame);
        if self.buffer.len() >= WRITE_BYTES {
            self.write_buffer()?;
        }
        Ok(location)
    }

    pub fn sync(&mut self) -> Result<()> {
        self.write_buffer()?;
        assert!(self.buffer.is_empty(), "a sync writes the whole buffer");
        for number in self.unsynced.drain(..) {
            // A file that was emptied and removed in the meantime need not be synced.
            let Some(usage) = self.files.get(&number) else { continue };
            if !base::mutant("unsynced-blocks") {
                usage.file.sync().map_err(|source| refused("sync", &*usage.file, source))?;
            }
        }
        Ok(())
    }

    /// Releases a block that neither memory nor the durable catalogue refers to.
    pub fn release(&mut self, location: &BlockLocation) {
        let usage = self.files.get_mut(&location.number).expect("a block in use keeps its file");
        usage.blocks = usage.blocks.checked_sub(1).expect("every block is released once");
    }

    pub fn remove_unused(&mut self, backend: &mut dyn Backend) -> Result<()> {
        let is_unused = |(number, usage): (&u64, &FileUsage)| {
            (usage.blocks == 0 && Some(*number) != self.current).then_some(*number)
        };
        let unused: Vec<u64> = self.files.iter().filter_map(is_unused).collect();
        for number in unused {
            // No catalogue entry refers to the file. Readers with a location in it keep it open.
            backend.remove_file(number)?;
            let usage = self.files.remove(&number).expect("listed above");
            self.removed.insert((self.generation, number), (usage.file, usage.end));
        }
        Ok(())
    }

    pub fn replace(&mut self, older: BlockFiles) {
        self.removed = older.removed;
        let files = older.files.into_iter();
        self.removed
            .extend(files.map(|(number, usage)| ((older.generation, number), (usage.file, usage.end))));
    }

    /// Closes a removed file that no reader uses, and reports whether there is another one.
    pub fn close_unused(&mut self) -> bool {
        // If this is the only handle, no other can be created.
        let unused = |files: &Self| {
            files.removed.iter().find(|(_, (file, _))| Arc::strong_count(file) == 1).map(|(name, _)| *name)
        };
        if let Some(name) = unused(self) {
            self.removed.remove(&name);
        }
        unused(self).is_some()
    }

    pub fn held(&self) -> RemovedFiles {
        let held = self.removed.iter().filter(|(_, (file, _))| Arc::strong_count(file) > 1);
        held.map(|(name, (_, bytes))| (*name, *bytes)).collect()
    }

    pub fn removed_bytes(&self) -> u64 {
        self.removed.values().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the number of each file, and its size without the header.
    pub fn sizes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.files.iter().map(|(number, usage)| (*number, usage.end - HEADER_BYTES))
    }

    /// Stops appending to this file. If it is the current one, the next block starts another file.
    pub fn close(&mut self, number: u64) -> Result<()> {
        assert!(self.files.contains_key(&number), "a file that is not there");
        if self.current == Some(number) {
            self.write_buffer()?;
            self.current = None;
        }
        Ok(())
    }

    pub fn allocated(&self) -> u64 {
        self.files.values().map(|usage| usage.end).sum()
    }

    /// Returns the number of the file to append to, starting a new one if the current one is full.
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
        self.files.insert(number, FileUsage { file, end: HEADER_BYTES, blocks: 0 });
        self.current = Some(number);
        self.buffer.extend_from_slice(&header(number));
        Ok(number)
    }

    /// Writes the buffer. After a failed write the caller poisons the maintainer, and the next start
    /// truncates the file.
    fn write_buffer(&mut self) -> Result<()> {
        let Some(number) = self.current.filter(|_| !self.buffer.is_empty()) else { return Ok(()) };
        let FileUsage { file, end, .. } = &self.files[&number];
        let start = end - self.buffer_bytes_of(*end);
        file.write_at(&self.buffer, start).map_err(|source| refused("write", &**file, source))?;
        self.buffer.clear();
        if self.unsynced.last() != Some(&number) {
            self.unsynced.push(number);
        }
        Ok(())
    }

    fn buffer_bytes_of(&self, end: u64) -> u64 {
        let buffered = self.buffer.len() as u64;
        assert!(buffered <= end, "a buffer larger than its file");
        buffered
    }
}

/// Returns the header of block file `number`. The number detects renamed and overwritten files.
fn header(number: u64) -> Vec<u8> {
    stamped(MAGIC, VERSION, &[number])
}

/// Checks the header of block file `number`, once per start. Frames have separate checksums.
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

/// Checks the first bytes of block file `number`. The error is the reason why they are invalid.
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

fn refused(attempt: &'static str, file: &dyn BlockFile, source: std::io::Error) -> Error {
    Error::Io { attempt, path: file.name().into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryBackend;

    /// Appends `count` frames of 100 bytes to files of 300.
    fn fill(files: &mut BlockFiles, disk: &mut MemoryBackend, count: u8) -> Vec<BlockLocation> {
        (0..count).map(|number| files.append(disk, &[number; 100]).unwrap()).collect()
    }

    #[test]
    fn frames_are_cut_into_files_and_read_back() {
        let (mut disk, mut files) = (MemoryBackend::new(), BlockFiles::new(300, 0));
        let locations = fill(&mut files, &mut disk, 7);
        files.sync().unwrap();
        assert_eq!(
            locations.iter().map(|location| location.number).collect::<Vec<_>>(),
            [1, 1, 2, 2, 3, 3, 4]
        );
        for (number, location) in locations.iter().enumerate() {
            assert_eq!(location.read().unwrap(), [number as u8; 100]);
        }
        let expected: u64 =
            disk.files().unwrap().iter().map(|n| disk.open_file(*n).unwrap().bytes().unwrap()).sum();
        assert_eq!(files.allocated(), expected);
    }

    #[test]
    fn a_file_is_removed_with_its_last_block_and_stays_readable() {
        let (mut disk, mut files) = (MemoryBackend::new(), BlockFiles::new(300, 0));
        let locations = fill(&mut files, &mut disk, 6);
        files.sync().unwrap();
        files.release(&locations[0]);
        files.remove_unused(&mut disk).unwrap();
        assert_eq!(disk.files().unwrap(), [1, 2, 3], "one block of the first file is in use");
        files.release(&locations[1]);
        files.release(&locations[4]);
        files.release(&locations[5]);
        files.remove_unused(&mut disk).unwrap();
        assert_eq!(disk.files().unwrap(), [2, 3], "the current file stays, empty as it is");
        let names = |files: &BlockFiles| files.removed.keys().map(|name| name.1).collect::<Vec<_>>();
        files.close_unused();
        assert_eq!((locations[1].read().unwrap(), names(&files)), (vec![1; 100], vec![1]));
        drop(locations);
        assert_eq!(names(&files), [1], "a reader closes no file");
        files.close_unused();
        assert!(names(&files).is_empty());
    }

    #[test]
    fn removed_files_are_closed_one_after_the_other() {
        let (mut disk, mut files) = (MemoryBackend::new(), BlockFiles::new(300, 0));
        let locations = fill(&mut files, &mut disk, 9);
        files.sync().unwrap();
        locations[..8].iter().for_each(|location| files.release(location));
        files.remove_unused(&mut disk).unwrap();
        let held = locations[7].clone();
        drop(locations);
        let removed: Vec<_> =
            std::iter::from_fn(|| Some((files.close_unused(), files.removed.len()))).take(4).collect();
        assert_eq!(removed, [(true, 3), (true, 2), (false, 1), (false, 1)]);
        assert_eq!((files.held().len(), held.read().unwrap()), (1, vec![7; 100]));
    }

    #[test]
    fn leftovers_of_a_crash_are_truncated_and_overwritten() {
        let (mut disk, mut files) = (MemoryBackend::new(), BlockFiles::new(300, 0));
        let locations = fill(&mut files, &mut disk, 5);
        files.sync().unwrap();

        // The catalogue has only the first block of file 2.
        let mut reopened = BlockFiles::new(300, 0);
        for location in &locations[..3] {
            reopened.adopt(&mut disk, location.number, location.offset, location.bytes).unwrap();
        }
        reopened.clean(&mut disk).unwrap();
        assert_eq!(disk.files().unwrap(), [1, 2]);
        assert_eq!(disk.open_file(2).unwrap().bytes().unwrap(), HEADER_BYTES + 100);
        let location = reopened.append(&mut disk, &[9; 100]).unwrap();
        assert_eq!((location.number, location.offset), (2, HEADER_BYTES + 100));
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
