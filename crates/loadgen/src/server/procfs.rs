//! What the kernel counts of a process: `/proc/PID/{stat,status,io}`.

use super::{Counters, Error};

/// Clock ticks per second in `/proc/PID/stat`: fixed by Linux's interface to programs on every architecture we run on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads the counters of process `pid`.
pub(super) fn counters(pid: u32) -> Result<Counters, Error> {
    let (stat_path, stat) = read(pid, "stat")?;
    let (status_path, status) = read(pid, "status")?;
    let cpu_seconds = cpu_seconds(&stat).ok_or(Error::ProcFormat { path: stat_path })?;
    // In hundredths of a second, rounded down; its living threads count in nanoseconds.
    let cpu_seconds = cpu_seconds.max(threads_cpu_seconds(pid));
    let resident = kibibytes(&status, "VmRSS:").ok_or(Error::ProcFormat { path: status_path })?;
    // Readable by the same user and by root only; without it the rest is still worth having.
    let io = read(pid, "io").ok();
    Ok(Counters {
        cpu_seconds,
        resident_bytes: resident * 1024,
        resident_peak_bytes: kibibytes(&status, "VmHWM:").map(|peak| peak * 1024),
        bytes_written: io.and_then(|(_, io)| number_after(&io, "write_bytes:")),
    })
}

/// Processor seconds, in hundredths, and resident bytes: two small files.
pub(super) fn glance(pid: u32) -> Option<(f64, u64)> {
    let (_, stat) = read(pid, "stat").ok()?;
    let (_, status) = read(pid, "status").ok()?;
    Some((cpu_seconds(&stat)?, kibibytes(&status, "VmRSS:")? * 1024))
}

/// All but idle and waiting for the disk, of all processors.
pub(super) fn machine_cpu_seconds() -> Option<f64> {
    busy_seconds(&std::fs::read_to_string("/proc/stat").ok()?)
}

fn busy_seconds(stat: &str) -> Option<f64> {
    let fields = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = fields.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq; time stolen by other guests is nobody's here.
    let busy = ticks.get(..3)?.iter().chain(ticks.get(5..7)?).sum::<u64>();
    Some(busy as f64 / TICKS_PER_SECOND)
}

fn read(pid: u32, name: &str) -> Result<(String, String), Error> {
    let path = format!("/proc/{pid}/{name}");
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(source) => Err(Error::Proc { path, source }),
    }
}

/// User and kernel time of all threads. The second field is a name in parentheses that may hold anything.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11); // after the name: state is field 3, utime 14, stime 15
    let user: u64 = fields.next()?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    Some((user + kernel) as f64 / TICKS_PER_SECOND)
}

/// Of the threads that live now; 0 where the kernel does not tell.
fn threads_cpu_seconds(pid: u32) -> f64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0.0 };
    let ran_ns = |task: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    tasks.filter_map(ran_ns).sum::<u64>() as f64 / 1e9
}

fn kibibytes(status: &str, name: &str) -> Option<u64> {
    number_after(status, name)
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "42 (a ) name) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 9 0 12345 1000 200";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("42 nothing"), None);
    }

    #[test]
    fn a_machine_is_busy_with_all_but_idling_and_waiting() {
        assert_eq!(busy_seconds("cpu  100 10 50 900 70 5 35 999 0 0\ncpu0 1 1 1 1\n"), Some(2.0));
        assert_eq!(busy_seconds("cpu  100 10"), None);
    }

    #[test]
    fn numbers_are_found_by_their_name() {
        let status = "Name:\tx\nVmHWM:\t   900 kB\nVmRSS:\t   800 kB\n";
        assert_eq!(kibibytes(status, "VmRSS:"), Some(800));
        assert_eq!(kibibytes(status, "VmSwap:"), None);
        let io = "wchar: 9\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n";
        assert_eq!(number_after(io, "write_bytes:"), Some(4096));
    }
}
