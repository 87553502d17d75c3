//! The queue of audit lines, and the thread that writes them.
//!
//! * The thread writes up to 256 queued lines together.
//! * When half of the queue is full, the other half is reserved for addresses with few lines in it: a
//!   client that floods the member does not hide other clients' calls.
//! * A failed write loses its lines. The thread continues with the following ones.
//! * If the file was moved, it is closed, and a new one is created under its name before the next write:
//!   logrotate needs no signal.
//! * A line truncated by a failed write is terminated before the following one.

use std::fs::{File, Metadata};
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tracing_subscriber::fmt::format;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use auth::network;
use config::AuditTarget;
use telemetry::metrics::AuditMetrics;

/// Capacity of the queue: some seconds of a stalled disk. A line has 12 KiB at most, so all of them take 48
/// MiB. Further lines are dropped.
const LINES_MAX: usize = 4096;
/// Number of groups of addresses, by a hash with a secret key.
const GROUPS: usize = 256;
/// Lines of a group when half of the queue is full: an attacker needs 16 groups to fill it.
const GROUP_PART: usize = 32;
/// Maximum number of lines per write.
const BATCH_LINES_MAX: usize = 256;
/// Time limit for writing the remaining lines at exit, so that a stuck target does not block it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the audit log cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("open audit log {path}")]
    Open { path: String, source: std::io::Error },
    #[error("start the audit log thread")]
    Thread(#[source] std::io::Error),
}

enum Item {
    /// A line and the group of its address.
    Line(String, usize),
    /// Acknowledged when all lines before it were written.
    Close(SyncSender<()>),
}

/// The sending side of the queue.
#[derive(Debug)]
pub struct AuditQueue {
    items: SyncSender<Item>,
    waiting: Arc<WaitingLines>,
    hasher: RandomState,
    metrics: AuditMetrics,
}

/// Number of queued lines, by the group of their address.
#[derive(Debug)]
struct WaitingLines {
    lines_max: usize,
    all: AtomicUsize,
    groups: [AtomicUsize; GROUPS],
}

impl WaitingLines {
    fn new(lines_max: usize) -> WaitingLines {
        WaitingLines { lines_max, all: AtomicUsize::new(0), groups: [const { AtomicUsize::new(0) }; GROUPS] }
    }

    /// Counts a line of this group. Returns false if the line must be dropped.
    fn enter(&self, group: usize) -> bool {
        let all = self.all.fetch_add(1, Ordering::Relaxed);
        let own = self.groups[group].fetch_add(1, Ordering::Relaxed);
        let may = all < self.lines_max / 2 || own < (self.lines_max / GROUP_PART).max(1);
        if !may {
            self.leave(group);
        }
        may
    }

    fn leave(&self, group: usize) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        self.groups[group].fetch_sub(1, Ordering::Relaxed);
    }
}

impl AuditQueue {
    /// Opens the target and starts the thread. A file is appended to.
    pub fn start(target: &AuditTarget, metrics: AuditMetrics) -> Result<AuditQueue, AuditError> {
        let to: Box<dyn Write + Send> = match target {
            AuditTarget::Stderr => Box::new(std::io::stderr()),
            AuditTarget::File(path) => {
                let path_text = || path.display().to_string();
                let target = NamedLog::open(path.clone());
                Box::new(target.map_err(|source| AuditError::Open { path: path_text(), source })?)
            }
        };
        let (queue, writer) = new(LINES_MAX, to, metrics);
        let thread = std::thread::Builder::new().name("audit-log".to_owned());
        thread.spawn(move || writer.run()).map_err(AuditError::Thread)?;
        Ok(queue)
    }

    /// Queues a line, without its line break, about a request from `address`.
    pub fn push(&self, line: String, address: Option<IpAddr>) {
        let group = self.group_of(address);
        if !self.waiting.enter(group) {
            self.metrics.lost.inc();
            return;
        }
        match self.items.try_send(Item::Line(line, group)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.waiting.leave(group);
                self.metrics.lost.inc();
            }
        }
    }

    fn group_of(&self, address: Option<IpAddr>) -> usize {
        let hash = self.hasher.hash_one(address.map(network)) % GROUPS as u64;
        usize::try_from(hash).expect("a group is below GROUPS")
    }

    /// Waits until all queued lines are written, for [`CLOSE_TIMEOUT`] at most. Blocks.
    pub fn close(&self) {
        let (written, wait) = sync_channel(1);
        // A full queue means that the target is stuck, so this does not wait for it.
        if self.items.try_send(Item::Close(written)).is_ok() {
            let _stuck = wait.recv_timeout(CLOSE_TIMEOUT);
        }
    }
}

/// A log file, identified by its name.
struct NamedLog {
    path: PathBuf,
    file: File,
}

impl NamedLog {
    fn open(path: PathBuf) -> std::io::Result<NamedLog> {
        let file = open(&path)?;
        Ok(NamedLog { path, file })
    }

    /// Reports whether the name refers to another file than the open one, or to none.
    fn is_moved(&self) -> std::io::Result<bool> {
        let id = |of: Metadata| (of.dev(), of.ino());
        let open = self.file.metadata()?;
        match std::fs::metadata(&self.path) {
            Ok(named) => Ok(id(named) != id(open)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl Write for NamedLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.is_moved()? {
            self.file = open(&self.path)?;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// Opens or creates a file, readable by its owner only. Opening a pipe without a reader fails instead of
/// blocking.
fn open(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    let at_once = OFlags::NONBLOCK.bits().cast_signed();
    let file = options.append(true).create(true).mode(0o600).custom_flags(at_once).open(path)?;
    // Writes block while a pipe is full; lines are queued in the meantime.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Writes the lines in order.
struct LogWriter<W> {
    items: Receiver<Item>,
    waiting: Arc<WaitingLines>,
    to: W,
    metrics: AuditMetrics,
    /// Number of lost lines that the log has reported.
    noted: u64,
    /// The last written byte is inside a line.
    is_cut: bool,
    is_failing: bool,
}

fn new<W: Write>(lines_max: usize, to: W, metrics: AuditMetrics) -> (AuditQueue, LogWriter<W>) {
    let (sender, items) = sync_channel(lines_max);
    let waiting = Arc::new(WaitingLines::new(lines_max));
    let queue = AuditQueue {
        items: sender,
        waiting: Arc::clone(&waiting),
        hasher: RandomState::new(),
        metrics: metrics.clone(),
    };
    (queue, LogWriter { items, waiting, to, metrics, noted: 0, is_cut: false, is_failing: false })
}

impl<W: Write> LogWriter<W> {
    /// Runs until the queue is dropped.
    fn run(mut self) {
        while let Ok(first) = self.items.recv() {
            let (mut lines, mut next) = (Vec::new(), Some(first));
            while let Some(item) = next {
                match item {
                    Item::Line(line, group) => {
                        self.waiting.leave(group);
                        lines.push(line);
                    }
                    Item::Close(written) => {
                        self.write(&std::mem::take(&mut lines));
                        let _waits_no_more = written.send(());
                    }
                }
                next = if lines.len() < BATCH_LINES_MAX { self.items.try_recv().ok() } else { None };
            }
            self.write(&lines);
        }
    }

    fn write(&mut self, lines: &[String]) {
        let lost = self.metrics.lost.get();
        if lines.is_empty() && lost == self.noted {
            return;
        }
        let mut text = String::new();
        if self.is_cut {
            text.push('\n');
        }
        if lost > self.noted {
            text.push_str(&lost_line(lost - self.noted));
            text.push('\n');
        }
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        let (written, result) = write_whole(&mut self.to, text.as_bytes());
        self.is_cut = match text.as_bytes()[..written].last() {
            None => self.is_cut,
            Some(last) => *last != b'\n',
        };
        match result {
            Ok(()) => {
                self.noted = lost;
                self.metrics.lines.inc_by(lines.len() as u64);
                if std::mem::replace(&mut self.is_failing, false) {
                    tracing::info!("audit log is writable again");
                }
            }
            Err(error) => {
                self.metrics.lost.inc_by(lines.len() as u64);
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(%error, "audit log cannot be written; lines are lost");
                }
            }
        }
    }
}

fn lost_line(count: u64) -> String {
    serde_json::json!({ "ts": now(), "lost": count }).to_string()
}

pub(super) fn now() -> String {
    let mut text = String::new();
    // Fails only if the year is out of range.
    let _unwritten = SystemTime.format_time(&mut format::Writer::new(&mut text));
    text
}

/// Returns the number of written bytes, and an error if there are more.
fn write_whole(to: &mut impl Write, bytes: &[u8]) -> (usize, std::io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match to.write(&bytes[written..]) {
            Ok(0) => return (written, Err(ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, to.flush())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode};
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::{Arc, Mutex};

    /// Accepts bytes up to its capacity.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(usize, Vec<u8>)>>);

    impl Disk {
        fn with_room(bytes: usize) -> Disk {
            Disk(Arc::new(Mutex::new((bytes, Vec::new()))))
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().1.clone()).unwrap()
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let mut disk = self.0.lock().unwrap();
            let taken = bytes.len().min(disk.0);
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            disk.0 -= taken;
            disk.1.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn lost_in(line: &str) -> u64 {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["lost"].as_u64().unwrap()
    }

    #[test]
    fn a_full_queue_loses_lines_and_the_log_says_how_many() {
        let (disk, metrics) = (Disk::with_room(usize::MAX), AuditMetrics::default());
        let (queue, writer) = new(2, disk.clone(), metrics.clone());
        for (address, line) in (0..).zip(["a", "b", "c", "d", "e"]) {
            queue.push(line.to_owned(), Some(IpAddr::from([10, 0, 0, address])));
        }
        assert_eq!(metrics.lost.get(), 3);
        drop(queue);
        writer.run();
        let text = disk.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lost_in(lines[0]), &lines[1..]), (3, &["a", "b"][..]));
        assert_eq!((metrics.lines.get(), metrics.lost.get()), (2, 3));
    }

    #[test]
    fn a_client_that_floods_the_queue_leaves_room_to_others() {
        let metrics = AuditMetrics::default();
        let (queue, _writer) = new(LINES_MAX, Disk::default(), metrics.clone());
        let [liar, other] = [1, 2].map(|last| Some(IpAddr::from([10, 0, 0, last])));
        (0..2 * LINES_MAX).for_each(|_| queue.push("refused".to_owned(), liar));
        let lost = metrics.lost.get();
        assert_eq!(2 * LINES_MAX as u64 - lost, LINES_MAX as u64 / 2);
        // They share a group with probability 1/256.
        if queue.group_of(liar) != queue.group_of(other) {
            queue.push("change".to_owned(), other);
            assert_eq!(metrics.lost.get(), lost);
        }
    }

    #[test]
    fn a_full_disk_loses_lines_and_the_next_one_begins_a_line() {
        let (disk, metrics) = (Disk::with_room(7), AuditMetrics::default());
        let (queue, mut writer) = new(8, disk.clone(), metrics.clone());
        writer.write(&["first".to_owned()]);
        writer.write(&["second".to_owned()]);
        writer.write(&["third".to_owned()]);
        assert_eq!((disk.text(), metrics.lost.get()), ("first\ns".to_owned(), 2));
        disk.0.lock().unwrap().0 = usize::MAX;
        queue.push("fourth".to_owned(), None);
        drop(queue);
        writer.run();
        let text = disk.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((&lines[..2], lost_in(lines[2]), lines[3]), (&["first", "s"][..], 2, "fourth"));
        assert_eq!((metrics.lines.get(), metrics.lost.get()), (2, 2));
    }

    #[test]
    fn a_device_that_is_full_stops_nothing() {
        let target = AuditTarget::File("/dev/full".into());
        let metrics = AuditMetrics::default();
        let queue = AuditQueue::start(&target, metrics.clone()).unwrap();
        for line in ["a", "b", "c"] {
            queue.push(line.to_owned(), None);
        }
        let (written, wait) = sync_channel(1);
        queue.items.send(Item::Close(written)).unwrap();
        wait.recv().unwrap();
        assert_eq!((metrics.lines.get(), metrics.lost.get()), (0, 3));
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error() {
        let target = AuditTarget::File("/proc/nothing/audit.log".into());
        let error = AuditQueue::start(&target, AuditMetrics::default()).unwrap_err();
        assert_eq!(error.to_string(), "open audit log /proc/nothing/audit.log");
    }

    #[test]
    fn a_file_that_is_moved_away_is_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let [path, moved] = ["audit.log", "audit.log.1"].map(|name| directory.path().join(name));
        let mut file = NamedLog::open(path.clone()).unwrap();
        write_whole(&mut file, b"one\n").1.unwrap();
        std::fs::rename(&path, &moved).unwrap();
        write_whole(&mut file, b"two\n").1.unwrap();
        // A file of another program is appended to.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "new\n").unwrap();
        write_whole(&mut file, b"three\n").1.unwrap();
        let text = |path| std::fs::read_to_string(path).unwrap();
        assert_eq!((text(&moved), text(&path)), ("one\n".to_owned(), "new\nthree\n".to_owned()));
    }

    #[test]
    fn only_the_owner_may_read_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = open(&directory.path().join("audit.log")).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_pipe_is_an_error_without_a_reader_and_waits_for_the_one_it_has() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let target = AuditTarget::File(path.clone());
        assert!(AuditQueue::start(&target, AuditMetrics::default()).is_err());
        let at_once = OFlags::NONBLOCK.bits().cast_signed();
        let mut reader = File::options().read(true).custom_flags(at_once).open(&path).unwrap();
        let to = open(&path).unwrap();
        assert!(!fcntl_getfl(&to).unwrap().contains(OFlags::NONBLOCK));
        assert_eq!(write_whole(&mut &to, b"line").0, 4);
        let mut read = [0; 8];
        assert_eq!((reader.read(&mut read).unwrap(), &read[..4]), (4, &b"line"[..]));
    }
}
