//! The audit log: a line for each request that was refused, and by choice for each change or each request.
//!
//! ```text
//!   a call ──begin──▶ Call ──end, or dropped──▶ Line ──▶ queue (bounded) ──▶ thread ──▶ file or stderr
//! ```
//!
//! * A line holds no value, no password and no token. Keys are in base64.
//! * No call waits for the log. A line that finds the queue full, or that cannot be written, is lost. Losses
//!   are counted, and the next line that is written says how many there were.
//! * Without `--audit-log` a call costs one branch.
//!
//! Knows nothing of connections. What a request names is in `subject`.

mod queue; // lines that wait, and the thread that writes them
mod subject; // what a request names

mod call; // a call from its begin to its line

pub(crate) use call::{AuditLog, AuditedCall, Who};
pub(crate) use queue::AuditError;
pub(crate) use subject::AuditSubject;
