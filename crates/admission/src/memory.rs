//! The limit on this process's memory (`--memory-limit`), and the part of it available to large requests.
//!
//! ```text
//!   resident memory ──every 20 ms──▶ left = line − resident − granted since ──▶ gates, bodies, answers
//! ```
//!
//! * The line is seven eighths of the limit. The rest is for memory that is not admitted: Raft, apply,
//!   buffers of connections, small calls, and freed memory that the allocator retains.
//! * A grant counts for two samples. By then it is resident, or was released.
//! * Calls do not wait here. They wait at their gates, which check again after each sample.
//! * Small requests are always granted: lease renewals, elections and health checks are small.
//! * Without a limit everything is granted, and there is no sampling.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use telemetry::metrics::resident_bytes;

/// Copying 10 MB takes some milliseconds, so a sample is not far off. A sample takes 10 µs.
const SAMPLE: Duration = Duration::from_millis(20);
/// Smaller requests are always granted.
pub const SMALL_GRANT_BYTES: u64 = 64 << 10;

/// The memory limit. See the module documentation. The default is no limit.
#[derive(Debug)]
pub struct MemoryLimit {
    /// Admission line in bytes; `u64::MAX` without a limit.
    line: u64,
    resident: AtomicU64,
    /// Bytes granted since the latest sample, and between the two latest.
    granted: AtomicU64,
    granted_before: AtomicU64,
    refused: AtomicU64,
}

impl Default for MemoryLimit {
    fn default() -> Self {
        MemoryLimit::new(None)
    }
}

impl MemoryLimit {
    /// Returns a limit in bytes.
    pub fn new(limit: Option<u64>) -> MemoryLimit {
        MemoryLimit {
            line: limit.map_or(u64::MAX, |limit| limit - limit / 8),
            resident: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            granted_before: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    pub fn is_on(&self) -> bool {
        self.line < u64::MAX
    }

    /// Returns the bytes that may be granted now; None without a limit.
    pub fn left(&self) -> Option<u64> {
        let taken =
            self.resident.load(Relaxed) + self.granted.load(Relaxed) + self.granted_before.load(Relaxed);
        self.is_on().then(|| self.line.saturating_sub(taken))
    }

    /// The `part`-th part of what may be granted in all; the largest number without a limit.
    pub fn part(&self, part: u64) -> u64 {
        if self.is_on() { self.line / part } else { u64::MAX }
    }

    /// Reports whether less is left than a large response takes.
    pub fn is_short(&self) -> bool {
        self.left().is_some_and(|left| left < self.line / 16)
    }

    /// Grants `bytes`, if enough is left.
    pub fn grant(&self, bytes: u64) -> bool {
        let Some(left) = self.left() else { return true };
        // Two callers may read the same value. The memory above the line covers that.
        if bytes > left && bytes > SMALL_GRANT_BYTES {
            return false;
        }
        self.granted.fetch_add(bytes, Relaxed);
        true
    }

    /// Counts a request that waits or fails because too little memory is left.
    pub fn note_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Returns the number of requests that waited or failed because too little was left.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    pub(super) fn note(&self, resident: u64) {
        self.resident.store(resident, Relaxed);
        self.granted_before.store(self.granted.swap(0, Relaxed), Relaxed);
    }
}

/// Samples the memory periodically, and lets waiting calls check again.
pub fn follow(limit: &Arc<MemoryLimit>, look_again: impl Fn() + Send + 'static) {
    if !limit.is_on() {
        return;
    }
    let limit = Arc::clone(limit);
    limit.note(resident_bytes().unwrap_or(0));
    tokio::spawn(async move {
        let mut samples = interval(SAMPLE);
        samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            samples.tick().await;
            if let Some(resident) = resident_bytes() {
                limit.note(resident);
                look_again();
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_granted_counts_until_two_samples_saw_it() {
        let limit = MemoryLimit::new(Some(80 * MIB));
        limit.note(30 * MIB);
        assert_eq!(limit.left(), Some(40 * MIB), "an eighth is not given");
        assert!(limit.grant(25 * MIB) && !limit.grant(16 * MIB) && limit.grant(10 * MIB));
        assert_eq!(limit.left(), Some(5 * MIB));
        limit.note(30 * MIB);
        assert_eq!(limit.left(), Some(5 * MIB), "it may not be resident yet");
        limit.note(60 * MIB);
        assert_eq!(limit.left(), Some(10 * MIB));
    }

    #[test]
    fn small_requests_pass_beyond_the_line() {
        let limit = MemoryLimit::new(Some(8 * MIB));
        limit.note(100 * MIB);
        assert!(limit.is_short() && !limit.grant(SMALL_GRANT_BYTES + 1) && limit.grant(SMALL_GRANT_BYTES));
    }

    #[test]
    fn without_a_limit_everything_is_granted() {
        let limit = MemoryLimit::default();
        limit.note(u64::MAX / 2);
        assert!(limit.grant(u64::MAX / 4) && !limit.is_short());
        assert_eq!(limit.left(), None);
    }
}
