//! Lines about the progress, on standard error: how far the copy is, and its lag behind the source.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Between two lines about the same phase.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Observations of the source that the copy has not reached. One each second: more than half an hour.
const OBSERVED_MAX: usize = 2048;

/// What was seen and said.
#[derive(Default)]
pub struct ImportProgress {
    said: Option<Instant>,
    /// When the source was at which revision, oldest first: those that the copy has not reached.
    ahead: VecDeque<(Instant, i64)>,
    /// When the source was last seen at a revision that the copy has.
    reached: Option<Instant>,
}

impl ImportProgress {
    /// Bytes of the file so far, and still to come.
    pub fn copied(&mut self, bytes: u64, remaining: u64) {
        if self.is_due() {
            say(&format!("copied {} of {} MiB", bytes >> 20, (bytes + remaining) >> 20));
        }
    }

    pub fn copied_all(&mut self, bytes: u64) {
        self.said = Some(Instant::now());
        say(&format!("copied {bytes} bytes"));
    }

    /// The source is at `head`, and the copy at `revision`.
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
        let is_due = self.said.is_none_or(|at| at.elapsed() >= SAY_EVERY);
        if is_due {
            self.said = Some(Instant::now());
        }
        is_due
    }
}

/// A line for people.
pub fn say(line: &str) {
    let _unwritten = writeln!(io::stderr(), "{line}");
}
