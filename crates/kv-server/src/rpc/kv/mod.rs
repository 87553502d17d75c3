//! The key space: KV's methods, as tonic calls them and as the connection's task does.

mod frame; // gRPC's frame of one message

mod answers; // the memory of what writes answer
mod large; // ranges that are sent as they are made

mod width; // how much a read touches, and where it is made

mod methods; // each method
mod now; // ranges that wait for nothing

pub(super) use frame::framed;
pub(super) use large::LargeAnswer;
pub(super) use methods::{Kv, RangedRequest, check_quota, delete_range, put, range, range_or_large, txn};
pub(super) use now::range as range_now;
