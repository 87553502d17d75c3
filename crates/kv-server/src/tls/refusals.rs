//! Failed handshakes in the log: at most one line per second, since anyone can cause them.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

const LINE_EVERY: Duration = Duration::from_secs(1);

/// What was logged, and what was not.
#[derive(Default)]
pub struct Refusals(Mutex<Said>);

#[derive(Default)]
struct Said {
    logged: Option<Instant>,
    unlogged: u64,
}

impl Refusals {
    pub fn note(&self, port: &'static str, remote: IpAddr, reason: &str) {
        if let Some(unlogged) = self.0.lock().note(Instant::now()) {
            let message = "rejected connection: the TLS handshake failed";
            tracing::warn!(port, remote_addr = %remote, error = reason, unlogged, message);
        }
    }
}

impl Said {
    /// Whether to log, and how many others were not.
    fn note(&mut self, now: Instant) -> Option<u64> {
        if self.logged.is_some_and(|logged| now < logged + LINE_EVERY) {
            self.unlogged += 1;
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_counts_the_others() {
        let (mut said, now) = (Said::default(), Instant::now());
        assert_eq!(said.note(now), Some(0));
        assert_eq!((0..5).filter_map(|_| said.note(now)).count(), 0);
        assert_eq!(said.note(now + LINE_EVERY), Some(5));
    }
}
