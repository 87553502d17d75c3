//! An in-memory disk for tests and simulation, with the three slots of a store. It never fails or loses
//! a write; after a crash the store is at its last `update`.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::slots::{self, Slot, SlotStorage};
use super::{Backend, BlockFile, Update};
use crate::error::{Error, Result};
use crate::types::LogPosition;

/// Handle to one slot of a shared disk. To simulate a crash, drop the store and open another one with a
/// clone of the handle: it starts from the last durable checkpoint.
#[derive(Clone)]
pub struct MemoryBackend {
    disk: MemoryDisk,
    slot: Slot,
}

/// A disk with the three slots of a store. Clones share the disk.
#[derive(Clone, Default)]
struct MemoryDisk {
    stores: Arc<Mutex<BTreeMap<Slot, SlotFiles>>>,
}

#[derive(Clone, Default)]
struct SlotFiles {
    catalogue: BTreeMap<Vec<u8>, Vec<u8>>,
    files: BTreeMap<u64, Arc<MemoryFile>>,
    marker: Option<Vec<u8>>,
}

/// A file that exists as long as any handle to it, like an unlinked file on disk.
struct MemoryFile {
    number: u64,
    bytes: RwLock<Vec<u8>>,
}

impl Default for MemoryBackend {
    fn default() -> Self {
        MemoryBackend { disk: MemoryDisk::default(), slot: Slot::Current }
    }
}

impl MemoryBackend {
    pub fn new() -> Self {
        Self::default()
    }

    /// Copies the disk: the state after a crash at this point.
    pub fn fork(&self) -> Self {
        let stores = self.disk.stores.lock();
        let copy = stores.iter().map(|(slot, stored)| (*slot, stored.copied())).collect();
        MemoryBackend { disk: MemoryDisk { stores: Arc::new(Mutex::new(copy)) }, slot: self.slot }
    }

    /// Removes the store, like replacing the disk with an empty one.
    pub fn wipe(&self) {
        self.disk.stores.lock().remove(&self.slot);
    }

    /// Empties the slot for a received store and returns a handle to it.
    pub fn incoming(&self) -> Self {
        self.disk.stores.lock().insert(Slot::Incoming, SlotFiles::default());
        MemoryBackend { disk: self.disk.clone(), slot: Slot::Incoming }
    }

    /// Same as [`staged_at`](super::staged_at) for a store on disk.
    pub fn staged(&self) -> Result<Option<LogPosition>> {
        slots::staged(&self.disk)
    }

    /// Same as [`finish_install`](super::finish_install) for a store on disk.
    pub fn finish_install(&self) -> Result<LogPosition> {
        slots::swap(&self.disk)
    }

    /// Same as [`discard_staged`](super::discard_staged) for a store on disk.
    pub fn discard_staged(&self) -> Result<()> {
        slots::discard(&self.disk)
    }

    /// Calls `work` with the contents of this slot. An absent slot is an empty store.
    fn with<T>(&self, work: impl FnOnce(&mut SlotFiles) -> T) -> T {
        work(self.disk.stores.lock().entry(self.slot).or_default())
    }
}

impl SlotFiles {
    fn copied(&self) -> Self {
        let copy = |(number, file): (&u64, &Arc<MemoryFile>)| {
            let bytes = RwLock::new(file.bytes.read().clone());
            (*number, Arc::new(MemoryFile { number: *number, bytes }))
        };
        let files = self.files.iter().map(copy).collect();
        SlotFiles { files, ..self.clone() }
    }
}

impl Backend for MemoryBackend {
    /// Rejects an interrupted replacement like `SledBackend::open`, because simulations open stores through
    /// this call.
    fn catalogue(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        if self.slot == Slot::Current && slots::is_interrupted(&self.disk)? {
            let reason = "it was being replaced when the process stopped";
            return Err(Error::Refused { attempt: "open the store", reason });
        }
        Ok(self.with(|stored| stored.catalogue.clone().into_iter().collect()))
    }

    /// Atomic, because it holds the lock. Removals precede puts, like in sled's batch.
    fn update(&mut self, update: Update) -> Result<()> {
        self.with(|stored| {
            for key in &update.removals {
                stored.catalogue.remove(key);
            }
            stored.catalogue.extend(update.puts);
        });
        Ok(())
    }

    fn files(&mut self) -> Result<Vec<u64>> {
        Ok(self.with(|stored| stored.files.keys().copied().collect()))
    }

    /// Panics on an existing number, which is a bug of the caller.
    fn create_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>> {
        let file = Arc::new(MemoryFile { number, bytes: RwLock::default() });
        let older = self.with(|stored| stored.files.insert(number, file.clone()));
        assert!(older.is_none(), "block file {number} exists");
        Ok(file)
    }

    /// Treats a missing file as corruption: another copy of the store is needed.
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

    fn complete(&mut self, applied: LogPosition) -> Result<()> {
        self.with(|stored| stored.marker = Some(slots::marker_bytes(applied)));
        Ok(())
    }

    /// Drops the incoming handle first, because its slot is renamed.
    fn replace(&mut self, incoming: Box<dyn Backend>) -> Result<()> {
        drop(incoming);
        assert_eq!(self.slot, Slot::Current, "what is replaced is the store in use");
        slots::swap(&self.disk)?;
        Ok(())
    }
}

impl SlotStorage for MemoryDisk {
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

    fn marker(&self, slot: Slot) -> Result<Option<Vec<u8>>> {
        Ok(self.stores.lock().get(&slot).and_then(|stored| stored.marker.clone()))
    }

    fn marker_name(&self, _slot: Slot) -> String {
        "the mark of a received store (in memory)".to_owned()
    }
}

impl BlockFile for MemoryFile {
    fn name(&self) -> String {
        name(self.number)
    }

    /// Reads all bytes or none, with the errors of a file system.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.bytes.read();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(buffer.len());
        let stored = bytes.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(stored);
        Ok(())
    }

    /// Fills a gap before `offset` with zeros, like a sparse file.
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

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.bytes.write().truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.bytes.read().len() as u64)
    }
}

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
    fn a_removed_file_is_still_readable_through_its_handle() {
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
