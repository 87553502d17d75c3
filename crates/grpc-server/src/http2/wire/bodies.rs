//! Bytes of one body that have arrived and were not read.
//!
//! A frame is a slice of a receive buffer, which it keeps in memory. So small frames that wait are joined in
//! another buffer.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// A frame of this size may wait as it is.
const WHOLE_FRAME_BYTES_MIN: usize = 1 << 10;

#[derive(Debug, Default)]
pub(super) struct WaitingFrames {
    frames: VecDeque<Bytes>,
    /// Small frames that came after them.
    small: BytesMut,
}

impl WaitingFrames {
    pub(super) fn push(&mut self, frame: Bytes) {
        if frame.len() < WHOLE_FRAME_BYTES_MIN {
            self.small.extend_from_slice(&frame);
            return;
        }
        if !self.small.is_empty() {
            self.frames.push_back(std::mem::take(&mut self.small).freeze());
        }
        self.frames.push_back(frame);
    }

    pub(super) fn pop(&mut self) -> Option<Bytes> {
        if let Some(frame) = self.frames.pop_front() {
            return Some(frame);
        }
        (!self.small.is_empty()).then(|| std::mem::take(&mut self.small).freeze())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.small.is_empty()
    }

    /// Forgets everything, and says how many bytes there were.
    pub(super) fn clear(&mut self) -> usize {
        std::iter::from_fn(|| self.pop()).map(|bytes| bytes.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_and_small_frames_joined() {
        let sizes = [1, 2, 1024, 3, 4, 5000, 6, 7];
        let frames: Vec<Bytes> =
            sizes.iter().zip(0..).map(|(size, value)| vec![value; *size].into()).collect();
        let mut waiting = WaitingFrames::default();
        frames.iter().for_each(|frame| waiting.push(frame.clone()));
        let read: Vec<Bytes> = std::iter::from_fn(|| waiting.pop()).collect();
        assert_eq!(read.iter().map(Bytes::len).collect::<Vec<_>>(), [3, 1024, 7, 5000, 13]);
        assert_eq!(read.concat(), frames.concat());
        frames.iter().for_each(|frame| waiting.push(frame.clone()));
        assert_eq!((waiting.clear(), waiting.pop()), (sizes.iter().sum(), None));
    }
}
