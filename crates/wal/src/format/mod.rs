//! The format of a log: segments and frames.

pub(crate) mod frame; // bytes of a frame
pub(crate) mod walk; // the frames of a segment in order

pub(crate) mod segment; // bytes of a segment's head, names, birth
