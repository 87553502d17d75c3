//! The file format of `verify --json`, which `report` reads.

use crate::compare;
use crate::server::machine;
use crate::verify::{Settings, VerifyReport};
use bench_report::model::Machine;
use bench_report::number;
use serde::{Deserialize, Serialize};

/// Distinguishes these files from reports.
pub const KIND: &str = "verify";
/// Incremented when readers of older files would misread new ones.
const FORMAT: u32 = 1;

/// An execution of `verify`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VerifyDocument {
    pub format: u32,
    pub kind: String,
    /// Command line as entered, quoted for a shell.
    pub command: String,
    /// Version and commit of the load generator.
    pub loadgen: String,
    pub commit: Option<String>,
    pub started_unix_seconds: u64,
    pub machine: Machine,
    pub endpoints: Vec<String>,
    /// Number of unreachable, thus unchecked, members.
    #[serde(default)]
    pub unreached: usize,
    pub rate: f64,
    pub clients: usize,
    pub keys: u32,
    pub leases: usize,
    /// True if a comparison of the members' hashes was requested.
    #[serde(default)]
    pub hashes_wanted: bool,
    /// Faults injected by a proxy in front of the first member, with counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lies: Vec<(String, u64)>,
    #[serde(flatten)]
    pub report: VerifyReport,
}

impl VerifyDocument {
    /// Describes a run that starts now.
    pub fn begin(settings: &Settings, command: String) -> Self {
        Self {
            format: FORMAT,
            kind: KIND.into(),
            command,
            loadgen: env!("CARGO_PKG_VERSION").into(),
            commit: compare::build_commit(),
            started_unix_seconds: machine::unix_seconds(),
            machine: machine::describe(),
            endpoints: settings.endpoints.iter().map(ToString::to_string).collect(),
            unreached: 0,
            rate: settings.rate,
            clients: settings.clients,
            keys: settings.keys,
            leases: settings.leases,
            hashes_wanted: settings.hash_interval.is_some(),
            lies: Vec::new(),
            report: VerifyReport::default(),
        }
    }

    /// Reports whether everything was checked without a contradiction.
    pub fn is_clean(&self) -> bool {
        let VerifyReport { violation, failed, .. } = &self.report;
        violation.is_none() && failed.is_none() && self.unchecked().is_empty()
    }

    /// Lists the requested checks that did not happen.
    pub fn unchecked(&self) -> Vec<String> {
        let VerifyReport { checked, violation, undecided, behind, .. } = &self.report;
        let mut all = Vec::new();
        if self.report.is_empty() {
            all.push("anything: no write or no linearizable read was answered".into());
        }
        if self.unreached > 0 {
            all.push(format!("{}, without an answer", number::counted(self.unreached, "member")));
        }
        if *undecided > 0 {
            let operations = number::counted(*undecided, "operation");
            all.push(format!("{operations}, whose revision no watcher reached"));
        }
        all.extend(behind.iter().map(|endpoint| format!("{endpoint} to the end, as its watcher is behind")));
        if self.hashes_wanted && self.endpoints.len() > 1 && checked.hashes == 0 {
            all.push("the members' hashes: no two were of one revision".into());
        }
        for (lie, times) in self.lies.iter().filter(|_| violation.is_none()) {
            all.push(format!(
                "the law that the fault {lie} breaks: it was there {times} times, and not found"
            ));
        }
        all
    }

    /// Reads a value of kind [`KIND`].
    pub fn read(value: serde_json::Value) -> Result<Self, String> {
        match value.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            format => return Err(format!("it has format {format:?}, this program reads {FORMAT}")),
        }
        serde_json::from_value(value).map_err(|error| error.to_string())
    }
}
