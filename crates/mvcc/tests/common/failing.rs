//! A disk that fails all operations after a given number of them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mvcc::{Backend, BlockFile, Error, LogPosition, MemoryBackend, Result, Update};

/// Number of operations to pass on before all of them fail.
#[derive(Clone)]
pub struct Allowance(Arc<AtomicUsize>);

impl Allowance {
    pub fn of(operations: usize) -> Self {
        Allowance(Arc::new(AtomicUsize::new(operations)))
    }

    fn spend(&self) -> io::Result<()> {
        let spend = |left: usize| left.checked_sub(1);
        match self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend) {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::other("the disk is gone")),
        }
    }

    fn spend_on(&self, attempt: &'static str) -> Result<()> {
        self.spend().map_err(|source| Error::Io { attempt, path: "disk".into(), source })
    }
}

pub struct FailingBackend {
    disk: MemoryBackend,
    allowance: Allowance,
}

struct FailingFile {
    file: Arc<dyn BlockFile>,
    allowance: Allowance,
}

impl FailingBackend {
    pub fn new(disk: MemoryBackend, allowance: &Allowance) -> Self {
        FailingBackend { disk, allowance: allowance.clone() }
    }

    fn wrap(&self, file: Arc<dyn BlockFile>) -> Arc<dyn BlockFile> {
        Arc::new(FailingFile { file, allowance: self.allowance.clone() })
    }
}

impl Backend for FailingBackend {
    fn catalogue(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.disk.catalogue()
    }

    fn update(&mut self, update: Update) -> Result<()> {
        self.allowance.spend_on("update")?;
        self.disk.update(update)?;
        // Executed, but reported as failed: the other meaning of an error.
        self.allowance.spend_on("update")
    }

    fn files(&mut self) -> Result<Vec<u64>> {
        self.disk.files()
    }

    fn create_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>> {
        self.allowance.spend_on("create")?;
        let file = self.disk.create_file(number)?;
        Ok(self.wrap(file))
    }

    fn open_file(&mut self, number: u64) -> Result<Arc<dyn BlockFile>> {
        let file = self.disk.open_file(number)?;
        Ok(self.wrap(file))
    }

    fn remove_file(&mut self, number: u64) -> Result<()> {
        self.allowance.spend_on("remove")?;
        self.disk.remove_file(number)
    }

    fn complete(&mut self, applied: LogPosition) -> Result<()> {
        self.allowance.spend_on("complete")?;
        self.disk.complete(applied)
    }

    fn replace(&mut self, incoming: Box<dyn Backend>) -> Result<()> {
        self.allowance.spend_on("replace")?;
        self.disk.replace(incoming)?;
        self.allowance.spend_on("replace")
    }
}

impl BlockFile for FailingFile {
    fn name(&self) -> String {
        self.file.name()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Err(gone) = self.allowance.spend() {
            // A torn write: half of the bytes arrive.
            self.file.write_at(&bytes[..bytes.len() / 2], offset)?;
            return Err(gone);
        }
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.allowance.spend()?;
        self.file.sync()
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.allowance.spend()?;
        self.file.truncate(bytes)
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }
}
