//! Lines that wait for one output, and the thread that writes them.
//!
//! * No caller waits for an output. A line that finds the queue full is lost, and counted.
//! * The thread writes all lines that wait at once. The next line after a loss says how many were lost.
//! * An output that fails loses the lines that it did not write. The thread goes on with the next ones.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::Level;

/// Bytes of lines that wait for one output: some seconds of debug lines on a disk that hesitates. One more
/// line is lost.
const BYTES_MAX: usize = 8 << 20;

/// Lines lost by all outputs since the start.
static LOST: AtomicU64 = AtomicU64::new(0);

pub fn lost_lines() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// One line with its line break.
#[derive(Clone, Debug)]
pub struct QueuedLine {
    pub level: Level,
    pub text: Arc<str>,
}

/// How many lines were not written, or not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwritten(pub usize);

/// What lines are written to. May block: it has a thread.
pub trait Sink: Send {
    fn write(&mut self, lines: &[QueuedLine]) -> Result<(), Unwritten>;

    /// Opens a file again by its name, after another program has moved it.
    fn reopen(&mut self) {}
}

/// Hands lines over. Cheap to clone.
#[derive(Clone)]
pub struct Outlet(Arc<OutletShared>);

#[derive(Default)]
struct OutletShared {
    queue: Mutex<LineQueue>,
    /// Something waits.
    filled: Condvar,
    /// All was written.
    drained: Condvar,
}

#[derive(Default)]
struct LineQueue {
    lines: Vec<QueuedLine>,
    bytes: usize,
    lost: u64,
    wants_reopen: bool,
    is_writing: bool,
}

impl Outlet {
    /// Starts the thread of an output. `lost` makes the line that counts lost ones.
    pub fn start(sink: Box<dyn Sink>, lost: impl Fn(u64) -> String + Send + 'static) -> io::Result<Outlet> {
        let shared = Arc::new(OutletShared::default());
        let writer = OutletWriter { shared: Arc::clone(&shared), sink, lost: Box::new(lost) };
        // It ends with the process.
        std::thread::Builder::new().name("log".to_owned()).spawn(move || writer.run())?;
        Ok(Outlet(shared))
    }

    pub fn push(&self, line: QueuedLine) {
        let mut queue = self.0.queue.lock();
        if queue.bytes + line.text.len() > BYTES_MAX {
            queue.lost += 1;
            LOST.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.bytes += line.text.len();
        queue.lines.push(line);
        self.0.filled.notify_one();
    }

    /// Waits until the lines before were written, for `within` at most. Blocks.
    pub fn flush(&self, within: Duration) {
        let mut queue = self.0.queue.lock();
        let is_busy = |queue: &mut LineQueue| queue.is_writing || !queue.lines.is_empty();
        self.0.drained.wait_while_for(&mut queue, is_busy, within);
    }

    pub fn reopen(&self) {
        self.0.queue.lock().wants_reopen = true;
        self.0.filled.notify_one();
    }
}

struct OutletWriter {
    shared: Arc<OutletShared>,
    sink: Box<dyn Sink>,
    lost: Box<dyn Fn(u64) -> String + Send>,
}

impl OutletWriter {
    fn run(mut self) {
        loop {
            let (lines, lost, wants_reopen) = self.next();
            if wants_reopen {
                self.sink.reopen();
            }
            let mut again = 0;
            if lost > 0 {
                let text = (self.lost)(lost).into();
                let said = self.sink.write(&[QueuedLine { level: Level::WARN, text }]);
                // The line that counts is made again.
                again = if said.is_ok() { 0 } else { lost };
            }
            let result = if lines.is_empty() { Ok(()) } else { self.sink.write(&lines) };
            let failed = result.map_or_else(|Unwritten(lines)| lines as u64, |()| 0);
            let mut queue = self.shared.queue.lock();
            queue.lost += again + failed;
            LOST.fetch_add(failed, Ordering::Relaxed);
            queue.is_writing = false;
            self.shared.drained.notify_all();
        }
    }

    /// What waits, once something does. Losses are said with the next line.
    fn next(&self) -> (Vec<QueuedLine>, u64, bool) {
        let mut queue = self.shared.queue.lock();
        self.shared.filled.wait_while(&mut queue, |queue| queue.lines.is_empty() && !queue.wants_reopen);
        queue.is_writing = true;
        queue.bytes = 0;
        let lost = if queue.lines.is_empty() { 0 } else { std::mem::take(&mut queue.lost) };
        (std::mem::take(&mut queue.lines), lost, std::mem::take(&mut queue.wants_reopen))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    fn line(text: &str) -> QueuedLine {
        QueuedLine { level: Level::INFO, text: text.into() }
    }

    /// Sends each batch, and waits for leave to end its write: Err fails it.
    struct Slow(SyncSender<Vec<String>>, Receiver<Result<(), Unwritten>>);

    impl Sink for Slow {
        fn write(&mut self, lines: &[QueuedLine]) -> Result<(), Unwritten> {
            self.0.send(lines.iter().map(|line| line.text.to_string()).collect()).unwrap();
            self.1.recv().unwrap()
        }
    }

    fn slow() -> (Outlet, Receiver<Vec<String>>, SyncSender<Result<(), Unwritten>>) {
        let (batches, written) = sync_channel(8);
        let (leave, waits) = sync_channel(8);
        let outlet = Outlet::start(Box::new(Slow(batches, waits)), |lost| format!("lost {lost}")).unwrap();
        (outlet, written, leave)
    }

    #[test]
    fn an_output_that_stands_still_holds_up_no_caller_and_its_losses_are_said() {
        let (outlet, written, leave) = slow();
        outlet.push(line("first"));
        assert_eq!(written.recv().unwrap(), ["first"]);
        // The write of the first line has not ended.
        let large = "x".repeat(BYTES_MAX - 1);
        let before = lost_lines();
        for text in [&large, "a", "too much", "as well"] {
            outlet.push(line(text));
        }
        assert!(lost_lines() >= before + 2);
        outlet.flush(Duration::from_millis(1));
        leave.send(Ok(())).unwrap();
        assert_eq!(written.recv().unwrap(), ["lost 2"]);
        leave.send(Ok(())).unwrap();
        assert_eq!(written.recv().unwrap(), [&large, "a"]);
        leave.send(Ok(())).unwrap();
        outlet.flush(Duration::from_secs(60));
        outlet.push(line("later"));
        assert_eq!(written.recv().unwrap(), ["later"]);
    }

    #[test]
    fn lines_of_a_failed_write_are_counted_with_the_next_one() {
        let (outlet, written, leave) = slow();
        outlet.push(line("a"));
        assert_eq!(written.recv().unwrap(), ["a"]);
        leave.send(Err(Unwritten(1))).unwrap();
        outlet.flush(Duration::from_secs(60));
        outlet.push(line("b"));
        for wanted in ["lost 1", "b"] {
            assert_eq!(written.recv().unwrap(), [wanted]);
            leave.send(Err(Unwritten(1))).unwrap();
        }
        outlet.flush(Duration::from_secs(60));
        outlet.push(line("c"));
        assert_eq!(written.recv().unwrap(), ["lost 2"]);
        leave.send(Ok(())).unwrap();
        assert_eq!(written.recv().unwrap(), ["c"]);
    }

    #[test]
    fn lines_of_a_batch_that_were_written_are_not_counted() {
        let (outlet, written, leave) = slow();
        outlet.push(line("first"));
        assert_eq!(written.recv().unwrap(), ["first"]);
        for text in ["a", "b", "c"] {
            outlet.push(line(text));
        }
        leave.send(Ok(())).unwrap();
        assert_eq!(written.recv().unwrap(), ["a", "b", "c"]);
        leave.send(Err(Unwritten(1))).unwrap();
        outlet.flush(Duration::from_secs(60));
        outlet.push(line("d"));
        assert_eq!(written.recv().unwrap(), ["lost 1"]);
    }
}
