//! Runs steps until the operation is complete, and prints its progress to standard error.

use std::error::Error;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use tonic::Status;

use super::client::may_pass;

const STEP_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum interval between lines about the same wait.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Result of a step.
pub enum StepReport {
    /// A step was taken. Counts as progress if the line differs from the previous one.
    Moved(String),
    /// A member is catching up. Printed periodically.
    Nears {
        line: String,
        is_nearer: bool,
    },
    /// No step is possible yet.
    Waits(String),
    Done(String),
}

/// Failure of an operation; `R` is a rejection by its plan.
#[derive(Debug, thiserror::Error)]
pub enum RunError<R: Error + 'static> {
    #[error(transparent)]
    Refused(R),
    #[error("{0}")]
    Call(String),
    #[error("no progress within {seconds} s: {reason}. Rerun to resume")]
    Stuck { seconds: u64, reason: String },
}

/// Runs steps until the operation is complete, or until `patience` passes without progress.
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
            StepReport::Moved(line) => said.line(line, true, false),
            StepReport::Nears { line, is_nearer } => said.line(line, is_nearer, true),
            StepReport::Waits(line) => said.line(line, false, false),
        }
        if said.moved.elapsed() >= patience {
            return Err(RunError::Stuck { seconds: patience.as_secs(), reason: said.line });
        }
        tokio::time::sleep(STEP_INTERVAL).await;
    }
}

/// Converts a failed call to a wait if it may succeed later, otherwise to an error.
pub fn later<R: Error + 'static>(status: &Status, action: &str) -> Result<StepReport, RunError<R>> {
    let line = format!("{action}: {}", status.message());
    if may_pass(status) { Ok(StepReport::Waits(line)) } else { Err(RunError::Call(line)) }
}

pub fn say(line: &str) {
    let _unwritten = writeln!(io::stderr(), "{line}");
}

/// Last printed line, and its time.
struct PrintedLine {
    line: String,
    is_gradual: bool,
    at: Instant,
    /// Time of the last progress.
    moved: Instant,
}

impl PrintedLine {
    fn new() -> PrintedLine {
        let now = Instant::now();
        PrintedLine { line: String::new(), is_gradual: false, at: now, moved: now }
    }

    /// Prints a line if it is due. `is_gradual` is true for a line that changes during a single wait.
    fn line(&mut self, line: String, is_progress: bool, is_gradual: bool) {
        let (now, is_new) = (Instant::now(), line != self.line);
        if is_new && is_progress {
            self.moved = now;
        }
        let is_same_wait = is_gradual && self.is_gradual;
        if is_new && !is_same_wait || now - self.at >= LOG_INTERVAL {
            say(&line);
            (self.line, self.at, self.is_gradual) = (line, now, is_gradual);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::plan::ReplaceRefusal;

    #[tokio::test]
    async fn a_member_that_comes_no_nearer_is_given_up_though_its_goal_moves() {
        let mut of = 10;
        let ended = run::<ReplaceRefusal>(Duration::from_millis(1), async || {
            of += 1;
            Ok(StepReport::Nears { line: format!("entry 5 of {of}"), is_nearer: of == 11 })
        });
        assert!(matches!(ended.await, Err(RunError::Stuck { .. })));
    }
}
