//! Counters that the kernel keeps of a process and of the machine, from `/proc`.

use super::counters::{Error, ServerCounters};
use procfs::process::{Process, Stat};
use procfs::{CurrentSI, KernelStats, ProcResult};

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

/// CPU seconds, in hundredths, and resident bytes of a local process: one small file, cheap enough to be read
/// ten times a second.
pub fn usage(pid: u32) -> Option<(f64, u64)> {
    let stat = Process::new(pid as i32).and_then(|process| process.stat()).ok()?;
    Some((cpu_seconds(&stat), stat.rss * procfs::page_size()))
}

/// CPU seconds of this machine since it started: all processors, except when idle, waiting for the disk, or
/// taken by other guests.
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

/// Of the threads that exist now; 0 where the kernel does not count it.
fn threads_cpu_seconds(process: &Process) -> f64 {
    let ran_ns = process.tasks().into_iter().flatten().filter_map(|task| task.ok()?.schedstat().ok());
    ran_ns.map(|ran| ran.sum_exec_runtime).sum::<u64>() as f64 / 1e9
}
