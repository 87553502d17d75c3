//! The key space: KV's methods, as tonic calls them and as the connection's task does.

mod answers; // memory of write responses
mod large; // ranges that are streamed

mod methods; // each method
mod now; // ranges without waiting

pub(super) use large::LargeAnswer;
pub(super) use methods::{
    Kv, RangedRequest, check_quota, check_txn, delete_range, put, range, range_or_large, txn, valid_txn,
};
pub(super) use now::range as range_now;
