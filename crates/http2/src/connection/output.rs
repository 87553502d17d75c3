//! What waits to be written to the socket: one buffer, so that the answers of a round leave in one write.

#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    pub(super) bytes: Vec<u8>,
    /// Written already.
    at: usize,
}

/// Capacity that a busy connection keeps: the answers of a round, unless they are large.
const BUSY_BYTES_MAX: usize = 32 << 10;

impl OutputBuffer {
    pub(super) fn unwritten(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn written(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.bytes.len());
        if self.at == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(BUSY_BYTES_MAX);
            self.at = 0;
        } else if self.at > self.bytes.len() / 2 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
    }

    pub(super) fn shrink(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
    }
}
