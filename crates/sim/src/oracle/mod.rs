//! What must be true: the laws, and a model of the store to compare with.

mod laws; // what must never happen
mod model; // the oracle
mod watcher; // what a watcher must see

pub use laws::Breach;

pub(crate) use laws::{Elections, Truth, goes_on, logs_match};
pub(crate) use model::{Refusal, digest_of, is_change, revision_of, summary_of};
pub(crate) use watcher::{Interest, View, Watcher};
