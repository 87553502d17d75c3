//! Expected behaviour: the laws, and a model of the store.

mod laws; // what must never happen
mod lease_times; // how long a lease must exist
mod leases; // what commands make of leases
mod members; // what commands make of the members, and which commands all of them understand
mod model; // the oracle
mod refusal; // why a request is refused
mod users; // what commands make of users, and what these may do
mod watcher; // what a watcher must see

pub use laws::Breach;

pub(crate) use laws::{Elections, Truth, goes_on, logs_match};
pub(crate) use lease_times::DRIFT;
pub(crate) use model::{digest_of, is_change, is_of_access, revision_of, summary_of};
pub(crate) use refusal::RefusalReason;
pub(crate) use watcher::{Interest, OracleView, WatcherModel};
