//! One JSON document of a member, for its status page and for `kv-server top`.
//!
//! * A member describes itself and what it knows of the others. It asks no other member.
//! * Figures that grow are since the start: who reads two documents has rates and percentiles of the time
//!   between them.
//! * One document is made in a second at most, however many readers there are.
//! * It is bounded: 64 members and alarms, texts of 128 characters, and the entries of `--metrics-top`.

mod document; // its fields

mod source; // made from a member, and kept for a second

pub(crate) use document::Document;
pub(crate) use source::Source;
