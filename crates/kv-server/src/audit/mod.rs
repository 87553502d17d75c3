//! The audit log: a line per rejected request, and optionally per change or per request.
//!
//! ```text
//!   a call ──begin──▶ Call ──end, or dropped──▶ Line ──▶ queue (bounded) ──▶ thread ──▶ file or stderr
//! ```
//!
//! * A line holds no value, no password and no token. Keys are in base64.
//! * Calls do not wait for the log. A line is lost if the queue is full, or if it cannot be written. Losses
//!   are counted and reported in the next written line.
//! * Without `--audit-log` a call costs one branch.
//!
//! Independent of connections. Subjects of requests are in `subject`.

mod queue; // the queue of lines, and the thread that writes them
mod subject; // the subject of a request

mod call; // a call, from its start to its line

pub(crate) use call::{AuditLog, AuditedCall};
pub(crate) use queue::AuditError;
pub(crate) use subject::AuditSubject;
