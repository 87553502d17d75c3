//! Tests of whole stores, on backends that fail, crash or are corrupt. Linked into one program; tests
//! that need a separate process have their own targets, see `Cargo.toml`.

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
