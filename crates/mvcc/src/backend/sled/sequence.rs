//! Sequence number of the catalogue's latest durable update, in a file outside of sled.
//!
//!   offset 0      slot of even numbers   "mvccwitn" │ version u32 │ number u64 │ CRC-32C of the bytes before
//!   offset 4096   slot of odd numbers    the same
//!
//!   update n:  catalogue with n inside, synced ─▶ n into its slot, synced ─▶ the update is done
//!
//! sled mistakes corruption at the end of its log for a torn write, and opens without the last updates.
//! If the number in the catalogue is below the one in this file, the catalogue has lost a synced
//! update.
//!
//! * The file is never ahead of the catalogue, and at most one update older after a crash.
//! * The two slots are a page apart. A torn write can corrupt only the slot being written.
//! * With one corrupt slot the number is older, never newer. Two corrupt slots are an error.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::backend::directories::{refused, write_synced};
use crate::cursor::{read_stamped, stamped};
use crate::error::{Error, Result};

/// Name of the file, and its temporary name during creation.
pub(crate) const SEQUENCE_FILE: &str = "witness";
const TEMPORARY: &str = "witness.tmp";

const MAGIC: &[u8; 8] = b"mvccwitn";
const VERSION: u32 = 1;
const SLOT_BYTES: usize = 24;
/// Distance of the slots, more than a disk writes atomically.
const SLOT_SPACING: usize = 4096;
const FILE_BYTES: usize = SLOT_SPACING + SLOT_BYTES;

#[derive(Debug)]
pub(super) struct SequenceFile {
    file: File,
    path: PathBuf,
    /// Latest update known to be durable.
    number: u64,
}

impl SequenceFile {
    /// Opens the file in `dir`; `None` if it does not exist.
    ///
    /// Errors: `Corrupt` if both slots are corrupt.
    pub fn open(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(SEQUENCE_FILE);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(refused("open", &path))?,
        };
        let bytes = fs::read(&path).map_err(refused("read", &path))?;
        let slots = [0, SLOT_SPACING].into_iter().filter_map(|at| {
            let [number] = read_stamped(MAGIC, VERSION, bytes.get(at..at + SLOT_BYTES)?)?;
            Some(number)
        });
        let what = "the sequence number of the catalogue is damaged";
        let damaged = || Error::Corrupt { file: path.display().to_string(), offset: 0, what };
        let number = slots.max().ok_or_else(damaged)?;
        Ok(Some(SequenceFile { file, path, number }))
    }

    /// Creates the file in `dir` for a catalogue with `number` updates. Complete and synced before it gets
    /// its name.
    pub fn create(dir: &Path, number: u64) -> Result<Self> {
        let mut bytes = vec![0; FILE_BYTES];
        bytes[..SLOT_BYTES].copy_from_slice(&slot(number));
        bytes[SLOT_SPACING..].copy_from_slice(&slot(number));
        let file = write_synced(dir, SEQUENCE_FILE, TEMPORARY, &bytes)?;
        Ok(SequenceFile { file, path: dir.join(SEQUENCE_FILE), number })
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Records that update `number` of the catalogue is synced. Durable on return.
    pub fn advance(&mut self, number: u64) -> Result<()> {
        assert!(number > self.number, "updates are numbered upwards");
        let offset = if number.is_multiple_of(2) { 0 } else { SLOT_SPACING as u64 };
        let written = self.file.write_all_at(&slot(number), offset).and_then(|()| self.file.sync_data());
        written.map_err(refused("write", &self.path))?;
        self.number = number;
        Ok(())
    }
}

fn slot(number: u64) -> Vec<u8> {
    stamped(MAGIC, VERSION, &[number])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dir: &Path) -> Result<Option<u64>> {
        Ok(SequenceFile::open(dir)?.map(|sequence| sequence.number()))
    }

    #[test]
    fn the_newest_number_is_read_back_and_a_damaged_slot_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let mut sequence = SequenceFile::create(dir.path(), 7).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(7));
        for number in 8..12 {
            sequence.advance(number).unwrap();
            assert_eq!(read(dir.path()).unwrap(), Some(number));
        }
        let path = dir.path().join(SEQUENCE_FILE);
        let intact = fs::read(&path).unwrap();
        assert_eq!(intact.len(), FILE_BYTES);
        for (at, expected) in [(0, 11), (SLOT_BYTES - 1, 11), (SLOT_SPACING, 10), (FILE_BYTES - 1, 10)] {
            let mut damaged = intact.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(read(dir.path()).unwrap(), Some(expected), "byte {at}");
        }
        for cut in [0, 5, SLOT_BYTES - 1] {
            fs::write(&path, &intact[..cut]).unwrap();
            let error = read(dir.path()).unwrap_err().to_string();
            assert!(error.contains("witness"), "{error}");
        }
    }

    #[test]
    fn the_bytes_of_a_slot_never_change() {
        let expected = *b"mvccwitn\x01\0\0\0\x2a\0\0\0\0\0\0\0";
        assert_eq!(slot(42)[..20], expected);
        assert_eq!(slot(42)[20..], crc32c::crc32c(&expected).to_le_bytes());
    }
}
