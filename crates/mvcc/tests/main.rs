//! The store as a whole, on backends that fail, lose power or are damaged.
//!
//! One program, which is linked once. Tests that need a process for themselves are separate targets: see
//! `Cargo.toml`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

mod backend;
mod changes;
mod crash;
mod damage;
mod flips;
mod format;
mod history;
mod inspect;
mod install;
mod install_crash;
mod meter;
mod model;
mod race;
mod recount;
mod scripts;
mod space;
mod store;
mod transfer;
