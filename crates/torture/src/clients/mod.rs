//! Clients, the responses they receive, and the laws that follow from them.

pub(crate) mod claim; // answers of clients, and the laws that follow
pub(crate) mod client; // the calls
pub(crate) mod filling; // keys that are there before
pub(crate) mod record; // many rounds of load, and the checks against members
pub(crate) mod workload; // clients that write and remember
