//! etcd's KV requests on the store.
//!
//! The service checks requests with `validate` before they are proposed. Apply repeats the checks,
//! because any member may propose.

mod duplicates; // one revision changes a key at most once
pub mod validate; // checks that need no state

mod view; // the store as of one read

pub(crate) mod compare; // the guards of a transaction
pub(crate) mod range; // range requests, one key without a list

mod large_range; // a range as encoded bytes, in windows
mod range_stream; // a range in chunks

pub(crate) mod txn; // transactions
pub(crate) mod write; // put and delete

pub use large_range::LargeRange;
pub use range::{get, is_get, keys_read, range};
pub use range_stream::RangeStream;
pub use txn::read_txn;
