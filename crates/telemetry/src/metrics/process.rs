//! Operating system statistics of this process, under the names that every Prometheus client uses.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::declare::show;
use process::log;

/// Reads `/proc` on each scrape. Unreadable values are omitted.
#[derive(Debug)]
pub(super) struct ProcessMetrics {
    started: f64,
}

impl ProcessMetrics {
    /// Must be called as the process starts.
    pub fn new() -> ProcessMetrics {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ProcessMetrics { started: since_epoch.as_secs_f64() }
    }
}

#[derive(Default)]
struct ProcessMemory {
    virtual_bytes: Option<u64>,
    resident_bytes: Option<u64>,
}

fn memory() -> ProcessMemory {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = text.split_whitespace().map(|field| field.parse::<u64>().ok());
    let page_bytes = rustix::param::page_size() as u64;
    let mut next = || pages.next().flatten().map(|pages| pages * page_bytes);
    ProcessMemory { virtual_bytes: next(), resident_bytes: next() }
}

/// Returns the resident memory of this process, or None if it cannot be read.
pub fn resident_bytes() -> Option<u64> {
    memory().resident_bytes
}

fn open_files() -> Option<u64> {
    // One of them is the directory being listed.
    std::fs::read_dir("/proc/self/fd").ok().map(|entries| (entries.count() as u64).saturating_sub(1))
}

/// Returns the processor time of this process.
pub fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let cpu = ConstCounter::new(cpu_seconds());
        show(&mut encoder, "process_cpu_seconds", "User and system CPU time spent", &cpu)?;
        let memory = memory();
        let files = open_files();
        let files_max = getrlimit(Resource::Nofile).current;
        let readings = [
            ("process_resident_memory_bytes", "Resident memory", memory.resident_bytes),
            ("process_virtual_memory_bytes", "Virtual memory", memory.virtual_bytes),
            ("process_open_fds", "Open file descriptors", files),
            ("process_max_fds", "Most file descriptors", files_max),
            ("os_fd_used", "Open file descriptors", files),
            ("os_fd_limit", "Most file descriptors", files_max),
        ];
        for (name, help, value) in readings {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            show(&mut encoder, name, help, &gauge)?;
        }
        let lost = ConstCounter::new(log::lost_lines());
        show(&mut encoder, "kv_server_log_lost_lines", "Log lines that an output did not take", &lost)?;
        let started = ConstGauge::new(self.started);
        let help = "Start of the process since the Unix epoch";
        show(&mut encoder, "process_start_time_seconds", help, &started)
    }
}
