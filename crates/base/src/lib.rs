//! Definitions and encodings shared by several crates.
//!
//! * Decoders are total: any input yields a value or `None`, never a panic, and a decoded length cannot
//!   allocate more than the input can fill.
//!
//! Must not depend on any other crate of the workspace. No I/O, except that test builds read one
//! environment variable in `mutant`.

mod replicated; // Raft's numbers, the cost of a command, whether its outcome is wanted

mod addresses; // addresses at which to dial one peer
mod shares; // how clients share a limit

pub mod lz4; // LZ4 blocks, decompressed with a size limit
pub mod varint; // integers in seven bits per byte

pub use addresses::Addresses;
pub use replicated::{Answer, Cost, LogIndex, LogPosition, NodeId, Term};
pub use shares::{ClientId, ShareUse, Shares};

/// Formats an error and its chain of sources in one line.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Reports whether the known bug `name` is enabled in this process. Tests use it to prove that they
/// detect that bug; `crates/sim/mutants.txt` lists the names.
///
/// The variable `KV_MUTANT` selects at most one. Only tests are built with the feature `mutants`, and
/// it has no effect without debug assertions, so release builds contain no mutants.
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
