//! Resource use of the servers during a run: CPU time, memory, bytes written.
//!
//! There are two sources: `/proc` of local processes with known ids, or a server's counters at `/metrics`,
//! which lack the bytes written. Usage is the difference of two readings; memory is taken from the later
//! one.

mod counters; // counters common to both sources
mod foreign; // usage by other programs
pub mod machine; // description of the machine
mod metrics; // counters over HTTP
pub mod with_parent; // programs that die with this one

use counters::ServerCounters;
pub use counters::{Error, machine_cpu_seconds, usage};
pub use foreign::ForeignCpu;
pub use metrics::{ServerMetrics, built_with, server_metrics};

use crate::client::endpoint::Endpoint;
use serde::Serialize;

/// Source of a server's counters.
#[derive(Clone, Debug)]
pub enum Probe {
    /// A local process.
    Process { name: String, pid: u32 },
    /// A server with counters at `/metrics`.
    Metrics(Endpoint),
}

#[derive(Clone, Debug)]
pub struct CounterReading(Vec<ServerCounters>);

/// Resource use of the servers between two readings.
#[derive(Clone, Debug, Serialize)]
pub struct ServerFigures {
    pub processes: Vec<ProcessFigures>,
    /// Number of members of the cluster, measured or not; `None` if the processes were specified explicitly
    /// or the cluster does not report it.
    pub members: Option<usize>,
}

/// Resource use of a server.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessFigures {
    pub name: String,
    pub cpu_seconds: f64,
    /// Time in user mode, if counted separately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_seconds: Option<f64>,
    /// Resident memory at the later reading.
    pub resident_bytes: u64,
    /// Peak since the process started.
    pub resident_peak_bytes: Option<u64>,
    /// Bytes written to storage, as accounted by the kernel.
    pub bytes_written: Option<u64>,
}

pub async fn read(probes: &[Probe]) -> Result<CounterReading, Error> {
    let mut counters = Vec::with_capacity(probes.len());
    for probe in probes {
        counters.push(match probe {
            Probe::Process { pid, .. } => counters::counters(*pid)?,
            Probe::Metrics(endpoint) => metrics::counters(endpoint).await?,
        });
    }
    Ok(CounterReading(counters))
}

/// Returns the resource use between two readings of `probes`. A restarted server counts from zero.
pub fn spent(
    probes: &[Probe],
    earlier: &CounterReading,
    later: &CounterReading,
) -> Result<ServerFigures, Error> {
    assert_eq!(earlier.0.len(), later.0.len(), "readings of the same servers");
    let mut pairs = probes.iter().zip(earlier.0.iter().zip(&later.0));
    if let Some((probe, _)) = pairs.find(|(_, (earlier, later))| later.is_of_another_process(earlier)) {
        return Err(Error::Restarted { name: probe.name() });
    }
    let processes = probes.iter().zip(earlier.0.iter().zip(&later.0)).map(|(probe, (earlier, later))| {
        let written = earlier.bytes_written.zip(later.bytes_written);
        ProcessFigures {
            name: probe.name(),
            cpu_seconds: later.cpu_seconds - earlier.cpu_seconds,
            user_seconds: earlier
                .user_seconds
                .zip(later.user_seconds)
                .map(|(earlier, later)| later - earlier),
            resident_bytes: later.resident_bytes,
            resident_peak_bytes: later.resident_peak_bytes,
            bytes_written: written.map(|(earlier, later)| later.saturating_sub(earlier)),
        }
    });
    Ok(ServerFigures { processes: processes.collect(), members: None })
}

impl CounterReading {
    /// Returns the resident memory of all servers.
    pub fn resident_bytes(&self) -> u64 {
        self.0.iter().map(|counters| counters.resident_bytes).sum()
    }

    /// Returns the resident memory of the largest server.
    pub fn resident_bytes_max(&self) -> u64 {
        self.0.iter().map(|counters| counters.resident_bytes).max().unwrap_or(0)
    }
}

impl Probe {
    pub fn name(&self) -> String {
        match self {
            Probe::Process { name, .. } => name.clone(),
            Probe::Metrics(endpoint) => endpoint.to_string(),
        }
    }
}

impl ServerFigures {
    /// Adds the later resource use of the same servers.
    pub fn merge(&mut self, later: &ServerFigures) {
        assert_eq!(self.processes.len(), later.processes.len(), "figures of the same servers");
        for (ours, theirs) in self.processes.iter_mut().zip(&later.processes) {
            ours.cpu_seconds += theirs.cpu_seconds;
            ours.user_seconds = ours.user_seconds.zip(theirs.user_seconds).map(|(a, b)| a + b);
            ours.resident_bytes = theirs.resident_bytes;
            ours.resident_peak_bytes = theirs.resident_peak_bytes;
            ours.bytes_written = ours.bytes_written.zip(theirs.bytes_written).map(|(a, b)| a + b);
        }
    }

    /// Describes which servers are covered.
    pub fn coverage(&self) -> String {
        match (self.processes.len(), self.members) {
            (1, Some(1)) => "the only member".into(),
            (measured, Some(members)) if measured == members => format!("all {members} members"),
            (measured, Some(members)) => {
                format!("{measured} of {members} members; that of the others is unknown")
            }
            (1, None) => "of one process".into(),
            (measured, None) => format!("of {measured} processes"),
        }
    }

    /// Returns the CPU time of all servers.
    pub fn cpu_seconds(&self) -> f64 {
        self.processes.iter().map(|process| process.cpu_seconds).sum()
    }

    /// Returns the time in user mode; `None` if a server does not report it.
    pub fn user_seconds(&self) -> Option<f64> {
        self.processes.iter().map(|process| process.user_seconds).sum()
    }

    /// Returns the resident memory of all servers.
    pub fn resident_bytes(&self) -> u64 {
        self.processes.iter().map(|process| process.resident_bytes).sum()
    }

    /// Returns the bytes written by all servers; `None` if a server does not report them.
    pub fn bytes_written(&self) -> Option<u64> {
        self.processes.iter().map(|process| process.bytes_written).sum()
    }

    /// Returns the highest peak of any server since its start, if known.
    pub fn resident_peak_bytes_max(&self) -> Option<u64> {
        self.processes.iter().filter_map(|process| process.resident_peak_bytes).max()
    }

    /// Returns the resident memory of the largest server.
    pub fn resident_bytes_max(&self) -> u64 {
        self.processes.iter().map(|process| process.resident_bytes).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_use_of_a_running_process_is_measured() {
        let probes = [Probe::Process { name: "self".into(), pid: std::process::id() }];
        let earlier = read(&probes).await.unwrap();
        let begin = std::time::Instant::now();
        // The kernel counts in ticks of 10 ms, and other processes may use the processor.
        let figures = loop {
            std::hint::black_box((0..1_000_000_u64).fold(0, |sum: u64, n| sum.wrapping_mul(31) ^ n));
            let figures = spent(&probes, &earlier, &read(&probes).await.unwrap()).unwrap();
            if figures.cpu_seconds() > 0.0 {
                break figures;
            }
            assert!(begin.elapsed() < std::time::Duration::from_secs(60), "{figures:?}");
        };
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        let possible = begin.elapsed().as_secs_f64() * cores + 0.1;
        assert!(figures.cpu_seconds() <= 2.0 * possible, "{figures:?} of {possible} s");
        assert!(figures.resident_bytes_max() > 1_000_000, "{figures:?}");
        assert!(figures.bytes_written().is_some(), "{figures:?}");
    }

    #[test]
    fn a_server_that_was_started_anew_has_no_figures() {
        let probes = [Probe::Process { name: "m1".into(), pid: 1 }];
        let reading = |began: Option<f64>, cpu_seconds: f64| {
            let counters = ServerCounters {
                began,
                cpu_seconds,
                user_seconds: None,
                resident_bytes: 1,
                resident_peak_bytes: None,
                bytes_written: None,
            };
            CounterReading(vec![counters])
        };
        let spent = |earlier, later| spent(&probes, &earlier, &later).map(|figures| figures.cpu_seconds());
        assert_eq!(spent(reading(Some(7.0), 1.0), reading(Some(7.0), 3.0)).unwrap(), 2.0);
        assert_eq!(spent(reading(None, 1.0), reading(None, 3.0)).unwrap(), 2.0);
        for (earlier, later) in
            [(reading(Some(7.0), 1.0), reading(Some(8.0), 3.0)), (reading(None, 3.0), reading(None, 1.0))]
        {
            let error = spent(earlier, later).unwrap_err();
            assert_eq!(error.to_string(), "m1 was started anew during the run");
        }
    }

    #[tokio::test]
    async fn a_process_that_does_not_exist_is_named() {
        let probes = [Probe::Process { name: "none".into(), pid: u32::MAX - 1 }];
        let error = read(&probes).await.unwrap_err();
        assert_eq!(error.to_string(), "read /proc/4294967294");
    }
}
