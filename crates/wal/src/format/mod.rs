//! The on-disk format of a log: segments and frames.

pub(crate) mod frame; // encoding of frames
pub(crate) mod walk; // iteration over the frames of a segment

pub(crate) mod segment; // encoding, names and creation of segments
