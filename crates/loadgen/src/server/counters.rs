//! Counters of one server, from either source.

use crate::client::endpoint::Endpoint;

/// The counters of one server at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerCounters {
    /// When the process began, in any unit; where it says so.
    pub began: Option<f64>,
    pub cpu_seconds: f64,
    /// The part outside the kernel, where it is counted apart.
    pub user_seconds: Option<f64>,
    pub resident_bytes: u64,
    pub resident_peak_bytes: Option<u64>,
    pub bytes_written: Option<u64>,
}

/// Why a server's counters could not be read.
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
    /// Whether the process is another one; where none says when it began, its processor time has fallen.
    pub fn is_of_another_process(&self, earlier: &ServerCounters) -> bool {
        match (earlier.began, self.began) {
            (Some(earlier), Some(later)) => later != earlier,
            _ => self.cpu_seconds < earlier.cpu_seconds,
        }
    }
}
