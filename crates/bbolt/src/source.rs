//! Where the bytes of a file are.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that are read at any offset.
pub trait Source {
    /// Reads exactly `buffer` from `offset` on.
    ///
    /// Errors: `UnexpectedEof` if the source ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Source for File {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }
}

impl Source for [u8] {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)?.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl<S: Source + ?Sized> Source for &S {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_exact_at(buffer, offset)
    }
}
