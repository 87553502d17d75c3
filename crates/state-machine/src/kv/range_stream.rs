//! A range in chunks, with bounded memory.
//!
//! ```text
//!   10 keys ──▶ 20 ──▶ 40 ──▶ … doubled while a chunk is small in bytes, halved while it is large
//! ```
//!
//! * The number of keys depends on the size of the previous chunk. A chunk that turns out far too
//!   large is read again with half the keys, so its size is bounded unless it is a single pair, or
//!   the limit is negative.
//! * A chunk is measured as in etcd: with the header, `more` and `count` of its read, although only
//!   the last chunk has them.
//! * All chunks are read at the same revision: the requested one, or the latest at the first chunk.
//! * Only the last chunk has header, `more` and `count`. The header's revision is the latest of the
//!   first read.
//! * The count is the total of the chunks. If the last chunk reaches the limit, it also includes
//!   the keys after the limit.
//! * No lock is held between chunks. If a compaction overtakes the stream, it fails with
//!   `Compacted`.

use std::cell::Cell;

use api::etcdserverpb::{RangeRequest, RangeResponse};
use bytes::Bytes;
use mvcc::{Error, Meter, Store};
use prost::Message;

use super::compare::key_after;
use super::view::MeteredStore;
use super::{range, validate};
use crate::failure::{Failure, header};

/// Keys of the first chunk: few, so that it arrives early and shows the size of values.
const FIRST_CHUNK_KEYS: i64 = 10;
/// Maximum memory of a chunk, as a multiple of its target: pairs and their encoded form. The ten
/// keys of the first chunk, plus one more that is read, may have values of seven tenths of the
/// target.
const CHUNK_TARGETS_MAX: u64 = 16;

/// Iterator over the chunks of a range. It stops after an error or the last chunk.
pub struct RangeStream {
    store: Store,
    request: RangeRequest,
    chunk_bytes_target: usize,
    /// Keys still to be sent; `None` for a negative limit, which requests all keys in a single
    /// chunk.
    keys_left: Option<i64>,
    keys_sent: i64,
    header_revision: Option<i64>,
    finished: bool,
}

impl RangeStream {
    /// Starts a stream. The request has passed `validate::range_stream`. Chunks approach
    /// `chunk_bytes_target`.
    pub fn new(store: Store, mut request: RangeRequest, chunk_bytes_target: usize) -> Self {
        assert!(validate::range_stream(&request).is_ok(), "a stream can neither sort nor filter");
        // Copy the keys: they are slices of the complete message, which a slow client would keep in
        // memory.
        request.key = Bytes::copy_from_slice(&request.key);
        request.range_end = Bytes::copy_from_slice(&request.range_end);
        let keys_left = match request.limit {
            0 => Some(i64::MAX),
            limit if limit < 0 => None,
            limit => Some(limit),
        };
        if let Some(left) = keys_left {
            request.limit = FIRST_CHUNK_KEYS.min(left);
        }
        let (keys_sent, header_revision, finished) = (0, None, false);
        RangeStream { store, request, chunk_bytes_target, keys_left, keys_sent, header_revision, finished }
    }

    fn chunk(&mut self, meter: &dyn Meter) -> Result<RangeResponse, Failure> {
        let read = self.read(meter)?;
        let newest = read.header.as_ref().map_or(0, |header| header.revision);
        // etcd stops counting one key beyond the limit.
        let frame = RangeResponse {
            header: read.header,
            more: read.more,
            count: self.request.limit.saturating_add(1),
            kvs: Vec::new(),
        };
        let header_revision = *self.header_revision.get_or_insert(newest);
        if self.request.revision <= 0 {
            self.request.revision = header_revision;
        }
        let keys = i64::try_from(read.kvs.len()).expect("a chunk fits in memory");
        let last = self.keys_left.is_none_or(|left| left == keys) || !read.more;
        let chunk = if last {
            let count = self.keys_sent + self.keys_left_to_count(read.count, read.more, keys, meter)?;
            RangeResponse { header: header(header_revision), kvs: read.kvs, more: read.more, count }
        } else {
            RangeResponse { kvs: read.kvs, ..RangeResponse::default() }
        };
        self.finished = last;
        self.keys_sent += keys;
        if !last {
            self.advance(&chunk, keys, frame.encoded_len());
        }
        Ok(chunk)
    }

    /// Reads the next chunk, with fewer keys if it is too large.
    fn read(&mut self, meter: &dyn Meter) -> Result<RangeResponse, Failure> {
        if self.request.count_only {
            return range::range(&self.store, &self.request, meter);
        }
        let (held, bytes_max) = (meter.held(), CHUNK_TARGETS_MAX * self.chunk_bytes_target as u64);
        loop {
            let chunk = ChunkMeter { meter, bytes: Cell::new(0), bytes_max };
            let meter: &dyn Meter = if self.request.limit > 1 { &chunk } else { meter };
            // A full count with every chunk would be quadratic.
            let read = range::page(&MeteredStore { store: &self.store, meter }, &self.request);
            if chunk.bytes.get() <= bytes_max {
                return read;
            }
            chunk.meter.release_to(held);
            self.request.limit /= 2;
        }
    }

    /// Returns the number of keys of the last chunk, and of all later keys if the limit was
    /// reached.
    fn keys_left_to_count(
        &self,
        count: i64,
        more: bool,
        keys: i64,
        meter: &dyn Meter,
    ) -> Result<i64, Failure> {
        if self.request.count_only {
            return Ok(count);
        }
        if !more {
            return Ok(keys);
        }
        let request = RangeRequest { count_only: true, limit: 0, ..self.request.clone() };
        Ok(range::range(&self.store, &request, meter)?.count)
    }

    fn advance(&mut self, chunk: &RangeResponse, keys: i64, frame_bytes: usize) {
        let last_key = &chunk.kvs.last().expect("a chunk that is not the last holds keys").key;
        assert!(self.request.key <= *last_key, "a stream went back");
        self.request.key = key_after(last_key);
        let left = self.keys_left.map_or(i64::MAX, |left| left - keys);
        assert!(left > 0, "a stream goes on although the client wants no more");
        self.keys_left = Some(left);
        self.request.limit = self.next_chunk_keys(frame_bytes + chunk.encoded_len()).min(left);
    }

    fn next_chunk_keys(&self, chunk_bytes: usize) -> i64 {
        let keys = self.request.limit;
        if chunk_bytes < self.chunk_bytes_target / 2 {
            keys.saturating_mul(2)
        } else if chunk_bytes > self.chunk_bytes_target.saturating_mul(2) {
            (keys / 2).max(1)
        } else {
            keys
        }
    }
}

struct ChunkMeter<'a> {
    meter: &'a dyn Meter,
    bytes: Cell<u64>,
    bytes_max: u64,
}

impl Meter for ChunkMeter<'_> {
    fn hold(&self, pairs: u64, bytes: u64) -> mvcc::Result<()> {
        self.bytes.set(self.bytes.get() + bytes);
        if self.bytes.get() > self.bytes_max {
            Err(Error::Interrupted)
        } else {
            self.meter.hold(pairs, bytes)
        }
    }

    fn check(&self) -> mvcc::Result<()> {
        self.meter.check()
    }
}

impl RangeStream {
    /// Reports whether the last chunk was read, or the stream failed.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Reads the next chunk of an unfinished stream. `meter` may interrupt it, after which it can
    /// be retried.
    pub fn next_metered(&mut self, meter: &dyn Meter) -> Result<RangeResponse, Failure> {
        assert!(!self.finished, "a stream has no chunk after its last one");
        let chunk = self.chunk(meter);
        self.finished |= matches!(&chunk, Err(Failure::Refused(_) | Failure::Broken(_)));
        chunk
    }
}

impl Iterator for RangeStream {
    type Item = Result<RangeResponse, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.finished).then(|| self.next_metered(&()))
    }
}
