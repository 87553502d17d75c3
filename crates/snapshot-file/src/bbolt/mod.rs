//! bbolt files, the format of etcd's database: written in one pass, read page by page.
//!
//! ```text
//!   page 0, 1   meta: root bucket, freelist, number of pages, checksum        (the two are alike)
//!   page 2      freelist, empty
//!   page 3 …    bucket a: leaf, leaf, branch, leaf … root of a; bucket b …; root bucket last
//! ```
//!
//! The meta pages name the root bucket, which is written last. So a caller plans before it writes:
//!
//! ```text
//!   keys and lengths of values ──▶ Planner ──▶ Plan (pages, root)
//!   the same keys, and values  ──▶ Writer::new(plan) ──▶ bytes from the first to the last
//! ```
//!
//! * The same keys and lengths give the same plan. A writer that is given others panics: that is a bug of the
//!   caller, and the file would not be readable.
//! * A planner and a writer keep one page for each level of one tree, the names of the buckets, and what the
//!   caller has not taken. A value is copied once.
//! * A reader checks each number before it is used, and each page before its contents are. It keeps one page
//!   for each level. A file whose pages refer to each other in a cycle ends in an error, because no more
//!   pages are read than the file has.
//! * bbolt has no checksum of data pages. Damage inside a key or value is found by the reader's caller, or by
//!   the checksum of the whole file that etcd appends.
//!
//! Written are pages of 4096 bytes. Read are page sizes of 1 to 64 KiB in powers of two. Buckets inside of
//! buckets are refused, because etcd has none.
//!
//! Knows nothing of etcd's buckets or the store, and has no thread, clock or randomness.

mod format; // numbers and layouts of the file

mod tree; // keys become pages
mod writer; // plan, then write

mod page; // where the bytes are, one page, checked
mod reader; // opens a file, finds its buckets

mod cursor; // all keys of a bucket

pub use cursor::BucketCursor;
pub use format::{KEY_BYTES_MAX, PAGE_BYTES, VALUE_BYTES_MAX};
pub use page::{Error, Result, Source};
pub use reader::{Bucket, Database};
pub use writer::{FileLayout, FileWriter, Planner};
