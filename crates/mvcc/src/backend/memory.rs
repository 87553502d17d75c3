//! A disk in memory, for tests and simulation. It never fails and loses nothing that was written; what it models of a
//! crash is that a store which is gone leaves exactly what its last `update` named.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::{Backend, BlockFile, Update};
use crate::error::{Error, Result};

/// A cheap handle to shared state. Drop the store, open another on a clone of the handle, and it stands at the last
/// persisted checkpoint, as after a crash.
#[derive(Clone, Default)]
pub struct MemoryBackend {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Default)]
struct Disk {
    catalogue: BTreeMap<Vec<u8>, Vec<u8>>,
    files: BTreeMap<u64, Arc<MemoryFile>>,
}

struct MemoryFile {
    number: u64,
    bytes: RwLock<Vec<u8>>,
}

impl MemoryBackend {
    pub fn new() -> Self {
        Self::default()
    }

    /// A disk of its own with the same content: the state as a crash right now would leave it.
    pub fn fork(&self) -> Self {
        let disk = self.disk.lock();
        let copy = |(number, file): (&u64, &Arc<MemoryFile>)| {
            let bytes = RwLock::new(file.bytes.read().clone());
            (*number, Arc::new(MemoryFile { number: *number, bytes }))
        };
        let files = disk.files.iter().map(copy).collect();
        let disk = Disk { catalogue: disk.catalogue.clone(), files };
        MemoryBackend { disk: Arc::new(Mutex::new(disk)) }
    }
}

impl Backend for MemoryBackend {
    fn catalogue(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let disk = self.disk.lock();
        Ok(disk.catalogue.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn update(&mut self, update: Update) -> Result<()> {
        let mut disk = self.disk.lock();
        for key in &update.removals {
            disk.catalogue.remove(key);
        }
        disk.catalogue.extend(update.puts);
        Ok(())
    }

    fn catalogue_bytes(&self) -> u64 {
        let disk = self.disk.lock();
        disk.catalogue.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum()
    }

    fn files(&mut self) -> Result<Vec<u64>> {
        Ok(self.disk.lock().files.keys().copied().collect())
    }

    fn create_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>> {
        let file = Arc::new(MemoryFile { number, bytes: RwLock::default() });
        let older = self.disk.lock().files.insert(number, file.clone());
        assert!(older.is_none(), "block file {number} exists");
        Ok(file)
    }

    fn open_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>> {
        match self.disk.lock().files.get(&number) {
            Some(file) => Ok(file.clone()),
            None => Err(Error::Corrupt { file: name(number), offset: 0, what: "the file is missing" }),
        }
    }

    fn remove_file(&mut self, number: u64) -> Result<()> {
        self.disk.lock().files.remove(&number);
        Ok(())
    }
}

impl BlockFile for MemoryFile {
    fn name(&self) -> String {
        name(self.number)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.bytes.read();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(buffer.len());
        let stored = bytes.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(stored);
        Ok(())
    }

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
