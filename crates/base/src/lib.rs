//! Definitions and encodings that several crates share.
//!
//! * Reading is total: any bytes give a value or none, never a panic, and no length that was read allocates
//!   more than its input can fill.
//!
//! Must not depend on any other crate of ours. No I/O; a build of tests reads one variable, in `mutant`.

mod causes; // errors as text
mod mutant; // known bugs, which tests must notice
mod replicated; // numbers of Raft, the cost of a command, whether its outcome is wanted

mod shares; // how clients share a bound

pub mod lz4; // LZ4 blocks, decompressed within a bound
pub mod varint; // numbers of seven bits per byte

pub use causes::causes;
pub use mutant::mutant;
pub use replicated::{Answer, Cost, LogIndex, LogPosition, NodeId, Term};
pub use shares::{ClientId, ShareUse, Shares};
