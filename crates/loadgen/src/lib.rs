//! The load generator: a closed or open loop of requests against any etcd-compatible server, and watchers of
//! the written keys.
//!
//! ```text
//!   Workload (what) ─┐
//!   Schedule (when) ─┼─▶ Worker × threads ──▶ Tally ──▶ output
//!   Link × conns ────┘
//! ```
//!
//! As a library: a [`Run`] describes a run, [`Run::measure`] executes it, and a [`CallObserver`] is called for
//! each acknowledged write. An [`OpenWatchers`] in the run adds watchers. Each folder uses only the folders
//! above it in this list.

mod stats; // counters and coarse histograms
mod workload; // positions become requests

mod client; // endpoints, TLS, connections, calls
mod load; // loads as runs
mod run; // schedule, workers, results
mod server; // CPU, memory and disk use of the servers and of this machine

mod output; // statistics of a run, and their text

mod compare; // suites on one system or two

pub mod cli; // the program

pub use bench_report::model::{Isolation, KeyOrder, Locker, Pace, Values};
pub use client::endpoint::Endpoint;
pub use client::failure::{CallFailure, Code};
pub use output::summary::Summary;
pub use run::recorder::Tally;
pub use run::results::Measurement;
pub use run::watchers::{Awaits, OpenWatchers};
pub use run::worker::CallObserver;
pub use run::{ActiveRun, Run};
pub use workload::kubernetes::Kubernetes;
pub use workload::stm::Stm;
pub use workload::{Workload, Writes};
