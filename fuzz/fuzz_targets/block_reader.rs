//! A block of the store whose checksum is right, whatever else is wrong with it.
//!
//! Laws: no panic, memory in proportion to the input; what is accepted has records that ascend and can all be read.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    mvcc::fuzzed_block(input);
});
