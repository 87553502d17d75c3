//! Any bytes as requests of watch streams: `crates/watch/tests/common/program.rs`.
//!
//! Laws: those of `crates/watch/tests/common/world.rs`: no panic; each watcher gets the events of its keys
//! once, in order, in whole revisions, with the right previous pairs; progress is never ahead of events;
//! bounded memory.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/watch/tests/common/mod.rs"]
mod common;
#[path = "../../crates/watch/tests/common/program.rs"]
mod program;
#[path = "../../crates/watch/tests/common/world.rs"]
mod world;

fuzz_target!(|input: &[u8]| program::play(input));
