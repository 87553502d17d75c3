//! Counters of a server, from either source.

use procfs::process::{Process, Stat};
use procfs::{CurrentSI, KernelStats, ProcResult};

use crate::client::endpoint::Endpoint;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerCounters {
    /// Start time of the process, in any unit, if available.
    pub began: Option<f64>,
    pub cpu_seconds: f64,
    /// Time in user mode, if counted separately.
    pub user_seconds: Option<f64>,
    pub resident_bytes: u64,
    pub resident_peak_bytes: Option<u64>,
    pub bytes_written: Option<u64>,
}

/// Error of reading counters.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read /proc/{pid}")]
    Proc { pid: u32, source: procfs::ProcError },
    #[error("read http://{endpoint}/metrics: {reason}")]
    Metrics { endpoint: Endpoint, reason: String },
    #[error("{name} was started anew during the run")]
    Restarted { name: String },
}

impl Error {
    pub fn is_restart(&self) -> bool {
        matches!(self, Error::Restarted { .. })
    }
}

impl ServerCounters {
    /// Reports whether the process was restarted; without a start time, whether its processor time has
    /// decreased.
    pub fn is_of_another_process(&self, earlier: &ServerCounters) -> bool {
        match (earlier.began, self.began) {
            (Some(earlier), Some(later)) => later != earlier,
            _ => self.cpu_seconds < earlier.cpu_seconds,
        }
    }
}

pub(super) fn counters(pid: u32) -> Result<ServerCounters, Error> {
    let counters = || -> ProcResult<ServerCounters> {
        let process = Process::new(pid as i32)?;
        let (stat, status) = (process.stat()?, process.status()?);
        Ok(ServerCounters {
            began: Some(stat.starttime as f64),
            // In hundredths of a second, rounded down; the kernel counts running threads in nanoseconds.
            cpu_seconds: cpu_seconds(&stat).max(threads_cpu_seconds(&process)),
            user_seconds: Some(seconds(stat.utime)),
            resident_bytes: stat.rss * procfs::page_size(),
            resident_peak_bytes: status.vmhwm.map(|peak| peak * 1024),
            // Readable by the same user and by root only; the other counters are useful without it.
            bytes_written: process.io().ok().map(|io| io.write_bytes),
        })
    };
    counters().map_err(|source| Error::Proc { pid, source })
}

/// Returns CPU seconds, in hundredths, and resident bytes of a local process: a single small file, cheap
/// enough to read ten times a second.
pub fn usage(pid: u32) -> Option<(f64, u64)> {
    let stat = Process::new(pid as i32).and_then(|process| process.stat()).ok()?;
    Some((cpu_seconds(&stat), stat.rss * procfs::page_size()))
}

/// Returns the CPU seconds of this machine since boot: all processors, except when idle, waiting for the
/// disk, or used by other guests.
pub fn machine_cpu_seconds() -> Option<f64> {
    let total = KernelStats::current().ok()?.total;
    let interrupts = total.irq.unwrap_or(0) + total.softirq.unwrap_or(0);
    Some(seconds(total.user + total.nice + total.system + interrupts))
}

fn cpu_seconds(stat: &Stat) -> f64 {
    seconds(stat.utime + stat.stime)
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / procfs::ticks_per_second() as f64
}

/// Returns the CPU seconds of the current threads; 0 if the kernel does not count them.
fn threads_cpu_seconds(process: &Process) -> f64 {
    let ran_ns = process.tasks().into_iter().flatten().filter_map(|task| task.ok()?.schedstat().ok());
    ran_ns.map(|ran| ran.sum_exec_runtime).sum::<u64>() as f64 / 1e9
}
