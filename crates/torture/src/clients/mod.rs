//! Clients, the responses they receive, and the laws that follow from them.

pub(crate) mod claim; // client responses, and the laws that follow
pub(crate) mod client; // the calls
pub(crate) mod filling; // initial keys
pub(crate) mod record; // many rounds of load, and the checks against members
pub(crate) mod workload; // clients that write and record
