//! The backend in a directory.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::OWN;
use super::flush::flush;
use super::sequence::SequenceFile;
use super::value_parts::{KEY_BYTES_MAX, PART_BYTES, ValueParts};
use crate::backend::directories::{DirectorySlots, parent, refused, sync_dir, write_marker};
use crate::backend::slots::{self, Slot, SlotStorage};
use crate::backend::{Backend, BlockFile, Update};
use crate::error::{Error, Result};
use crate::types::LogPosition;

/// sled's cache, sufficient for the catalogue of some 100,000 blocks. It is not used for reads.
const CACHE_BYTES: u64 = 8 << 20;
/// Maximum size of a value including all parts. An item takes 64 KiB, a block with its dead list less.
const VALUE_BYTES_MAX: usize = 96 << 10;

/// Key of the number of catalogue updates, a little-endian u64 written with each update.
const NUMBER_KEY: [u8; 2] = [OWN, b'n'];
const FLUSH_KEY: [u8; 2] = [OWN, b'f'];
/// Time after which `flush` checks for failed writes. An update takes milliseconds.
const FLUSH_PERIOD: Duration = Duration::from_secs(1);

/// Interval at which a thread of sled empties segments and syncs the file. Durability does not depend
/// on it.
const EMPTY_SEGMENTS_INTERVAL: Duration = Duration::from_secs(10);
/// Number of attempts to acquire sled's lock: three seconds in total. Then another process is assumed
/// to hold it.
const LOCK_ATTEMPTS: usize = 300;
/// Pause between attempts. Short, because the owner is usually a thread of sled that is about to exit.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Block files, with sled for the catalogue.
pub struct SledBackend {
    catalogue: sled::Db,
    catalogue_dir: PathBuf,
    catalogue_file: File,
    sequence: SequenceFile,
    parts: ValueParts,
    blocks_dir: PathBuf,
    dir: PathBuf,
}

impl SledBackend {
    /// Opens the store in `dir`, creating it if it does not exist. The caller ensures that no other process
    /// has it open.
    ///
    /// Errors: `Refused` if a replacement was interrupted: call `finish_install` or `discard_staged` first.
    pub fn open(dir: &Path) -> Result<Self> {
        if slots::is_interrupted(&DirectorySlots::of(dir))? {
            let reason = "it was being replaced when the process stopped";
            return Err(Error::Refused { attempt: "open the store", reason });
        }
        Self::open_in(dir)
    }

    /// Empties the slot next to the store in `store`, and opens it to receive another store.
    pub fn incoming(store: &Path) -> Result<Self> {
        let directories = DirectorySlots::of(store);
        directories.remove(Slot::Incoming)?;
        directories.sync()?;
        Self::open_in(&directories.path(Slot::Incoming))
    }

    /// Opens the store in `dir` or creates an empty one. Syncs every directory that may be new, and its
    /// parent.
    fn open_in(dir: &Path) -> Result<Self> {
        let (catalogue_dir, blocks_dir) = (dir.join("catalogue"), dir.join("blocks"));
        for new in [dir, &blocks_dir] {
            create_dir(new)?;
        }
        if !catalogue_dir.try_exists().map_err(refused("look for", &catalogue_dir))? {
            create_catalogue(dir, &catalogue_dir)?;
        }
        remove_half_written_snapshots(&catalogue_dir)?;
        let catalogue = open_catalogue(&catalogue_dir)?;
        let catalogue_path = catalogue_dir.join("db");
        let catalogue_file = File::open(&catalogue_path).map_err(refused("open", &catalogue_path))?;
        for new in parent(dir).into_iter().chain([dir, &catalogue_dir, &blocks_dir]) {
            sync_dir(new)?;
        }
        let sequence = check_sequence(dir, &catalogue_dir, &catalogue, &catalogue_file)?;
        let mut backend = SledBackend {
            catalogue,
            catalogue_dir,
            catalogue_file,
            sequence,
            parts: ValueParts::default(),
            blocks_dir,
            dir: dir.to_path_buf(),
        };
        backend.split_large_values()?;
        Ok(backend)
    }

    /// Splits values that an older version wrote unsplit.
    fn split_large_values(&mut self) -> Result<()> {
        let large = self.read_all()?.1;
        if large.is_empty() {
            return Ok(());
        }
        self.update(Update { puts: large, removals: Vec::new() })
    }

    /// Returns all entries, and those with an oversized first part. Records which values have further
    /// parts.
    fn read_all(&mut self) -> Result<(Entries, Entries)> {
        let unreadable = |error| catalogue_unreadable(&self.catalogue_dir, error);
        // sled may panic on corrupt pages.
        let read = AssertUnwindSafe(|| {
            let mut entries = BTreeMap::new();
            for entry in self.catalogue.range([OWN + 1]..) {
                let (key, value) = entry.map_err(unreadable)?;
                entries.insert(key.to_vec(), value.to_vec());
            }
            let large = entries.iter().filter(|(_, value)| value.len() > PART_BYTES);
            let large: Entries = large.map(|(key, value)| (key.clone(), value.clone())).collect();
            let mut parts = ValueParts::default();
            for piece in self.catalogue.range(ValueParts::keys()) {
                let (key, piece) = piece.map_err(unreadable)?;
                let joined = parts.join(&mut entries, &key, &piece);
                joined.ok_or_else(|| catalogue_damaged(&self.catalogue_dir, STRAY_PART))?;
            }
            Ok((entries, large, parts))
        });
        let damaged = |_panic| Err(catalogue_damaged(&self.catalogue_dir, NOT_RECOGNISED));
        let (entries, large, parts) = catch_unwind(read).unwrap_or_else(damaged)?;
        self.parts = parts;
        Ok((entries.into_iter().collect(), large))
    }

    fn block_path(&self, number: u64) -> PathBuf {
        self.blocks_dir.join(format!("{number:06}.blk"))
    }

    fn open_block_file(&self, number: u64, options: &OpenOptions) -> Result<Arc<dyn BlockFile>> {
        let path = self.block_path(number);
        let file = options.open(&path).map_err(refused("open", &path))?;
        Ok(Arc::new(DiskFile { file, path }))
    }
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

impl Backend for SledBackend {
    fn catalogue(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(self.read_all()?.0)
    }

    fn update(&mut self, update: Update) -> Result<()> {
        let mut batch = sled::Batch::default();
        for key in update.removals {
            self.parts.remove(&mut batch, &key);
        }
        for (key, value) in update.puts {
            assert!(key.len() <= KEY_BYTES_MAX && key.first() > Some(&OWN), "a key of the backend's own");
            assert!(value.len() <= VALUE_BYTES_MAX, "a catalogue value without bound");
            self.parts.put(&mut batch, key, &value);
        }
        let number = self.sequence.number() + 1;
        batch.insert(&NUMBER_KEY, &number.to_le_bytes());
        self.catalogue.apply_batch(batch).map_err(catalogue_refused("write"))?;
        flush(&self.catalogue, &FLUSH_KEY, FLUSH_PERIOD).map_err(catalogue_refused("flush"))?;
        if base::mutant("sequence-before-sync") {
            return self.sequence.advance(number);
        }
        self.catalogue_file.sync_all().map_err(refused("sync", &self.catalogue_dir.join("db")))?;
        self.sequence.advance(number)
    }

    fn files(&mut self) -> Result<Vec<u64>> {
        let entries = fs::read_dir(&self.blocks_dir).map_err(refused("list", &self.blocks_dir))?;
        let mut numbers = Vec::new();
        for entry in entries {
            let name = entry.map_err(refused("list", &self.blocks_dir))?.file_name();
            let number: Option<u64> =
                name.to_str().and_then(|name| name.strip_suffix(".blk")).and_then(|name| name.parse().ok());
            numbers.extend(number);
        }
        Ok(numbers)
    }

    fn create_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>> {
        let file = self.open_block_file(
            number,
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600),
        )?;
        // Sync the directory too: a power failure may remove the name of a synced file.
        sync_dir(&self.blocks_dir)?;
        Ok(file)
    }

    fn open_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>> {
        self.open_block_file(number, OpenOptions::new().read(true).write(true))
    }

    fn remove_file(&mut self, number: u64) -> Result<()> {
        let path = self.block_path(number);
        fs::remove_file(&path).map_err(refused("remove", &path))
    }

    fn complete(&mut self, applied: LogPosition) -> Result<()> {
        // The files are already synced; make their names durable.
        sync_dir(&self.blocks_dir)?;
        sync_dir(&self.catalogue_dir)?;
        write_marker(&self.dir, &slots::marker_bytes(applied))
    }

    fn replace(&mut self, incoming: Box<dyn Backend>) -> Result<()> {
        // Close the received store's catalogue. sled opens its files by path, and the path changes.
        drop(incoming);
        slots::swap(&DirectorySlots::of(&self.dir))?;
        // The old store's catalogue is still open, though unlinked. This assignment closes it.
        *self = Self::open_in(&self.dir.clone())?;
        Ok(())
    }
}

struct DiskFile {
    file: File,
    path: PathBuf,
}

impl BlockFile for DiskFile {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

/// Creates an empty catalogue, renamed after all of its files are synced: sled does not sync its first
/// files, and cannot open partially written ones.
fn create_catalogue(dir: &Path, catalogue_dir: &Path) -> Result<()> {
    let half = dir.join("catalogue.new");
    match fs::remove_dir_all(&half) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(refused("remove", &half)(source));
        }
        Ok(()) | Err(_) => create_dir(&half)?,
    }
    drop(open_catalogue(&half)?);
    for entry in fs::read_dir(&half).map_err(refused("list", &half))? {
        let path = entry.map_err(refused("list", &half))?.path();
        File::open(&path).and_then(|file| file.sync_all()).map_err(refused("sync", &path))?;
    }
    sync_dir(&half)?;
    fs::rename(&half, catalogue_dir).map_err(refused("rename", &half))?;
    sync_dir(dir)
}

/// Opens sled. Its threads release the lock after the last handle was dropped, so this retries for a
/// limited time.
#[allow(
    clippy::disallowed_methods,
    reason = "sled says by nothing else that its lock is free; only at start"
)]
fn open_catalogue(dir: &Path) -> Result<sled::Db> {
    let config = sled::Config::new().path(dir).cache_capacity(CACHE_BYTES);
    let config = config.flush_every_ms(Some(EMPTY_SEGMENTS_INTERVAL.as_millis() as u64));
    let mut attempts_left = LOCK_ATTEMPTS;
    loop {
        attempts_left -= 1;
        // sled usually returns an error for corrupt files. A panic is treated as one.
        match catch_unwind(AssertUnwindSafe(|| config.open())) {
            Ok(Ok(catalogue)) => return Ok(catalogue),
            Ok(Err(sled::Error::Io(error)))
                if attempts_left > 0 && error.to_string().contains("acquire lock") =>
            {
                thread::sleep(LOCK_PAUSE);
            }
            Ok(Err(error)) => return Err(catalogue_unreadable(dir, error)),
            Err(_panic) => return Err(catalogue_damaged(dir, NOT_RECOGNISED)),
        }
    }
}

/// Opens or creates the sequence file of the store in `dir`.
///
/// Errors: `Corrupt` if the catalogue has an older number.
fn check_sequence(
    dir: &Path,
    catalogue_dir: &Path,
    catalogue: &sled::Db,
    catalogue_file: &File,
) -> Result<SequenceFile> {
    let damaged = |what| catalogue_damaged(catalogue_dir, what);
    let found = catch_unwind(AssertUnwindSafe(|| catalogue.get(NUMBER_KEY)))
        .map_err(|_panic| damaged(NOT_RECOGNISED))?
        .map_err(|error| catalogue_unreadable(catalogue_dir, error))?;
    let number = match found {
        None => 0,
        Some(value) => u64::from_le_bytes(value.as_ref().try_into().map_err(|_| damaged(NOT_RECOGNISED))?),
    };
    match SequenceFile::open(dir)? {
        Some(sequence) if sequence.number() > number => {
            Err(damaged("its engine opened it without updates that were synced"))
        }
        // A crash happened between the syncs of the catalogue and the sequence file. If the process was
        // killed before the first sync, the update may be only in the page cache, so sync it first.
        Some(mut sequence) if sequence.number() < number => {
            sync_catalogue(catalogue_dir, catalogue_file)?;
            sequence.advance(number).map(|()| sequence)
        }
        Some(sequence) => Ok(sequence),
        None => {
            sync_catalogue(catalogue_dir, catalogue_file)?;
            SequenceFile::create(dir, number)
        }
    }
}

/// Syncs the catalogue as read, and the large nodes that older versions let sled write to files.
fn sync_catalogue(catalogue_dir: &Path, catalogue_file: &File) -> Result<()> {
    if base::mutant("opened-unsynced") {
        return Ok(());
    }
    let blobs = catalogue_dir.join("blobs");
    if blobs.try_exists().map_err(refused("look for", &blobs))? {
        for entry in fs::read_dir(&blobs).map_err(refused("list", &blobs))? {
            let path = entry.map_err(refused("list", &blobs))?.path();
            File::open(&path).and_then(|file| file.sync_all()).map_err(refused("sync", &path))?;
        }
        sync_dir(&blobs)?;
    }
    catalogue_file.sync_all().map_err(refused("sync", &catalogue_dir.join("db")))
}

/// Distinguishes corruption, which requires another copy, from an I/O error, which may be temporary.
fn catalogue_unreadable(dir: &Path, error: sled::Error) -> Error {
    match error {
        sled::Error::Corruption { at, bt: () } => {
            let offset = at.map_or(0, |at| at.lid());
            Error::Corrupt { file: dir.display().to_string(), offset, what: NOT_RECOGNISED }
        }
        sled::Error::Unsupported(_) | sled::Error::ReportableBug(_) | sled::Error::CollectionNotFound(_) => {
            catalogue_damaged(dir, NOT_RECOGNISED)
        }
        sled::Error::Io(source)
            if matches!(source.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData) =>
        {
            catalogue_damaged(dir, NOT_RECOGNISED)
        }
        sled::Error::Io(source) => refused("open", dir)(source),
    }
}

/// Reason for any corruption reported by sled, which does not provide details.
const NOT_RECOGNISED: &str = "the catalogue's engine does not recognise its files";

const STRAY_PART: &str = "a piece of an entry is there without the ones before it";

fn catalogue_damaged(dir: &Path, what: &'static str) -> Error {
    Error::Corrupt { file: dir.display().to_string(), offset: 0, what }
}

/// Removes incomplete snapshots, which make sled fail to open. Its log contains the same data.
fn remove_half_written_snapshots(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(refused("list", dir))? {
        let path = entry.map_err(refused("list", dir))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            fs::remove_file(&path).map_err(refused("remove", &path))?;
        }
    }
    Ok(())
}

fn create_dir(dir: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(refused("create", dir))
}

fn catalogue_refused(attempt: &'static str) -> impl FnOnce(sled::Error) -> Error {
    move |source| Error::Catalogue { attempt, source: Box::new(source) }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
