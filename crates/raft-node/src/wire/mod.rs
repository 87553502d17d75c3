//! Encodings of log entries and of messages between members.

mod codec; // numbers and byte strings

mod batch; // many commands as one entry
mod membership; // voters and learners
mod message; // Raft messages and their validation

#[doc(hidden)]
pub use message::fuzzed_message;
pub use message::{Outbound, SnapshotOffer, SnapshotOutcome, is_snapshot, snapshot_position};

pub(crate) use batch::{Batch, BatchBuilder, BatchId, COMMAND_OVERHEAD, Commands, HEADER_BYTES};
pub(crate) use codec::{ByteReader, MalformedBytes, put_number};
pub(crate) use membership::{change_batch, change_payload, conf, put_conf, refused_change};
#[cfg(test)]
pub(crate) use message::encode;
#[cfg(any(test, fuzzing))]
pub(crate) use message::written;
pub(crate) use message::{CoreView, MESSAGE_BYTES_MAX, decode, encode_all, entry_kind, entry_type, validate};
