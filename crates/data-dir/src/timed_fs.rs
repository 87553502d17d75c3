//! The machine's file system as the log uses it, with every write and every sync timed.
//!
//! The log itself knows no clock, and its caller sees a group only as a whole; what a write costs and what a
//! sync costs shows here alone. Two readings of the clock per call, next to a call of the kernel.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use wal::{File, Fs, RealFile, RealFs};

use telemetry::metrics::Metrics;

/// The file system with its figures.
#[derive(Clone, Debug)]
pub struct TimedFs {
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
pub struct TimedFile {
    file: RealFile,
    metrics: Arc<Metrics>,
}

impl TimedFs {
    pub fn new(metrics: Arc<Metrics>) -> TimedFs {
        TimedFs { metrics }
    }

    fn timed(&self, file: RealFile) -> TimedFile {
        TimedFile { file, metrics: Arc::clone(&self.metrics) }
    }
}

impl Fs for TimedFs {
    type File = TimedFile;

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealFs.create_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<TimedFile> {
        RealFs.create(path).map(|file| self.timed(file))
    }

    fn open(&self, path: &Path) -> io::Result<TimedFile> {
        RealFs.open(path).map(|file| self.timed(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFs.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealFs.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealFs.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealFs.sync_dir(dir)
    }
}

impl File for TimedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let began = Instant::now();
        self.file.write_at(offset, bytes)?;
        self.metrics.disk.wal_write_seconds.observe(began.elapsed().as_secs_f64());
        self.metrics.disk.log_written_bytes.inc_by(bytes.len() as u64);
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buffer)
    }

    fn sync_data(&self) -> io::Result<()> {
        let began = Instant::now();
        self.file.sync_data()?;
        let took = began.elapsed();
        self.metrics.disk.wal_sync_seconds.observe(took.as_secs_f64());
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.metrics.sync_slowest_us.fetch_max(microseconds, Ordering::Relaxed);
        self.metrics.syncs.fetch_add(1, Ordering::Relaxed);
        self.metrics.syncs_us.fetch_add(microseconds, Ordering::Relaxed);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
