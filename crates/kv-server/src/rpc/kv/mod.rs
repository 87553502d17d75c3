//! The key space: KV's methods.

mod answers; // memory of write responses
mod large; // ranges that are streamed

mod methods; // each method
mod now; // ranges without waiting

pub(super) use large::LargeAnswer;
pub(super) use methods::{Kv, check_quota, check_txn, delete_range, range, txn};
pub(super) use now::range as range_now;
