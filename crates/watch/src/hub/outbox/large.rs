//! One revision whose events with previous pairs are too large to be held, for one watcher.
//!
//! It is a reference to history. Its events are encoded in parts, one at a time, while the stream reads.

use mvcc::KeyRange;

use crate::interest::Form;
use crate::wire::Parcel;

/// A revision to be sent in parts.
pub(crate) struct Large {
    pub watch_id: i64,
    pub main: i64,
    /// Revision of the header.
    pub revision: i64,
    pub keys: KeyRange,
    pub form: Form,
    /// Sub revisions of the first and the last event.
    pub subs: (i64, i64),
    /// Sub revision from which the next step reads.
    pub next: i64,
    pub stage: LargeStage,
    /// Mean bytes of the events of the last step; 0 before the first one.
    pub event_bytes: usize,
    /// Whether the pairs before the events are compacted, when the first step was made.
    pub is_bare: bool,
    /// The stream waits for a part. It is not dropped to make room then: streams that drop each other's would
    /// never get one.
    pub is_wanted: bool,
    /// A part was encoded: what follows has to fit to it.
    pub has_begun: bool,
    /// The part that the stream takes next.
    pub part: Option<Parcel>,
    /// It is the last one.
    pub is_done: bool,
}

/// What the next step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LargeStage {
    /// Counts bytes: a message begins with its length.
    Measure { bytes: usize },
    /// Encodes a part. All parts are `total` bytes; 0 if each is a separate response.
    Send { sent: usize, total: usize },
}

impl Large {
    /// Begins with the first step.
    pub fn restart(&mut self) {
        self.next = self.subs.0;
        self.stage = match self.form.may_fragment() {
            true => LargeStage::Send { sent: 0, total: 0 },
            false => LargeStage::Measure { bytes: 0 },
        };
    }
}
