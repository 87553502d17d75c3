//! A store in a directory: block files of our own, and sled as their catalogue.
//!
//!   DIR/catalogue/          sled: one tree, small values, one batch per checkpoint
//!   DIR/blocks/NNNNNN.blk   written once, synced before the catalogue names what is inside
//!   DIR/witness             the number of the newest update that the catalogue has durably taken
//!
//! Directories are made 0700 and block files 0600: values are nobody else's business.
//!
//! What sled 0.34 needs to be told:
//! * Its `flush` does not survive a power cut by itself: the file it wrote is synced here, by its own handle.
//! * A `snap.*.generating` left by a crash while opening makes the next opening fail: it is deleted first.
//! * Its cache outgrows its setting, so the setting is small; the catalogue is read once, at start.
//! * Values beyond about 128 KiB become files that it never syncs: catalogue values stay far below.
//! * What it finds damaged it refuses or, rarely, panics at. Both are `Corrupt` here, and told from a disk that refuses:
//!   one needs another copy of the store, the other a free or a mended disk.
//! * Damage at the end of its own log looks to it like an update that never happened. So updates are numbered, and the
//!   witness says how many there must be.
//! * A write that fails on one of its threads may leave the one that waits for it asleep: `flush` wakes it.
//! * Keys that begin with 0 are this file's own: the number, and what `flush` writes.
//! * It reuses the segments of its file: some 2 MiB through thousands of checkpoints, however often entries change.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::directories::{Directories, parent, refused, sync_dir, write_mark};
use super::flush::flush;
use super::shelf::{self, Shelf, Slot};
use super::witness::Witness;
use super::{Backend, BlockFile, Update};
use crate::error::{Error, Result};
use crate::types::Applied;

/// Enough for the catalogue of some 100,000 blocks; it is not on any read path.
const CACHE_BYTES: u64 = 8 << 20;
/// Beyond this sled would write a value to a file of its own, unsynced.
const VALUE_BYTES_MAX: usize = 96 << 10;

/// Of keys that never leave this file.
const OWN: u8 = 0;
/// How many updates the catalogue has taken, u64 little-endian. Written with each of them.
const NUMBER_KEY: [u8; 2] = [OWN, b'n'];
const FLUSH_KEY: [u8; 2] = [OWN, b'f'];
/// An update takes milliseconds; after this it is asked whether its writes have failed.
const FLUSH_PERIOD: Duration = Duration::from_secs(1);

/// How often and how long sled's lock is waited for: three seconds, then somebody else has it.
const LOCK_ATTEMPTS: usize = 300;
/// Short, since it is usually one of sled's threads that has not quite ended.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Block files of our own, with sled as their catalogue.
pub struct SledBackend {
    catalogue: sled::Db,
    catalogue_dir: PathBuf,
    /// Sled's file, to be truly synced.
    catalogue_file: File,
    witness: Witness,
    blocks_dir: PathBuf,
    /// The directory of all this.
    dir: PathBuf,
}

impl SledBackend {
    /// Opens the store in `dir`, creating it if it is not there. The caller makes sure that nobody else has it open.
    ///
    /// Errors: `Refused` if an install was interrupted: `finish_install` or `discard_staged` comes first.
    pub fn open(dir: &Path) -> Result<Self> {
        if shelf::is_interrupted(&Directories::of(dir))? {
            let reason = "it was being replaced when the process stopped";
            return Err(Error::Refused { attempt: "open the store", reason });
        }
        Self::open_in(dir)
    }

    /// An empty place beside the store in `store`, where another one can be received. What was there before is removed.
    pub fn incoming(store: &Path) -> Result<Self> {
        let directories = Directories::of(store);
        directories.remove(Slot::Incoming)?;
        directories.sync()?;
        Self::open_in(&directories.path(Slot::Incoming))
    }

    /// Opens what is in `dir`, or founds an empty store there. Every directory that may be new is synced, parents included.
    fn open_in(dir: &Path) -> Result<Self> {
        let (catalogue_dir, blocks_dir) = (dir.join("catalogue"), dir.join("blocks"));
        for new in [dir, &blocks_dir] {
            create_dir(new)?;
        }
        if !catalogue_dir.try_exists().map_err(refused("look for", &catalogue_dir))? {
            found_catalogue(dir, &catalogue_dir)?;
        }
        remove_half_written_snapshots(&catalogue_dir)?;
        let catalogue = open_catalogue(&catalogue_dir)?;
        let catalogue_path = catalogue_dir.join("db");
        let catalogue_file = File::open(&catalogue_path).map_err(refused("open", &catalogue_path))?;
        for new in parent(dir).into_iter().chain([dir, &catalogue_dir, &blocks_dir]) {
            sync_dir(new)?;
        }
        let witness = check_witness(dir, &catalogue_dir, &catalogue)?;
        Ok(SledBackend {
            catalogue,
            catalogue_dir,
            catalogue_file,
            witness,
            blocks_dir,
            dir: dir.to_path_buf(),
        })
    }

    fn block_path(&self, number: u64) -> PathBuf {
        self.blocks_dir.join(format!("{number:06}.blk"))
    }

    /// One way for all openings, so that errors look alike.
    fn open_block_file(&self, number: u64, options: &OpenOptions) -> Result<Arc<dyn BlockFile>> {
        let path = self.block_path(number);
        let file = options.open(&path).map_err(refused("open", &path))?;
        Ok(Arc::new(DiskFile { file, path }))
    }
}

impl Backend for SledBackend {
    fn catalogue(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let entries = self.catalogue.range([OWN + 1]..).map(|entry| {
            let (key, value) = entry.map_err(|error| catalogue_unreadable(&self.catalogue_dir, error))?;
            Ok((key.to_vec(), value.to_vec()))
        });
        // As for opening: sled may panic at pages that it did not write.
        catch_unwind(AssertUnwindSafe(|| entries.collect()))
            .unwrap_or_else(|_panic| Err(catalogue_damaged(&self.catalogue_dir, NOT_RECOGNISED)))
    }

    fn update(&mut self, update: Update) -> Result<()> {
        let mut batch = sled::Batch::default();
        for key in update.removals {
            batch.remove(key);
        }
        for (key, value) in update.puts {
            assert!(key.first() > Some(&OWN), "a key of the backend's own");
            assert!(value.len() <= VALUE_BYTES_MAX, "a catalogue value that sled would not sync");
            batch.insert(key, value);
        }
        let number = self.witness.number() + 1;
        batch.insert(&NUMBER_KEY, &number.to_le_bytes());
        self.catalogue.apply_batch(batch).map_err(catalogue_refused("write"))?;
        flush(&self.catalogue, &FLUSH_KEY, FLUSH_PERIOD).map_err(catalogue_refused("flush"))?;
        self.catalogue_file.sync_all().map_err(refused("sync", &self.catalogue_dir.join("db")))?;
        self.witness.saw(number)
    }

    fn catalogue_bytes(&self) -> u64 {
        // Unknown for a moment is no reason to fail a question about sizes.
        self.catalogue.size_on_disk().unwrap_or(0)
    }

    fn files(&mut self) -> Result<Vec<u64>> {
        let entries = fs::read_dir(&self.blocks_dir).map_err(refused("list", &self.blocks_dir))?;
        let mut numbers = Vec::new();
        for entry in entries {
            let name = entry.map_err(refused("list", &self.blocks_dir))?.file_name();
            // A name that is not ours is left alone.
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
        // The directory as well: a power cut may forget the name of a file whose bytes are safe.
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

    fn complete(&mut self, applied: Applied) -> Result<()> {
        // Files were synced one by one; this is for the names of all of them.
        sync_dir(&self.blocks_dir)?;
        sync_dir(&self.catalogue_dir)?;
        write_mark(&self.dir, &shelf::mark_bytes(applied))
    }

    fn replace(&mut self, incoming: Box<dyn Backend>) -> Result<()> {
        // Closes the received store's catalogue: sled finds its files by path, and the path changes.
        drop(incoming);
        shelf::swap(&Directories::of(&self.dir))?;
        // The catalogue of the old store is still open, as a file without a name, and is closed by this assignment.
        *self = Self::open_in(&self.dir.clone())?;
        Ok(())
    }
}

/// A file and its name, for errors. Reads and writes carry their own offset, so many readers share one handle.
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

/// Makes an empty catalogue. It appears under its name when all of its files are synced: sled does not sync the first
/// ones that it writes, and does not open again when it finds them half written.
fn found_catalogue(dir: &Path, catalogue_dir: &Path) -> Result<()> {
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

/// Opens sled. A process that closed it a moment ago may open it again: sled's own threads let go of its lock only after
/// the last handle is gone, so a lock that is held is waited for, and not for long.
#[allow(
    clippy::disallowed_methods,
    reason = "sled says by nothing else that its lock is free; only at start"
)]
fn open_catalogue(dir: &Path) -> Result<sled::Db> {
    let config = sled::Config::new().path(dir).cache_capacity(CACHE_BYTES);
    let mut attempts_left = LOCK_ATTEMPTS;
    loop {
        attempts_left -= 1;
        // Files that are not what it wrote make sled refuse, as a rule; where it panics, that is a refusal as well.
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

/// The witness of the store in `dir`; made if there is none yet.
///
/// Errors: `Corrupt` if the catalogue is behind it.
fn check_witness(dir: &Path, catalogue_dir: &Path, catalogue: &sled::Db) -> Result<Witness> {
    let damaged = |what| catalogue_damaged(catalogue_dir, what);
    // As for opening: sled may panic at pages that it did not write.
    let found = catch_unwind(AssertUnwindSafe(|| catalogue.get(NUMBER_KEY)))
        .map_err(|_panic| damaged(NOT_RECOGNISED))?
        .map_err(|error| catalogue_unreadable(catalogue_dir, error))?;
    let number = match found {
        None => 0,
        Some(value) => u64::from_le_bytes(value.as_ref().try_into().map_err(|_| damaged(NOT_RECOGNISED))?),
    };
    match Witness::open(dir)? {
        Some(witness) if witness.number() > number => {
            Err(damaged("its engine opened it without updates that were synced"))
        }
        // A crash came between the two: the update is whole, and only now has its witness.
        Some(mut witness) if witness.number() < number => witness.saw(number).map(|()| witness),
        Some(witness) => Ok(witness),
        None => Witness::found(dir, number),
    }
}

/// Tells damage, which only another copy repairs, from a disk that refuses, whose cause can go away.
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

/// One sentence for all that sled does not recognise: why not, only its authors could tell.
const NOT_RECOGNISED: &str = "the catalogue's engine does not recognise its files";

fn catalogue_damaged(dir: &Path, what: &'static str) -> Error {
    Error::Corrupt { file: dir.display().to_string(), offset: 0, what }
}

/// sled writes its summary of the log under this name and renames it. Killed in between, it trips over its own leftover at
/// every later start; the log holds everything that was in it.
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

/// A directory that nobody else may look into.
fn create_dir(dir: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(refused("create", dir))
}

/// The error for what sled could not do, for whatever reason.
fn catalogue_refused(attempt: &'static str) -> impl FnOnce(sled::Error) -> Error {
    move |source| Error::Catalogue { attempt, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Update {
        Update { puts: vec![(key.into(), value.into())], removals: vec![] }
    }

    #[test]
    fn the_catalogue_survives_reopening_beside_a_half_written_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("store");
        let mut backend = SledBackend::open(&home).unwrap();
        backend.update(put("a", "1")).unwrap();
        backend.update(Update { puts: vec![("b".into(), "2".into())], removals: vec!["a".into()] }).unwrap();
        assert!(backend.catalogue_bytes() > 0);
        drop(backend);

        let leftover = home.join("catalogue/snap.0000000000000ABC.generating");
        fs::write(&leftover, b"half").unwrap();
        let mut backend = SledBackend::open(&home).unwrap();
        assert_eq!(backend.catalogue().unwrap(), [(b"b".to_vec(), b"2".to_vec())]);
        assert!(!leftover.exists());
    }

    /// What opening says of a store whose catalogue's log has one bit changed: it never loses the last updates in silence.
    #[test]
    fn a_catalogue_damaged_anywhere_holds_all_of_its_updates_or_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("store");
        let mut backend = SledBackend::open(&home).unwrap();
        for (key, value) in [("a", "1"), ("b", "2"), ("c", "3")] {
            backend.update(put(key, value)).unwrap();
        }
        let truth = backend.catalogue().unwrap();
        assert_eq!(truth.len(), 3);
        drop(backend);
        let db = home.join("catalogue/db");
        let intact = fs::read(&db).unwrap();
        let mut refusals = 0;
        for at in (0..1200).step_by(29) {
            let copy = dir.path().join(format!("copy{at}"));
            for place in ["catalogue", "blocks"] {
                fs::create_dir_all(copy.join(place)).unwrap();
            }
            for name in ["catalogue/conf", "witness"] {
                fs::copy(home.join(name), copy.join(name)).unwrap();
            }
            let mut damaged = intact.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(copy.join("catalogue/db"), damaged).unwrap();
            match SledBackend::open(&copy).and_then(|mut backend| backend.catalogue()) {
                Ok(found) => assert_eq!(found, truth, "byte {at}"),
                Err(Error::Corrupt { .. }) => refusals += 1,
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
        assert!(refusals > 5, "the bytes that were changed mean something: {refusals}");
    }

    /// Killed between the catalogue's sync and its witness: the update is there, and the next one is numbered behind it.
    #[test]
    fn a_witness_that_is_one_update_behind_catches_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut backend = SledBackend::open(dir.path()).unwrap();
        backend.update(put("a", "1")).unwrap();
        let before = fs::read(dir.path().join("witness")).unwrap();
        backend.update(put("b", "2")).unwrap();
        drop(backend);
        fs::write(dir.path().join("witness"), before).unwrap();
        let mut backend = SledBackend::open(dir.path()).unwrap();
        assert_eq!(backend.witness.number(), 2);
        backend.update(put("c", "3")).unwrap();
        assert_eq!(backend.catalogue().unwrap().len(), 3);
    }

    #[test]
    fn a_flush_that_is_asked_about_all_the_time_leaves_nothing_to_see() {
        let dir = tempfile::tempdir().unwrap();
        let mut backend = SledBackend::open(dir.path()).unwrap();
        backend.update(put("a", "1")).unwrap();
        for _ in 0..20 {
            backend.catalogue.insert("b", "2").unwrap();
            flush(&backend.catalogue, &FLUSH_KEY, Duration::ZERO).unwrap();
            backend.catalogue.remove("b").unwrap();
        }
        assert_eq!(backend.catalogue().unwrap(), [(b"a".to_vec(), b"1".to_vec())]);
    }

    #[test]
    fn nobody_else_can_read_what_is_stored() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("store");
        SledBackend::open(&home).unwrap().create_file(1).unwrap();
        for (path, mode) in
            [("", 0o700), ("catalogue", 0o700), ("blocks", 0o700), ("blocks/000001.blk", 0o600)]
        {
            let found = fs::metadata(home.join(path)).unwrap().permissions().mode() & 0o777;
            assert_eq!(found, mode, "{path:?}");
        }
    }

    #[test]
    fn block_files_are_listed_read_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut backend = SledBackend::open(dir.path()).unwrap();
        fs::write(dir.path().join("blocks/notes.txt"), b"not ours").unwrap();
        let file = backend.create_file(7).unwrap();
        file.write_at(b"hello", 3).unwrap();
        file.sync().unwrap();
        assert_eq!((backend.files().unwrap(), file.bytes().unwrap()), (vec![7], 8));
        assert!(
            matches!(backend.create_file(7), Err(Error::Io { attempt: "open", .. })),
            "never overwritten"
        );

        let reader = backend.open_file(7).unwrap();
        backend.remove_file(7).unwrap();
        let mut buffer = [0; 5];
        reader.read_at(&mut buffer, 3).unwrap();
        assert_eq!(&buffer, b"hello", "an open file outlives its name");
        assert!(backend.open_file(7).is_err());
    }
}
