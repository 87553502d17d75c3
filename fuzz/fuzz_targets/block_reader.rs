//! A block of the store whose checksum is right and whose content is arbitrary.
//!
//! Laws: no panic, memory in proportion to the input; what is accepted has records that ascend and can all be
//! read.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    mvcc::fuzzed_block(input);
});
