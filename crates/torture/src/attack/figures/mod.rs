//! The measurements of a trial and their verdict.

pub(super) mod load; // healthy clients
pub(super) mod process; // memory, processor time, descriptors

pub(super) mod outcome; // metrics, verdict, Markdown
