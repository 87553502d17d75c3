//! Iteration over the frames of one segment with a bounded window.
//!
//! * Memory: one chunk, or the current frame if it is longer. A length is used only after the header's
//!   check matched and the file was found to be long enough.
//! * Bytes are read once and sequentially, so recovery runs at the speed of the disk or of the
//!   checksum.
//! * A search for survivors advances by four bytes where no frame verifies. A wrong header passes its
//!   check once in 65,536 times.
//!
//! Chain, indexes and groups are up to the callers: recovery, readers and inspections.

use std::io;

use super::frame::{self, ALIGNMENT, FRAME_BYTES_MAX, Flaw, Frame, HEADER_BYTES, Header, Seed, to_usize};
use crate::File;

/// Read size: large enough for streaming, small in memory.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// Cursor over the frames of a file. `frame` decodes and `pass` advances; the caller decides in between
/// how to handle a flaw.
pub(crate) struct FrameCursor<'f, F> {
    file: &'f F,
    seed: Seed,
    offset: u64,
    /// Reads stop before this offset.
    limit: u64,
    /// Bytes of the file from `window_offset`. May start before the current frame, and may not contain all
    /// of it.
    window: Vec<u8>,
    window_offset: u64,
    /// Minimum size of a disk read.
    chunk_bytes: usize,
}

impl<'f, F: File> FrameCursor<'f, F> {
    pub fn new(file: &'f F, seed: Seed, offset: u64, limit: u64, chunk_bytes: usize) -> FrameCursor<'f, F> {
        assert!(offset <= limit, "a walk begins at {offset}, beyond its limit {limit}");
        let window = Vec::new();
        FrameCursor { file, seed, offset, limit, window, window_offset: offset, chunk_bytes }
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the current frame or its flaw, without advancing. An I/O error is separate from a flaw,
    /// because it does not imply anything about the log.
    pub fn frame(&mut self) -> io::Result<Result<Frame<'_>, Flaw>> {
        let seed = self.seed;
        let header = match frame::decode_header(&seed, self.peek(HEADER_BYTES)?) {
            Ok(header) => header,
            Err(flaw) => return Ok(Err(flaw)),
        };
        Ok(frame::decode(&seed, header, self.peek(header.frame_bytes())?))
    }

    /// Reads the bytes from the file again and returns [`FrameCursor::frame`].
    pub fn frame_again(&mut self) -> io::Result<Result<Frame<'_>, Flaw>> {
        self.window.clear();
        self.window_offset = self.offset;
        self.frame()
    }

    pub fn pass(&mut self, header: &Header) {
        self.offset += header.frame_bytes() as u64;
        assert!(self.offset <= self.limit, "a frame was seen beyond the limit");
    }

    /// Calls `found` for each whole frame at or after the current offset.
    pub fn survivors(&mut self, found: &mut dyn FnMut(u64, &Header)) -> io::Result<()> {
        while let Some(header) = self.survivor()? {
            found(self.offset, &header);
            self.pass(&header);
        }
        Ok(())
    }

    /// Advances to the first whole frame at or after the current offset, or to the limit if there is none.
    pub fn survivor(&mut self) -> io::Result<Option<Header>> {
        while self.offset + HEADER_BYTES as u64 <= self.limit {
            match self.frame()?.map(|frame| frame.header) {
                Ok(header) => return Ok(Some(header)),
                Err(_) => self.offset += ALIGNMENT as u64,
            }
        }
        Ok(None)
    }

    /// Returns `bytes` bytes at the current offset; fewer only at the limit.
    pub fn peek(&mut self, bytes: usize) -> io::Result<&[u8]> {
        assert!(bytes <= FRAME_BYTES_MAX, "a window of {bytes} bytes");
        let bytes = to_usize((self.limit - self.offset).min(bytes as u64));
        let skip = to_usize(self.offset - self.window_offset);
        if self.window.len() < skip + bytes {
            self.refill(skip, bytes)?;
        }
        let skip = to_usize(self.offset - self.window_offset);
        Ok(&self.window[skip..self.window.len().min(skip + bytes)])
    }

    /// Drops the bytes before the current offset and reads at least `bytes` bytes.
    fn refill(&mut self, skip: usize, bytes: usize) -> io::Result<()> {
        self.window.drain(..skip.min(self.window.len()));
        self.window_offset = self.offset;
        let have = self.window.len();
        let wanted = to_usize((self.limit - self.offset).min(bytes.max(self.chunk_bytes) as u64));
        self.window.resize(wanted, 0);
        let read = self.file.read_at(self.offset + have as u64, &mut self.window[have..])?;
        self.window.truncate(have + read);
        // The file is shorter than expected: stop there.
        if self.window.len() < wanted {
            self.limit = self.offset + self.window.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::path::Path;

    use crate::format::frame::Type;
    use crate::testing::{SimFile, SimFs};
    use crate::{Fs, LogPosition};

    const SEED: Seed = Seed { crc: 5, mask: [9; 16] };

    /// Writes a file of frames with payloads of these lengths, each in a separate group.
    fn file(lengths: &[usize]) -> (SimFile, u64) {
        let fs = SimFs::new();
        let file = fs.create(Path::new("/file")).unwrap();
        let mut bytes = Vec::new();
        for (index, &length) in lengths.iter().enumerate() {
            let position = LogPosition::new(index as u64, 1);
            let group = 4096 + bytes.len() as u32;
            let header = Header { type_: Type::Entry, kind: 0, length, group, previous: 0, position };
            frame::encode(&mut bytes, &SEED, &header, &vec![index as u8; length]);
        }
        file.write_at(0, &bytes).unwrap();
        (file, bytes.len() as u64)
    }

    #[test]
    fn frames_come_in_order_whatever_the_window() {
        let lengths = [0, 5, 3000, 1, 70_000, 64, 0];
        let (file, end) = file(&lengths);
        for chunk_bytes in [1, 36, 100, 4096, CHUNK_BYTES] {
            let mut walk = FrameCursor::new(&file, SEED, 0, end, chunk_bytes);
            for (index, &length) in lengths.iter().enumerate() {
                let frame = walk.frame().unwrap().unwrap();
                assert_eq!((frame.header.position.index.0, frame.payload.len()), (index as u64, length));
                assert!(frame.payload.iter().all(|&byte| byte == index as u8));
                let header = frame.header;
                walk.pass(&header);
            }
            assert_eq!(walk.offset(), end);
            assert!(walk.frame().unwrap().is_err(), "nothing is after the end");
        }
    }

    #[test]
    fn the_window_stays_small() {
        let (file, end) = file(&[1000; 500]);
        let mut walk = FrameCursor::new(&file, SEED, 0, end, 4096);
        while let Ok(frame) = walk.frame().unwrap() {
            let header = frame.header;
            walk.pass(&header);
            assert!(walk.window.capacity() <= 3 * 4096, "{}", walk.window.capacity());
        }
    }

    #[test]
    fn survivors_are_found_behind_damage() {
        let (file, end) = file(&[10, 2000, 30, 0]);
        file.write_at(50, &[0xff; 8]).unwrap(); // in the header of the second frame
        let mut walk = FrameCursor::new(&file, SEED, 48, end, 64);
        let mut found = Vec::new();
        walk.survivors(&mut |offset, header| found.push((offset, header.length))).unwrap();
        assert_eq!(found, [(48 + 2036, 30), (48 + 2036 + 68, 0)]);
    }

    #[test]
    fn a_file_shorter_than_its_limit_ends_the_walk() {
        let (file, end) = file(&[10, 20]);
        let mut walk = FrameCursor::new(&file, SEED, 0, end + 1000, 4096);
        for _ in 0..2 {
            let header = walk.frame().unwrap().unwrap().header;
            walk.pass(&header);
        }
        assert_eq!(walk.frame().unwrap(), Err("the segment ends within a frame header"));
    }
}
