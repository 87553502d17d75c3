//! A range in chunks: bounded memory on this side however wide the range.
//!
//!   10 keys ──▶ 20 ──▶ 40 ──▶ … doubling while a chunk is small in bytes, halving while it is large
//!
//! * Every chunk is read at one revision: the one asked for, or the newest when the first chunk was read.
//! * Only the last chunk carries header, `more` and `count`; the header's revision is the newest of the first read.
//! * Nothing is locked between chunks. A compaction may overtake the stream, which then ends with `Compacted`.

use api::etcdserverpb::{RangeRequest, RangeResponse};
use mvcc::Store;
use prost::Message;

use crate::compare::key_after;
use crate::failure::Failure;
use crate::{header, range, validate};

/// Keys of the first chunk: small, so that the first answer is quick and shows how large the values are.
const FIRST_CHUNK_KEYS: i64 = 10;

/// The chunks of one range request. A refusal or the last chunk ends the iteration.
pub struct RangeStream {
    store: Store,
    /// The request for the next chunk: its key, limit and revision move on.
    request: RangeRequest,
    chunk_bytes_target: usize,
    /// Keys that the client still wants; `None` for a negative limit, which asks for all in one chunk.
    keys_left: Option<i64>,
    keys_sent: i64,
    header_revision: Option<i64>,
    finished: bool,
}

impl RangeStream {
    /// Begins a stream. The request has passed `validate::range_stream`; chunks approach `chunk_bytes_target`.
    pub fn new(store: Store, mut request: RangeRequest, chunk_bytes_target: usize) -> Self {
        assert!(validate::range_stream(&request).is_ok(), "a stream can neither sort nor filter");
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

    fn chunk(&mut self) -> Result<RangeResponse, Failure> {
        let read = range::range(&self.store, &self.request)?;
        let newest = read.header.as_ref().map_or(0, |header| header.revision);
        let header_revision = *self.header_revision.get_or_insert(newest);
        if self.request.revision <= 0 {
            self.request.revision = header_revision;
        }
        let keys = i64::try_from(read.kvs.len()).expect("a chunk fits in memory");
        let last = self.keys_left.is_none_or(|left| left == keys) || !read.more;
        let chunk = if last {
            let count = self.keys_sent + read.count;
            RangeResponse { header: header(header_revision), kvs: read.kvs, more: read.more, count }
        } else {
            RangeResponse { kvs: read.kvs, ..RangeResponse::default() }
        };
        self.finished = last;
        self.keys_sent += keys;
        if !last {
            self.advance(&chunk, keys);
        }
        Ok(chunk)
    }

    fn advance(&mut self, chunk: &RangeResponse, keys: i64) {
        let last_key = &chunk.kvs.last().expect("a chunk that is not the last holds keys").key;
        assert!(self.request.key <= *last_key, "a stream went back");
        self.request.key = key_after(last_key);
        let left = self.keys_left.map_or(i64::MAX, |left| left - keys);
        assert!(left > 0, "a stream goes on although the client wants no more");
        self.keys_left = Some(left);
        self.request.limit = self.next_chunk_keys(chunk.encoded_len()).min(left);
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

impl Iterator for RangeStream {
    type Item = Result<RangeResponse, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let chunk = self.chunk();
        self.finished |= chunk.is_err();
        Some(chunk)
    }
}
