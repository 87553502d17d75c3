//! bbolt files, the format of etcd's database: written in one pass, read page by page.
//!
//! ```text
//!   page 0, 1   meta: root bucket, freelist, number of pages, checksum        (the two are alike)
//!   page 2      freelist, empty
//!   page 3 …    bucket a: leaf, leaf, branch, leaf … root of a; bucket b …; root bucket last
//! ```
//!
//! The meta pages refer to the root bucket, which is written last. A caller therefore plans before it
//! writes:
//!
//! ```text
//!   keys and lengths of values ──▶ Planner ──▶ Plan (pages, root)
//!   the same keys, and values  ──▶ Writer::new(plan) ──▶ bytes from the first to the last
//! ```
//!
//! * The plan depends on keys and value lengths only. A writer that receives different ones panics:
//!   that is a bug of the caller and would make the file unreadable.
//! * Planner and writer hold a page per level of one tree, the bucket names, and the bytes not yet
//!   taken. A value is copied once.
//! * The reader validates each number and each page before use. It holds a page per level. A cycle of
//!   pages results in an error, because the reader never reads more pages than the file has.
//! * bbolt has no checksums of data pages. Corruption inside a key or value is detected by the reader's
//!   caller, or by the checksum of the whole file that etcd appends.
//!
//! Written pages have 4096 bytes. Readable page sizes are the powers of two from 1 to 64 KiB. Nested
//! buckets are rejected, because etcd has none.
//!
//! Independent of etcd's buckets and the store; uses no thread, clock or randomness.

mod format; // constants and layouts of the file

mod tree; // builds pages from keys
mod writer; // plan, then write

mod page; // byte source, errors, one validated page
mod reader; // opens a file, finds its buckets

mod cursor; // all keys of a bucket

pub use cursor::BucketCursor;
pub use format::{KEY_BYTES_MAX, PAGE_BYTES, VALUE_BYTES_MAX};
pub use page::{Error, PageSource, Result};
pub use reader::{Bucket, Database};
pub use writer::{FileLayout, FileWriter, Planner};
