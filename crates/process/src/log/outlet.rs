//! Queue of log lines for an output, and the thread that writes them.
//!
//! * Callers never wait for an output. A line that does not fit the queue is dropped and counted.
//! * The thread writes all queued lines in a batch. The first line after a loss reports the number of lost
//!   lines.
//! * If a write fails, its unwritten lines are lost. The thread continues with later lines.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::Level;

/// Capacity of the queue in bytes: some seconds of debug lines on a slow disk.
const BYTES_MAX: usize = 8 << 20;

/// Number of lines lost by all outputs since the start.
static LOST: AtomicU64 = AtomicU64::new(0);

pub fn lost_lines() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// A line, including its line break.
#[derive(Clone, Debug)]
pub struct QueuedLine {
    pub level: Level,
    pub text: Arc<str>,
}

/// Number of lines that were not written, or only in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwritten(pub usize);

/// Destination of lines. May block, since it has a thread.
pub trait Sink: Send {
    fn write(&mut self, lines: &[QueuedLine]) -> Result<(), Unwritten>;

    /// Reopens a file by its name, after another program has moved it.
    fn reopen(&mut self) {}
}

/// Handle of an output. Cheap to clone.
#[derive(Clone)]
pub struct Outlet(Arc<OutletShared>);

#[derive(Default)]
struct OutletShared {
    queue: Mutex<LineQueue>,
    /// Signaled when there are lines or a reopen request.
    filled: Condvar,
    /// Signaled when all queued lines were written.
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
    /// Starts the thread of an output. `lost` formats the report of lost lines.
    pub fn start(sink: Box<dyn Sink>, lost: impl Fn(u64) -> String + Send + 'static) -> io::Result<Outlet> {
        let shared = Arc::new(OutletShared::default());
        let writer = OutletWriter { shared: Arc::clone(&shared), sink, lost: Box::new(lost) };
        // The thread runs until the process exits.
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

    /// Waits up to `within` until the lines queued so far are written. Blocks.
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
                // After a failure, the loss is reported again later.
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

    /// Waits for lines or a reopen request. Losses are returned only together with lines.
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

    /// Sends each batch, then waits for the result of its write.
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
        // The write of the first line is still in progress.
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
