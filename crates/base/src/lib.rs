//! Definitions and encodings that several crates share.
//!
//! * Reading is total: any bytes give a value or none, never a panic, and no length that was read allocates
//!   more than its input can fill.
//!
//! Must not depend on any other crate of ours. No I/O; a build of tests reads one variable, in `mutant`.

mod replicated; // numbers of Raft, the cost of a command, whether its outcome is wanted

mod addresses; // where one peer is dialled
mod shares; // how clients share a bound

pub mod lz4; // LZ4 blocks, decompressed within a bound
pub mod varint; // numbers of seven bits per byte

pub use addresses::Addresses;
pub use replicated::{Answer, Cost, LogIndex, LogPosition, NodeId, Term};
pub use shares::{ClientId, ShareUse, Shares};

/// An error and what caused it, in one line.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Whether this process has the known bug of this name, built in on purpose, so that a test shows that it
/// notices it; `crates/sim/mutants.txt` lists them.
///
/// A process has at most one, which the variable `KV_MUTANT` names. Only tests are built with the feature
/// `mutants`, and it has no effect without debug assertions: what is released has none of them.
#[cfg(all(feature = "mutants", debug_assertions))]
pub fn mutant(name: &str) -> bool {
    use std::sync::LazyLock;
    static CHOSEN: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("KV_MUTANT").ok());
    CHOSEN.as_deref() == Some(name)
}

#[cfg(not(all(feature = "mutants", debug_assertions)))]
pub const fn mutant(_name: &str) -> bool {
    false
}
