//! Any bytes of a client, cut anywhere, into the HTTP/2 connection.
//!
//! Laws: those of `crates/http2/tests/common/laws.rs`: no panic; the same events and output wherever the
//! bytes are cut; memory within the limits, with an owner that only looks and with one that answers, resets
//! and releases.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/http2/tests/common/mod.rs"]
mod common;
#[path = "../../crates/http2/tests/common/laws.rs"]
mod laws;

fuzz_target!(|input: &[u8]| {
    // Three bytes: whether the client's preface comes first, and where the rest is cut.
    let Some((preface, rest)) = input.split_first() else { return };
    let Some((lengths, bytes)) = rest.split_at_checked(2) else { return };
    if preface & 1 == 0 {
        laws::check(&[common::hello(), bytes.to_vec()].concat(), lengths);
    } else {
        laws::check(bytes, lengths);
    }
});
