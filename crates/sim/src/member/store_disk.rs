//! Simulated disk of a store: a catalog with atomic updates, and files that lose unsynced data.
//!
//! * A completed `update` survives any crash; a crash during the call leaves either the old or the
//!   new state.
//! * On a power failure, each write since the last sync of a file is retained or lost individually.
//!   File names are durable from creation; a removed name may reappear.
//! * After a crash a new [`StoreDisk`] replaces the disk: handles of the dead process write to the
//!   old one without effect.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use mvcc::{Backend, BlockFile, Error, LogPosition, Result, Update};
use wal::testing::{Crash, Fault};

use crate::panics::lock;

/// Handle to one of two locations on a disk: the store itself, or a store being received.
#[derive(Clone, Default)]
pub(crate) struct StoreDisk {
    disk: Arc<Mutex<DiskState>>,
    slot: StoreSlot,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum StoreSlot {
    #[default]
    Home,
    Incoming,
}

#[derive(Clone, Default)]
struct DiskState {
    home: StoreImage,
    incoming: StoreImage,
    /// Contents by inode. Unlinked inodes remain readable through open handles.
    inodes: BTreeMap<u64, FileContent>,
    next_inode: u64,
    calls: u64,
    fault: Option<(u64, Fault)>,
    /// True if all writes fail, while reads succeed.
    full: bool,
    stopped: bool,
}

#[derive(Clone, Default)]
struct StoreImage {
    catalogue: BTreeMap<Vec<u8>, Vec<u8>>,
    files: BTreeMap<u64, u64>,
    /// Names removed since the last update of the catalog. They may reappear after a power failure.
    removed: BTreeMap<u64, u64>,
    /// Position of a completely received store.
    mark: Option<LogPosition>,
}

#[derive(Clone, Default)]
struct FileContent {
    /// Contents as seen by processes.
    cached: Vec<u8>,
    /// Contents after a power failure; empty without unsynced changes.
    synced: Vec<u8>,
    unsynced: Vec<FileChange>,
}

#[derive(Clone)]
enum FileChange {
    Write(usize, Vec<u8>),
    Cut(usize),
}

impl FileChange {
    fn make(&self, bytes: &mut Vec<u8>) {
        match self {
            FileChange::Write(offset, written) => {
                let end = offset + written.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*offset..end].copy_from_slice(written);
            }
            FileChange::Cut(length) => bytes.truncate(*length),
        }
    }
}

impl FileContent {
    fn change(&mut self, change: FileChange) {
        if self.unsynced.is_empty() {
            self.synced.clone_from(&self.cached);
        }
        change.make(&mut self.cached);
        self.unsynced.push(change);
    }

    fn sync(&mut self) {
        self.unsynced.clear();
        self.synced.clear();
    }

    fn power_cut(&mut self, chance: &mut dyn FnMut() -> bool) {
        if self.unsynced.is_empty() {
            return;
        }
        for change in std::mem::take(&mut self.unsynced) {
            if chance() {
                change.make(&mut self.synced);
            }
        }
        self.cached = std::mem::take(&mut self.synced);
    }
}

impl StoreDisk {
    /// Returns the disk as seen by the next process.
    pub fn crashed(&self, crash: Crash, chance: &mut dyn FnMut() -> bool) -> StoreDisk {
        let mut disk = self.disk().clone();
        let keep = |change: &mut dyn FnMut() -> bool| match crash {
            Crash::Kill => true,
            Crash::Synced => false,
            Crash::Subset | Crash::Torn => change(),
        };
        if crash != Crash::Kill {
            for stored in [&mut disk.home, &mut disk.incoming] {
                for (number, inode) in std::mem::take(&mut stored.removed) {
                    if !keep(chance) {
                        stored.files.insert(number, inode);
                    }
                }
            }
            disk.inodes.values_mut().for_each(|content| content.power_cut(&mut || keep(chance)));
        }
        let places = [&disk.home, &disk.incoming];
        let named =
            places.into_iter().flat_map(|stored| stored.files.values().chain(stored.removed.values()));
        let named: BTreeSet<u64> = named.copied().collect();
        disk.inodes.retain(|inode, _| named.contains(inode));
        (disk.calls, disk.fault, disk.full, disk.stopped) = (0, None, false, false);
        StoreDisk { disk: Arc::new(Mutex::new(disk)), slot: StoreSlot::Home }
    }

    /// Makes a call fail, after `calls` further ones.
    pub fn fail_after(&self, calls: u64, fault: Fault) {
        let mut disk = self.disk();
        disk.fault = Some((disk.calls + calls, fault));
    }

    pub fn fill(&self) {
        self.disk().full = true;
    }

    /// Clears the location for received stores and returns it.
    pub fn incoming(&self) -> StoreDisk {
        self.disk().incoming = StoreImage::default();
        StoreDisk { disk: self.disk.clone(), slot: StoreSlot::Incoming }
    }

    /// Returns the position of a completely received store that is not installed.
    pub fn staged(&self) -> Option<LogPosition> {
        self.disk().incoming.mark
    }

    /// Replaces the store by the received one. Also called at start after a crash.
    pub fn swap(&self) {
        let mut disk = self.disk();
        disk.home = std::mem::take(&mut disk.incoming);
        disk.home.mark = None;
    }

    pub fn discard_staged(&self) {
        self.disk().incoming = StoreImage::default();
    }

    pub fn disarm(&self) {
        let mut disk = self.disk();
        (disk.fault, disk.full) = (None, false);
    }

    fn disk(&self) -> MutexGuard<'_, DiskState> {
        lock(&self.disk)
    }
}

impl DiskState {
    fn content(&mut self, inode: u64) -> &mut FileContent {
        self.inodes.get_mut(&inode).expect("an inode lives as long as its disk")
    }

    fn place(&mut self, slot: StoreSlot) -> &mut StoreImage {
        match slot {
            StoreSlot::Home => &mut self.home,
            StoreSlot::Incoming => &mut self.incoming,
        }
    }

    fn call(&mut self) -> io::Result<()> {
        let call = self.calls;
        self.calls += 1;
        if self.stopped {
            return Err(Fault::Stop.error());
        }
        match self.fault {
            Some((at, fault)) if at == call => {
                self.stopped = fault == Fault::Stop;
                Err(fault.error())
            }
            _ => Ok(()),
        }
    }

    /// Starts a call that needs free space.
    fn call_to_write(&mut self) -> io::Result<()> {
        self.call()?;
        if self.full { Err(Fault::NoSpace.error()) } else { Ok(()) }
    }

    fn call_for(&mut self, attempt: &'static str) -> Result<()> {
        let called = match attempt {
            "update" | "create" | "mark" => self.call_to_write(),
            _ => self.call(),
        };
        called.map_err(|source| Error::Io { attempt, path: "simulated disk".into(), source })
    }
}

impl StoreDisk {
    fn handle(&self, number: u64, inode: u64) -> Arc<dyn BlockFile> {
        Arc::new(DiskFile { disk: self.disk.clone(), number, inode })
    }
}

impl Backend for StoreDisk {
    fn catalogue(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut disk = self.disk();
        disk.call_for("read")?;
        Ok(disk.place(self.slot).catalogue.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn update(&mut self, update: Update) -> Result<()> {
        let mut disk = self.disk();
        disk.call_for("update")?;
        for key in &update.removals {
            disk.place(self.slot).catalogue.remove(key);
        }
        disk.place(self.slot).catalogue.extend(update.puts);
        disk.place(self.slot).removed.clear();
        // Executed, but the response is lost: failures may mean either.
        disk.call_for("update")
    }

    fn files(&mut self) -> Result<Vec<u64>> {
        let mut disk = self.disk();
        disk.call_for("list")?;
        Ok(disk.place(self.slot).files.keys().copied().collect())
    }

    fn create_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>> {
        let mut disk = self.disk();
        disk.call_for("create")?;
        let inode = disk.next_inode;
        disk.next_inode += 1;
        disk.inodes.insert(inode, FileContent::default());
        disk.place(self.slot).removed.remove(&number);
        let older = disk.place(self.slot).files.insert(number, inode);
        assert!(older.is_none(), "block file {number} exists");
        Ok(self.handle(number, inode))
    }

    fn open_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>> {
        let mut disk = self.disk();
        disk.call_for("open")?;
        match disk.place(self.slot).files.get(&number) {
            Some(inode) => Ok(self.handle(number, *inode)),
            None => Err(Error::Corrupt { file: name(number), offset: 0, what: "the file is missing" }),
        }
    }

    fn remove_file(&mut self, number: u64) -> Result<()> {
        let mut disk = self.disk();
        disk.call_for("remove")?;
        if let Some(inode) = disk.place(self.slot).files.remove(&number) {
            disk.place(self.slot).removed.insert(number, inode);
        }
        Ok(())
    }

    fn complete(&mut self, applied: LogPosition) -> Result<()> {
        let mut disk = self.disk();
        disk.call_for("mark")?;
        disk.place(self.slot).mark = Some(applied);
        disk.call_for("mark")
    }

    fn replace(&mut self, incoming: Box<dyn Backend>) -> Result<()> {
        drop(incoming);
        self.disk().call_for("swap")?;
        self.swap();
        self.disk().call_for("swap")
    }
}

struct DiskFile {
    disk: Arc<Mutex<DiskState>>,
    number: u64,
    inode: u64,
}

impl DiskFile {
    fn call<T>(&self, work: impl FnOnce(&mut FileContent) -> io::Result<T>) -> io::Result<T> {
        let mut disk = lock(&self.disk);
        disk.call()?;
        work(disk.content(self.inode))
    }
}

impl BlockFile for DiskFile {
    fn name(&self) -> String {
        name(self.number)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut disk = lock(&self.disk);
        // Reads do not count as calls: readers would shift a fault to a different write.
        let stored = disk.content(self.inode).cached.get(offset as usize..offset as usize + buffer.len());
        buffer.copy_from_slice(stored.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let offset = offset as usize;
        let written = {
            let mut disk = lock(&self.disk);
            disk.call_to_write().map(|()| {
                disk.content(self.inode).change(FileChange::Write(offset, bytes.to_vec()));
            })
        };
        if written.is_err() {
            // Half of it is written.
            let half = bytes[..bytes.len() / 2].to_vec();
            lock(&self.disk).content(self.inode).change(FileChange::Write(offset, half));
        }
        written
    }

    fn sync(&self) -> io::Result<()> {
        self.call(|content| {
            content.sync();
            Ok(())
        })
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.call(|content| {
            content.change(FileChange::Cut(bytes as usize));
            Ok(())
        })
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(lock(&self.disk).content(self.inode).cached.len() as u64)
    }
}

fn name(number: u64) -> String {
    format!("block file {number} (simulated)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_cut_keeps_what_was_synced_and_chance_decides_on_the_rest() {
        let mut disk = StoreDisk::default();
        let file = disk.create_file(1).expect("nothing fails");
        file.write_at(b"kept", 0).expect("nothing fails");
        file.sync().expect("nothing fails");
        file.write_at(b"LOST", 2).expect("nothing fails");
        let read = |disk: StoreDisk| {
            let file = disk.clone().open_file(1).expect("its name is durable");
            let mut buffer = vec![0; file.bytes().expect("nothing fails") as usize];
            file.read_at(&mut buffer, 0).expect("it is that long");
            buffer
        };
        assert_eq!(read(disk.crashed(Crash::Synced, &mut || true)), b"kept");
        assert_eq!(read(disk.crashed(Crash::Subset, &mut || true)), b"keLOST");
        assert_eq!(read(disk.crashed(Crash::Kill, &mut || false)), b"keLOST");
    }

    #[test]
    fn an_update_that_failed_may_have_happened() {
        for (calls, is_there) in [(0, false), (1, true)] {
            let mut disk = StoreDisk::default();
            disk.fail_after(calls, Fault::Stop);
            let update = Update { puts: vec![(b"k".to_vec(), b"v".to_vec())], removals: vec![] };
            assert!(disk.update(update).is_err());
            assert!(disk.files().is_err(), "a stopped process does nothing more");
            let mut next = disk.crashed(Crash::Synced, &mut || true);
            assert_eq!(!next.catalogue().expect("nothing fails").is_empty(), is_there);
        }
    }

    #[test]
    fn a_removed_file_may_come_back_until_the_next_update() {
        let mut disk = StoreDisk::default();
        let file = disk.create_file(1).expect("nothing fails");
        disk.remove_file(1).expect("nothing fails");
        assert_eq!(file.bytes().expect("who holds it reads it"), 0);
        let files =
            |disk: &StoreDisk| disk.crashed(Crash::Synced, &mut || true).files().expect("nothing fails");
        assert_eq!(files(&disk), [1]);
        disk.update(Update::default()).expect("nothing fails");
        assert!(files(&disk).is_empty());
    }
}
