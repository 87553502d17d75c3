//! Takes steps until nothing is left to do, and prints lines about progress. They are for people: they go to
//! standard error.

use std::error::Error;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use tonic::Status;

use super::client::may_pass;

/// Between two steps.
const STEP_EVERY: Duration = Duration::from_millis(500);
/// Between two lines about the same wait.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// What a look at the cluster led to.
pub enum StepReport {
    /// A step was taken, or a member has come so far: progress, if the line is another one than before.
    Moved(String),
    /// Nothing could be done yet.
    Waits(String),
    Done(String),
}

/// Why a run ended early; `R` is what the plan refuses.
#[derive(Debug, thiserror::Error)]
pub enum RunError<R: Error + 'static> {
    #[error(transparent)]
    Refused(R),
    #[error("{0}")]
    Call(String),
    #[error("no progress within {seconds} s: {reason}. Run again to go on")]
    Stuck { seconds: u64, reason: String },
}

/// Takes steps until one says that all is done, or until nothing was progress for `patience`.
pub async fn run<R: Error + 'static>(
    patience: Duration,
    mut step: impl AsyncFnMut() -> Result<StepReport, RunError<R>>,
) -> Result<(), RunError<R>> {
    let mut said = PrintedLine::new();
    loop {
        match step().await? {
            StepReport::Done(line) => {
                say(&line);
                return Ok(());
            }
            StepReport::Moved(line) => said.line(line, true),
            StepReport::Waits(line) => said.line(line, false),
        }
        if said.moved.elapsed() >= patience {
            return Err(RunError::Stuck { seconds: patience.as_secs(), reason: said.line });
        }
        tokio::time::sleep(STEP_EVERY).await;
    }
}

/// The line of a call that may succeed later; otherwise the end.
pub fn later<R: Error + 'static>(status: &Status, action: &str) -> Result<StepReport, RunError<R>> {
    let line = format!("{action}: {}", status.message());
    if may_pass(status) { Ok(StepReport::Waits(line)) } else { Err(RunError::Call(line)) }
}

pub fn say(line: &str) {
    let _unwritten = writeln!(io::stderr(), "{line}");
}

/// What was printed last, and when.
struct PrintedLine {
    line: String,
    at: Instant,
    /// The last progress.
    moved: Instant,
}

impl PrintedLine {
    fn new() -> PrintedLine {
        let now = Instant::now();
        PrintedLine { line: String::new(), at: now, moved: now }
    }

    fn line(&mut self, line: String, is_progress: bool) {
        let (now, is_new) = (Instant::now(), line != self.line);
        if is_new && is_progress {
            self.moved = now;
        }
        if is_new || now - self.at >= SAY_EVERY {
            say(&line);
            (self.line, self.at) = (line, now);
        }
    }
}
