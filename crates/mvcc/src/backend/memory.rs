//! A disk in memory, for tests and simulation. It never fails and loses nothing that was written; what it models of a
//! crash is that a store which is gone leaves exactly what its last `update` named.
//!
//! Simulations and tests share one disk between the store, the one that is being received and the one on its way out: the
//! same three places, renamed by the same code, as directories on a real disk.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::shelf::{self, Shelf, Slot};
use super::{Backend, BlockFile, Update};
use crate::error::{Error, Result};
use crate::types::Applied;

/// A cheap handle to one place of a shared disk. Drop the store, open another on a clone of the handle, and it stands at
/// the last persisted checkpoint, as after a crash.
#[derive(Clone)]
pub struct MemoryBackend {
    disk: Disk,
    slot: Slot,
}

/// A disk with the three places of a store. All clones are the same disk.
#[derive(Clone, Default)]
struct Disk {
    stores: Arc<Mutex<BTreeMap<Slot, Stored>>>,
}

/// What lies in one place.
#[derive(Clone, Default)]
struct Stored {
    catalogue: BTreeMap<Vec<u8>, Vec<u8>>,
    files: BTreeMap<u64, Arc<MemoryFile>>,
    /// The mark of a store that was received wholly.
    mark: Option<Vec<u8>>,
}

/// A file that lives as long as anybody holds it, like one on a disk whose name was removed.
struct MemoryFile {
    number: u64,
    bytes: RwLock<Vec<u8>>,
}

impl Default for MemoryBackend {
    /// A disk of its own, with nothing on it.
    fn default() -> Self {
        MemoryBackend { disk: Disk::default(), slot: Slot::Home }
    }
}

impl MemoryBackend {
    pub fn new() -> Self {
        Self::default()
    }

    /// A disk of its own with the same content: the state as a crash right now would leave it.
    pub fn fork(&self) -> Self {
        let stores = self.disk.stores.lock();
        let copy = stores.iter().map(|(slot, stored)| (*slot, stored.copied())).collect();
        MemoryBackend { disk: Disk { stores: Arc::new(Mutex::new(copy)) }, slot: self.slot }
    }

    /// Loses the store, as a disk that was exchanged: what is opened next is empty.
    pub fn wipe(&self) {
        self.disk.stores.lock().remove(&self.slot);
    }

    /// An empty place beside this store, where another one can be received. What was there before is removed.
    pub fn incoming(&self) -> Self {
        self.disk.stores.lock().insert(Slot::Incoming, Stored::default());
        MemoryBackend { disk: self.disk.clone(), slot: Slot::Incoming }
    }

    /// As `staged_at` for a store on disk.
    pub fn staged(&self) -> Result<Option<Applied>> {
        shelf::staged(&self.disk)
    }

    /// As `finish_install` for a store on disk.
    pub fn finish_install(&self) -> Result<Applied> {
        shelf::swap(&self.disk)
    }

    /// As `discard_staged` for a store on disk.
    pub fn discard_staged(&self) -> Result<()> {
        shelf::discard(&self.disk)
    }

    /// Works on what lies in this handle's place; an empty place is an empty store.
    fn with<T>(&self, work: impl FnOnce(&mut Stored) -> T) -> T {
        work(self.disk.stores.lock().entry(self.slot).or_default())
    }
}

impl Stored {
    /// The same content in files of its own.
    fn copied(&self) -> Self {
        let copy = |(number, file): (&u64, &Arc<MemoryFile>)| {
            let bytes = RwLock::new(file.bytes.read().clone());
            (*number, Arc::new(MemoryFile { number: *number, bytes }))
        };
        let files = self.files.iter().map(copy).collect();
        Stored { files, ..self.clone() }
    }
}

impl Backend for MemoryBackend {
    /// A home whose replacement was interrupted is refused here, where a store is opened first: the same rule as for
    /// directories, so that simulations meet it too.
    fn catalogue(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        if self.slot == Slot::Home && shelf::is_interrupted(&self.disk)? {
            let reason = "it was being replaced when the process stopped";
            return Err(Error::Refused { attempt: "open the store", reason });
        }
        Ok(self.with(|stored| stored.catalogue.clone().into_iter().collect()))
    }

    /// Atomic because it is done under one lock. Removals come first, as in sled's batch, though keys are disjoint.
    fn update(&mut self, update: Update) -> Result<()> {
        self.with(|stored| {
            for key in &update.removals {
                stored.catalogue.remove(key);
            }
            stored.catalogue.extend(update.puts);
        });
        Ok(())
    }

    fn catalogue_bytes(&self) -> u64 {
        self.with(|stored| stored.catalogue.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum())
    }

    fn files(&mut self) -> Result<Vec<u64>> {
        Ok(self.with(|stored| stored.files.keys().copied().collect()))
    }

    /// A number that exists is a bug of the caller, which counts them: on a disk it would be an error of `open`.
    fn create_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>> {
        let file = Arc::new(MemoryFile { number, bytes: RwLock::default() });
        let older = self.with(|stored| stored.files.insert(number, file.clone()));
        assert!(older.is_none(), "block file {number} exists");
        Ok(file)
    }

    /// A file that the catalogue names and the disk does not have is damage, not a refusal: another copy of the store is
    /// needed.
    fn open_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>> {
        match self.with(|stored| stored.files.get(&number).cloned()) {
            Some(file) => Ok(file),
            None => Err(Error::Corrupt { file: name(number), offset: 0, what: "the file is missing" }),
        }
    }

    fn remove_file(&mut self, number: u64) -> Result<()> {
        self.with(|stored| stored.files.remove(&number));
        Ok(())
    }

    /// As on a disk, but the mark cannot be half written.
    fn complete(&mut self, applied: Applied) -> Result<()> {
        self.with(|stored| stored.mark = Some(shelf::mark_bytes(applied)));
        Ok(())
    }

    /// The incoming handle goes first: it names a place that is about to be renamed.
    fn replace(&mut self, incoming: Box<dyn Backend>) -> Result<()> {
        drop(incoming);
        assert_eq!(self.slot, Slot::Home, "what is replaced is the store in use");
        shelf::swap(&self.disk)?;
        Ok(())
    }
}

/// Renames that are done at once and last.
impl Shelf for Disk {
    fn has(&self, slot: Slot) -> Result<bool> {
        Ok(self.stores.lock().contains_key(&slot))
    }

    fn rename(&self, from: Slot, to: Slot) -> Result<()> {
        let mut stores = self.stores.lock();
        assert!(!stores.contains_key(&to), "a rename onto another store");
        let moved = stores.remove(&from).expect("only what is there is renamed");
        stores.insert(to, moved);
        Ok(())
    }

    fn remove(&self, slot: Slot) -> Result<()> {
        self.stores.lock().remove(&slot);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn mark(&self, slot: Slot) -> Result<Option<Vec<u8>>> {
        Ok(self.stores.lock().get(&slot).and_then(|stored| stored.mark.clone()))
    }

    fn mark_name(&self, _slot: Slot) -> String {
        "the mark of a received store (in memory)".to_owned()
    }
}

impl BlockFile for MemoryFile {
    fn name(&self) -> String {
        name(self.number)
    }

    /// All or nothing. A reader that asks beyond the end gets the same kind of error as from a file system.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.bytes.read();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(buffer.len());
        let stored = bytes.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(stored);
        Ok(())
    }

    /// Grows the file with zeros up to `offset` where needed, as a sparse file would read.
    fn write_at(&self, written: &[u8], offset: u64) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let end = start + written.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(written);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    /// Never grows it.
    fn truncate(&self, length: u64) -> io::Result<()> {
        self.bytes.write().truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.bytes.read().len() as u64)
    }
}

/// How errors call a file of this disk.
fn name(number: u64) -> String {
    format!("block file {number} (in memory)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_a_disk_and_forks_do_not() {
        let mut one = MemoryBackend::new();
        let update = |value: &[u8]| Update { puts: vec![(b"k".to_vec(), value.to_vec())], removals: vec![] };
        one.update(update(b"1")).unwrap();
        let (mut clone, mut fork) = (one.clone(), one.fork());
        one.update(update(b"2")).unwrap();
        assert_eq!(clone.catalogue().unwrap(), [(b"k".to_vec(), b"2".to_vec())]);
        assert_eq!(fork.catalogue().unwrap(), [(b"k".to_vec(), b"1".to_vec())]);
    }

    #[test]
    fn a_removed_file_is_still_read_by_who_holds_it() {
        let mut disk = MemoryBackend::new();
        let file = disk.create_file(1).unwrap();
        file.write_at(b"hello", 2).unwrap();
        disk.remove_file(1).unwrap();
        assert!(disk.files().unwrap().is_empty());
        let mut buffer = [9; 5];
        file.read_at(&mut buffer, 2).unwrap();
        assert_eq!(&buffer, b"hello");
        assert!(file.read_at(&mut buffer, 3).is_err(), "beyond the end");
        assert!(matches!(disk.open_file(1), Err(Error::Corrupt { .. })));
    }
}
