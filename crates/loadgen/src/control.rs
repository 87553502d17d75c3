//! What the threads of a run share while it goes on: the wish to stop, and how far it has come.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Stops a run before its end.
#[derive(Debug, Default)]
pub struct Control {
    stopped: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Control {
    /// Ends the run within a moment; what was measured so far is kept. The first reason counts.
    pub fn stop(&self, reason: impl Into<String>) {
        let mut kept = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get_or_insert_with(|| reason.into());
        drop(kept);
        self.stopped.store(true, Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Why the run was stopped, if it was.
    pub fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How far one worker has come. Aligned so that no two workers write to one cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    answered: AtomicU64,
    failed: AtomicU64,
}

impl Counters {
    /// For the one worker that owns these counters.
    pub fn add_answered(&self) {
        // A plain store: nobody else writes.
        self.answered.store(self.answered.load(Relaxed) + 1, Relaxed);
    }

    /// For the one worker that owns these counters.
    pub fn add_failed(&self) {
        self.failed.store(self.failed.load(Relaxed) + 1, Relaxed);
    }

    pub fn answered(&self) -> u64 {
        self.answered.load(Relaxed)
    }

    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }
}
