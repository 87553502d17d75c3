//! The plain HTTP endpoints: liveness, readiness, version, metrics.
//!
//! Paths, bodies, codes and headers are etcd's, since load balancers and probes compare them to the letter.

mod handler; // state shared by handlers

mod checks; // /livez and /readyz
mod health; // /health

mod ui; // the status page

mod gateway; // /v3/: every method with JSON

mod debug; // /debug/vars and profiles

mod access; // origins and hosts

mod router; // paths and their handlers

pub(crate) use access::AllowedValues;
pub(crate) use gateway::Gateway;
pub(crate) use handler::{Http, LinearizableRead, MetricsPage};
pub(crate) use router::{for_hosts, for_probes_of, metrics_router, router};
