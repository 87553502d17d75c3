//! A witness of what the catalogue has durably taken: the number of its newest update, in a file that sled knows nothing of.
//!
//!   offset 0      slot of even numbers   "mvccwitn" │ version u32 │ number u64 │ CRC-32C of the bytes before
//!   offset 4096   slot of odd numbers    the same
//!
//!   update n:  catalogue with n inside, synced ─▶ n into its slot, synced ─▶ the update is done
//!
//! sled takes damage at the end of its log for a write that a crash has torn, and opens without it. Here the end has a
//! witness: a catalogue behind it has lost something that was synced.
//!
//! * The witness is never ahead of the catalogue, and after a crash at most one update behind.
//! * Two slots, a page apart: a torn write hits the one that is being written, and the other still holds.
//! * One damaged slot makes the witness older, never newer. Two are damage.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::BufMut;

use super::directories::{refused, sync_dir};
use crate::error::{Error, Result};
use crate::record::Cursor;

/// The name of the witness inside a store, and while it is made.
pub(crate) const WITNESS: &str = "witness";
const HALF: &str = "witness.tmp";

const MAGIC: &[u8; 8] = b"mvccwitn";
const VERSION: u32 = 1;
/// Magic, version, number, checksum.
const SLOT_BYTES: usize = 24;
/// Further apart than what a disk writes at once.
const SLOT_SPACING: usize = 4096;
const FILE_BYTES: usize = SLOT_SPACING + SLOT_BYTES;

/// The witness of one store.
#[derive(Debug)]
pub(crate) struct Witness {
    file: File,
    path: PathBuf,
    /// The newest update that is known to have been durable.
    number: u64,
}

impl Witness {
    /// The witness in `dir`; `None` if there is none.
    ///
    /// Errors: `Corrupt` if neither of its slots is as written.
    pub fn open(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(WITNESS);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(refused("open", &path))?,
        };
        let bytes = fs::read(&path).map_err(refused("read", &path))?;
        let slots = [0, SLOT_SPACING].into_iter().filter_map(|at| read_slot(bytes.get(at..at + SLOT_BYTES)?));
        let what = "the witness of the catalogue is not what was written";
        let damaged = || Error::Corrupt { file: path.display().to_string(), offset: 0, what };
        let number = slots.max().ok_or_else(damaged)?;
        Ok(Some(Witness { file, path, number }))
    }

    /// Makes one in `dir` for a catalogue that has taken `number` updates. It appears under its name whole and synced.
    pub fn found(dir: &Path, number: u64) -> Result<Self> {
        let (path, half) = (dir.join(WITNESS), dir.join(HALF));
        let mut bytes = vec![0; FILE_BYTES];
        bytes[..SLOT_BYTES].copy_from_slice(&slot(number));
        bytes[SLOT_SPACING..].copy_from_slice(&slot(number));
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).clone();
        let mut file = options.open(&half).map_err(refused("create", &half))?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(refused("write", &half))?;
        fs::rename(&half, &path).map_err(refused("rename", &half))?;
        sync_dir(dir)?;
        Ok(Witness { file, path, number })
    }

    /// The newest update that is known to have been durable.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Update `number` is in the catalogue, and synced. Durable on return.
    pub fn saw(&mut self, number: u64) -> Result<()> {
        assert!(number > self.number, "updates are numbered upwards");
        let offset = if number.is_multiple_of(2) { 0 } else { SLOT_SPACING as u64 };
        let written = self.file.write_all_at(&slot(number), offset).and_then(|()| self.file.sync_data());
        written.map_err(refused("write", &self.path))?;
        self.number = number;
        Ok(())
    }
}

fn slot(number: u64) -> [u8; SLOT_BYTES] {
    let mut bytes = Vec::with_capacity(SLOT_BYTES);
    bytes.put_slice(MAGIC);
    bytes.put_u32_le(VERSION);
    bytes.put_u64_le(number);
    bytes.put_u32_le(crc32c::crc32c(&bytes));
    bytes.try_into().expect("a slot's size is part of the format")
}

/// A slot's number; `None` if a single bit of it is not as written.
fn read_slot(bytes: &[u8]) -> Option<u64> {
    let mut cursor = Cursor::new(bytes);
    let is_ours = cursor.take(MAGIC.len())? == MAGIC && cursor.u32_le()? == VERSION;
    let number = cursor.u64_le()?;
    let is_intact = cursor.u32_le()? == crc32c::crc32c(&bytes[..SLOT_BYTES - 4]);
    (is_ours && is_intact).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dir: &Path) -> Result<Option<u64>> {
        Ok(Witness::open(dir)?.map(|witness| witness.number()))
    }

    #[test]
    fn the_newest_number_is_read_back_and_a_damaged_slot_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let mut witness = Witness::found(dir.path(), 7).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(7));
        for number in 8..12 {
            witness.saw(number).unwrap();
            assert_eq!(read(dir.path()).unwrap(), Some(number));
        }
        let path = dir.path().join(WITNESS);
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
