//! Resource usage of a process according to the kernel: memory, processor time, descriptors, threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

/// Frequent enough to catch a peak, at negligible cost.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
const TICKS_PER_SECOND: u64 = 100;

/// Usage of a process at one time. All fields are zero after it has exited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    pub rss_bytes: u64,
    pub cpu: Duration,
    pub descriptors: u64,
    pub threads: u64,
}

impl ProcessUsage {
    pub fn of(pid: u32) -> ProcessUsage {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The command name is in parentheses and may contain any character.
        let fields: Vec<&str> =
            stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect()).unwrap_or_default();
        let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse().ok()).unwrap_or(0);
        // proc_pid_stat(5): 14 utime, 15 stime, 20 num_threads, 24 rss.
        let ticks: u64 = field(14) + field(15);
        ProcessUsage {
            rss_bytes: field(24) * rustix::param::page_size() as u64,
            cpu: Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND),
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |list| list.count() as u64),
            threads: field(20),
        }
    }

    /// The sum over several processes.
    pub fn of_all(pids: &[u32]) -> ProcessUsage {
        pids.iter().map(|pid| ProcessUsage::of(*pid)).fold(ProcessUsage::default(), |sum, one| ProcessUsage {
            rss_bytes: sum.rss_bytes + one.rss_bytes,
            cpu: sum.cpu + one.cpu,
            descriptors: sum.descriptors + one.descriptors,
            threads: sum.threads + one.threads,
        })
    }
}

/// Tracks the peak resident memory while it runs.
pub struct PeakMemory {
    bytes: Arc<AtomicU64>,
    sampler: JoinHandle<()>,
}

impl PeakMemory {
    pub fn watch(pids: Vec<u32>) -> PeakMemory {
        let bytes = Arc::new(AtomicU64::new(0));
        let peak = Arc::clone(&bytes);
        let sampler = tokio::spawn(async move {
            loop {
                peak.fetch_max(ProcessUsage::of_all(&pids).rss_bytes, Ordering::Relaxed);
                tokio::time::sleep(SAMPLE_INTERVAL).await;
            }
        });
        PeakMemory { bytes, sampler }
    }

    pub fn finish(self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for PeakMemory {
    fn drop(&mut self) {
        self.sampler.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_itself() {
        let usage = ProcessUsage::of(std::process::id());
        assert!(usage.rss_bytes > 1 << 20);
        assert!(usage.descriptors > 2);
        assert!(usage.threads > 0);
        assert_eq!(ProcessUsage::of(u32::MAX), ProcessUsage::default());
    }
}
