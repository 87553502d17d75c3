//! Known bugs that are built in on purpose, so that a test shows that it notices them.
//!
//! A process has at most one, which the variable `KV_MUTANT` names. Only tests are built with the feature
//! `mutants`, and it has no effect without debug assertions: what is released has none of them.

/// Whether this process has the known bug of this name; `crates/sim/mutants.txt` lists them.
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
