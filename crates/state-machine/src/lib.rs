//! What commands mean: etcd's KV semantics on the store, plus alarms and members.
//!
//!   commands in log order ──▶ StateMachine ──▶ mvcc::Writer        (one thread at a time)
//!   requests of clients   ──▶ range, read_txn, RangeStream ──▶ mvcc::Store        (any thread)
//!
//! * Deterministic: the same commands in the same order leave the same bytes on every member. No clock, no random
//!   numbers, no threads, no files; the linter refuses them.
//! * What a request is refused for comes from etcd's table (`api::Error`) and is equal on every member. What breaks
//!   here is a different type, and stops the process when it happens in apply.
//! * Responses carry the revision; who answered, and in which term, the server fills in.
//!
//! Knows nothing of Raft, of the network, or of who waits for an answer.

#[cfg(all(
    not(debug_assertions),
    any(feature = "mutant-local-compaction", feature = "mutant-local-refusal")
))]
compile_error!("a mutant breaks a promise on purpose: it is built with debug assertions, and never ships");

pub mod command; // what a log entry says
mod overlap; // one revision changes a key once
pub mod validate; // what is refused before consensus

mod brief; // which of them take no time to speak of
mod machine; // commands applied
mod txn; // compare, then one of two branches
mod write; // put and delete

mod compare; // the guards of a transaction
mod large; // the same as bytes, made piece by piece
mod range; // what a range answers
mod stream; // the same in chunks
mod view; // where reads look

mod alarms; // what stops writes
mod leases; // what keys may be attached to
mod members; // who is in the cluster

mod failure; // refusal or breakdown

#[cfg(test)]
mod tests;

pub use alarms::active as active_alarms;
pub use brief::is_brief;
pub use failure::{Failure, Fatal};
pub use large::LargeRange;
pub use machine::{Answer, Outcome, Response, StateMachine};
pub use members::{Genesis, list as members};
pub use range::{keys_read, range};
pub use stream::RangeStream;
pub use txn::read_txn;

use api::etcdserverpb::ResponseHeader;

/// A header as far as this crate knows it.
fn header(revision: i64) -> Option<ResponseHeader> {
    assert!(revision >= 1, "the empty store is at revision 1");
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}
