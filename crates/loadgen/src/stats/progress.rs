//! State shared by the threads of a run: the request to stop, and the progress.

use crate::stats::histogram::{self, StepCounts};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Stops a run early.
#[derive(Debug, Default)]
pub struct Control {
    stopped: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Control {
    /// Stops the run within 50 ms and retains its results so far. The first reason wins.
    pub fn stop(&self, reason: impl Into<String>) {
        let mut kept = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get_or_insert_with(|| reason.into());
        drop(kept);
        self.stopped.store(true, Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Returns the reason of the stop, if any.
    pub fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Requests currently without a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingCalls {
    pub in_flight: u64,
    /// Due requests that no connection has accepted yet.
    pub overdue: u64,
    /// Start of the latency of the oldest request, relative to the start of the run.
    pub oldest: Option<Duration>,
}

impl WaitingCalls {
    pub fn add(&mut self, other: WaitingCalls) {
        self.in_flight += other.in_flight;
        self.overdue += other.overdue;
        self.oldest = self.oldest.into_iter().chain(other.oldest).min();
    }
}

/// Progress of a worker. Aligned so that no two workers write to the same cache line.
///
/// Only that worker writes, so plain stores suffice.
#[derive(Debug)]
#[repr(align(128))]
pub struct WorkerCounters {
    answered: AtomicU64,
    failed: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    latencies: [AtomicU32; histogram::STEPS],
    failures: Mutex<BTreeMap<u16, u64>>,
    /// Latest snapshot, published by the worker several times a second.
    waiting: Mutex<WaitingCalls>,
}

impl Default for WorkerCounters {
    fn default() -> Self {
        Self {
            answered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            latencies: [const { AtomicU32::new(0) }; histogram::STEPS],
            failures: Mutex::default(),
            waiting: Mutex::default(),
        }
    }
}

impl WorkerCounters {
    pub fn add_answered(&self, latency_ns: u64) {
        add(&self.answered, 1);
        let step = &self.latencies[histogram::step_of(latency_ns)];
        step.store(step.load(Relaxed).saturating_add(1), Relaxed);
    }

    pub fn add_failed(&self, code: u16) {
        add(&self.failed, 1);
        *self.failures.lock().unwrap_or_else(PoisonError::into_inner).entry(code).or_default() += 1;
    }

    /// Resets the counters at the start of the run.
    pub fn reset(&self) {
        let counts = [&self.answered, &self.failed, &self.sent_bytes, &self.received_bytes];
        counts.iter().for_each(|count| count.store(0, Relaxed));
        self.latencies.iter().for_each(|count| count.store(0, Relaxed));
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.set_waiting(WaitingCalls::default());
    }

    pub fn add_sent(&self, bytes: usize) {
        add(&self.sent_bytes, bytes as u64);
    }

    pub fn add_received(&self, bytes: usize) {
        add(&self.received_bytes, bytes as u64);
    }

    pub fn answered(&self) -> u64 {
        self.answered.load(Relaxed)
    }

    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// Counts the failed calls by code.
    pub fn failures(&self) -> BTreeMap<u16, u64> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_waiting(&self, waiting: WaitingCalls) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = waiting;
    }

    pub fn waiting(&self) -> WaitingCalls {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes sent and received by the worker's connections.
    pub fn bytes(&self) -> (u64, u64) {
        (self.sent_bytes.load(Relaxed), self.received_bytes.load(Relaxed))
    }

    /// Returns the latencies so far, at a low resolution.
    pub fn latencies(&self) -> StepCounts {
        StepCounts::of(std::array::from_fn(|step| self.latencies[step].load(Relaxed)))
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed) + more, Relaxed);
}
