//! What a trial measures and how it is judged.

pub(super) mod load; // healthy clients
pub(super) mod process; // memory, processor time, descriptors

pub(super) mod outcome; // figures, verdict, Markdown
