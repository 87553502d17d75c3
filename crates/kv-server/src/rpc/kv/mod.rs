//! The key space: KV's methods, as tonic calls them and as the connection's task does.

mod answers; // the memory of what writes answer
mod large; // ranges that are sent as they are made

mod methods; // each method
mod now; // ranges that wait for nothing

pub(super) use large::LargeAnswer;
pub(super) use methods::{
    Kv, RangedRequest, check_quota, check_txn, delete_range, put, range, range_or_large, txn, valid_txn,
};
pub(super) use now::range as range_now;
