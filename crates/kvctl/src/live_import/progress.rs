//! Progress messages on standard error: bytes or revisions copied, and the lag behind the source.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Interval between progress messages.
const LOG_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of observations ahead of the copy: more than half an hour at one per second.
const OBSERVED_MAX: usize = 2048;

/// Progress of an import, printed periodically.
#[derive(Default)]
pub struct ImportProgress {
    said: Option<Instant>,
    /// Observed revisions that the copy has not reached, oldest first.
    ahead: VecDeque<(Instant, i64)>,
    /// Latest observation that the copy has reached.
    reached: Option<Instant>,
}

impl ImportProgress {
    /// Reports the bytes copied and remaining.
    pub fn copied(&mut self, bytes: u64, remaining: u64) {
        if self.is_due() {
            say(&format!("copied {} of {} MiB", bytes >> 20, (bytes + remaining) >> 20));
        }
    }

    pub fn copied_all(&mut self, bytes: u64) {
        self.said = Some(Instant::now());
        say(&format!("copied {bytes} bytes"));
    }

    /// Reports the revisions of the source and the copy.
    pub fn observed(&mut self, head: i64, revision: i64) {
        let now = Instant::now();
        if self.ahead.len() == OBSERVED_MAX {
            self.ahead.pop_back();
        }
        self.ahead.push_back((now, head));
        while let Some((at, seen)) = self.ahead.front()
            && *seen <= revision
        {
            self.reached = Some(*at);
            self.ahead.pop_front();
        }
        if self.is_due() {
            let time =
                self.reached.map_or_else(String::new, |at| format!(", {:.1} s", (now - at).as_secs_f64()));
            say(&format!("revision {revision}, {} revisions behind{time}", (head - revision).max(0)));
        }
    }

    fn is_due(&mut self) -> bool {
        let is_due = self.said.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
        if is_due {
            self.said = Some(Instant::now());
        }
        is_due
    }
}

/// Prints a message to standard error.
pub fn say(line: &str) {
    let _unwritten = writeln!(io::stderr(), "{line}");
}
