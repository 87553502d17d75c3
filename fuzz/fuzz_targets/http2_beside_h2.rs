//! Any frames of a client into the HTTP/2 connection and into the server of the `h2` crate.
//!
//! Laws: those of `crates/http2/tests/common/beside_h2.rs`: both see the same, or ours refuses more.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/http2/tests/common/beside_h2.rs"]
mod beside_h2;
#[path = "../../crates/http2/tests/common/mod.rs"]
mod common;

fuzz_target!(|input: &[u8]| beside_h2::check(input));
