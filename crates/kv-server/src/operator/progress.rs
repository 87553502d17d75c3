//! Lines about progress. They are for people: they go to standard error.

use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Between two lines about the same wait.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// What was printed last, and when.
pub struct Said {
    line: String,
    at: Instant,
    moved: Instant,
}

impl Said {
    pub fn new() -> Said {
        let now = Instant::now();
        Said { line: String::new(), at: now, moved: now }
    }

    pub fn line(&mut self, line: String, is_progress: bool) {
        let (now, is_new) = (Instant::now(), line != self.line);
        if is_new && is_progress {
            self.moved = now;
        }
        if is_new || now - self.at >= SAY_EVERY {
            say(&line);
            (self.line, self.at) = (line, now);
        }
    }

    /// The line that was printed last.
    pub fn last(self) -> String {
        self.line
    }

    /// How long nothing was progress.
    pub fn without_progress(&self) -> Duration {
        self.moved.elapsed()
    }
}

pub fn say(line: &str) {
    let _unwritten = writeln!(io::stderr(), "{line}");
}
