//! What one stream has to send: responses that share everything but their watch id. Bytes that count in sums
//! until their last slice is dropped.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use bytes::Bytes;

/// One or more responses of one stream. An [`super::Encoder`] makes bytes of it.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Revision of the header.
    pub(crate) revision: i64,
    pub(crate) content: ParcelContent,
}

#[derive(Clone, Debug)]
pub(crate) enum ParcelContent {
    Created {
        watch_id: i64,
    },
    /// A create request that was refused.
    Refused {
        reason: Box<str>,
    },
    /// `compact_revision` is 0 if the client asked for it.
    Canceled {
        watch_id: i64,
        compact_revision: i64,
    },
    /// Canceled by the owner, which shares the reason between watchers.
    Revoked {
        watch_id: i64,
        reason: Arc<str>,
    },
    Progress {
        watch_id: i64,
    },
    /// The same events for each of the watchers.
    Events {
        watch_ids: Box<[i64]>,
        body: Bytes,
        may_fragment: bool,
    },
    /// A part of a large revision.
    Part {
        watch_id: i64,
        part: MessagePart,
        body: Bytes,
    },
}

/// Large bytes of a parcel that a stream was handed.
#[derive(Clone, Debug)]
pub struct HeldBytes(Weak<ByteCount<[Arc<AtomicUsize>; 2]>>);

impl HeldBytes {
    /// Whether the stream has dropped them all.
    pub fn is_dropped(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// How a part of a large revision is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MessagePart {
    /// The first bytes of a message whose events are so many bytes.
    First { total: u32 },
    /// More bytes of that message.
    Next,
    /// A response.
    Fragment { is_last: bool },
    /// The rest was compacted: the stream has to end.
    Broken,
}

impl Parcel {
    /// Bytes of its events.
    pub(crate) fn body_bytes(&self) -> usize {
        match &self.content {
            ParcelContent::Events { body, .. } | ParcelContent::Part { body, .. } => body.len(),
            ParcelContent::Created { .. }
            | ParcelContent::Refused { .. }
            | ParcelContent::Canceled { .. }
            | ParcelContent::Revoked { .. }
            | ParcelContent::Progress { .. } => 0,
        }
    }

    /// Has its events counted in these sums until they are dropped. `None` if it has none.
    pub(crate) fn hold(&mut self, sums: [Arc<AtomicUsize>; 2]) -> Option<HeldBytes> {
        let (ParcelContent::Events { body, .. } | ParcelContent::Part { body, .. }) = &mut self.content
        else {
            return None;
        };
        let count = Arc::new(ByteCount::new(body.len(), sums));
        let noticed = HeldBytes(Arc::downgrade(&count));
        *body = counted(std::mem::take(body), count);
        Some(noticed)
    }

    /// Bytes that it holds in memory, a body that is shared included.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.content {
                ParcelContent::Events { watch_ids, body, .. } => 8 * watch_ids.len() + body.len(),
                ParcelContent::Part { body, .. } => body.len(),
                ParcelContent::Refused { reason } => reason.len(),
                ParcelContent::Revoked { .. } => 0,
                ParcelContent::Created { .. }
                | ParcelContent::Canceled { .. }
                | ParcelContent::Progress { .. } => 0,
            }
    }
}

/// A part of each of some sums, until this is dropped.
#[derive(Debug)]
pub(crate) struct ByteCount<S: AsRef<[Arc<AtomicUsize>]>> {
    bytes: usize,
    sums: S,
}

impl<S: AsRef<[Arc<AtomicUsize>]>> ByteCount<S> {
    pub fn new(bytes: usize, sums: S) -> ByteCount<S> {
        for sum in sums.as_ref() {
            sum.fetch_add(bytes, Relaxed);
        }
        ByteCount { bytes, sums }
    }
}

impl<S: AsRef<[Arc<AtomicUsize>]>> Drop for ByteCount<S> {
    fn drop(&mut self) {
        for sum in self.sums.as_ref() {
            sum.fetch_sub(self.bytes, Relaxed);
        }
    }
}

struct CountedBytes<B, C> {
    bytes: B,
    _count: C,
}

impl<B: AsRef<[u8]>, C> AsRef<[u8]> for CountedBytes<B, C> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// The same bytes, which keep `count` until their last slice is dropped.
pub(crate) fn counted<B, C>(bytes: B, count: C) -> Bytes
where
    B: AsRef<[u8]> + Send + 'static,
    C: Send + 'static,
{
    Bytes::from_owner(CountedBytes { bytes, _count: count })
}
