//! What another member sent: any bytes are decoded or refused, and any sequence of messages is handled or
//! refused.
//!
//! Laws: no panic, memory in proportion to the input; what was decoded, encoded and decoded again is the same
//! message; no sequence of messages ends a core with a log, takes its commit index back, or changes what is
//! committed.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    raft_node::fuzzed_message(2, 1, Bytes::copy_from_slice(input));
    raft_node::fuzzed_conversation(input);
});
