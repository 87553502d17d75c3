//! The static table (RFC 7541, appendix A) and the dynamic table (section 2.3.2).
//!
//! Entries own their bytes in separate allocations, so the memory that a peer can pin is bounded by the
//! table size, for any references. The version changes with the content, so a block without side effects
//! has one meaning per version.

use std::collections::VecDeque;

use bytes::Bytes;

/// Added to the size of each entry (section 4.1), and of each field in a header list.
pub(crate) const ENTRY_OVERHEAD: usize = 32;

pub(crate) const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[derive(Debug)]
pub(crate) struct DynamicTable {
    /// Most recent first.
    entries: VecDeque<(Bytes, Bytes)>,
    bytes: usize,
    bytes_max: usize,
    version: u64,
    /// Number of entries ever added.
    added: u64,
}

impl DynamicTable {
    pub(crate) fn new(bytes_max: usize) -> DynamicTable {
        DynamicTable { entries: VecDeque::new(), bytes: 0, bytes_max, version: 0, added: 0 }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the size as defined in the RFC.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the field at `index` of both tables together; indices start at 1.
    pub(crate) fn field(&self, index: u32) -> Option<(Bytes, Bytes)> {
        let index = (index as usize).checked_sub(1)?;
        if let Some((name, value)) = STATIC.get(index) {
            return Some((Bytes::from_static(name.as_bytes()), Bytes::from_static(value.as_bytes())));
        }
        self.entries.get(index - STATIC.len()).cloned()
    }

    /// Returns the position in the dynamic table of the field at `index`; 0 is the latest. None for a
    /// static entry.
    pub(crate) fn place(index: u32) -> Option<usize> {
        (index as usize).checked_sub(STATIC.len() + 1)
    }

    pub(crate) fn entry(&self, place: usize) -> Option<&(Bytes, Bytes)> {
        self.entries.get(place)
    }

    /// Returns a number that is unique among all fields ever added.
    pub(crate) fn number(&self, place: usize) -> u64 {
        STATIC.len() as u64 + self.added - place as u64
    }

    /// Returns the number of entries that remain when one of `size` is added, or None if the table is too
    /// small for it.
    pub(crate) fn kept_with(&self, size: usize) -> Option<usize> {
        let bytes_max = self.bytes_max.checked_sub(size)?;
        let (mut bytes, mut kept) = (self.bytes, self.entries.len());
        while bytes > bytes_max {
            kept -= 1;
            let (name, value) = &self.entries[kept];
            bytes -= name.len() + value.len() + ENTRY_OVERHEAD;
        }
        Some(kept)
    }

    /// Adds an entry and evicts old ones; an entry that is larger than the table empties it.
    pub(crate) fn insert(&mut self, name: Bytes, value: Bytes) {
        self.version += 1;
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        self.evict(self.bytes_max.saturating_sub(size));
        if size <= self.bytes_max {
            self.bytes += size;
            self.entries.push_front((name, value));
            self.added += 1;
        }
    }

    pub(crate) fn resize(&mut self, bytes_max: usize) {
        self.version += 1;
        self.bytes_max = bytes_max;
        self.evict(bytes_max);
    }

    /// Releases spare capacity.
    pub(crate) fn shrink(&mut self) {
        self.entries.shrink_to_fit();
    }

    fn evict(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max {
            let Some((name, value)) = self.entries.pop_back() else { break };
            self.bytes -= name.len() + value.len() + ENTRY_OVERHEAD;
        }
    }
}
