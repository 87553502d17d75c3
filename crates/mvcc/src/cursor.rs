//! Varints and fixed-width numbers in byte slices.

pub(crate) use base::varint::put_varint;
use bytes::BufMut;

/// Encodes small files: a magic number, a version, numbers, and their CRC-32C.
pub(crate) fn stamped(magic: &[u8; 8], version: u32, numbers: &[u64]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.put_u32_le(version);
    numbers.iter().for_each(|number| bytes.put_u64_le(*number));
    bytes.put_u32_le(crc32c::crc32c(&bytes));
    bytes
}

/// Decodes the numbers encoded by `stamped`; `None` if the bytes are corrupt.
pub(crate) fn read_stamped<const N: usize>(magic: &[u8; 8], version: u32, bytes: &[u8]) -> Option<[u64; N]> {
    let mut cursor = Cursor { bytes, at: magic.len() + 4 };
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = cursor.u64_le()?;
    }
    (stamped(magic, version, &numbers) == bytes).then_some(numbers)
}

pub(crate) struct Cursor<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// Returns the next `count` bytes. `None`, without consuming bytes, if there are fewer.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    pub fn take_counted(&mut self) -> Option<&'a [u8]> {
        let count = usize::try_from(self.varint()?).ok()?;
        self.take(count)
    }

    /// Reads a varint of up to ten bytes. Overlong encodings are accepted.
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            let group = u64::from(byte & 0x7f);
            if shift == 63 && group > 1 {
                return None;
            }
            value |= group << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub fn u32_le(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes were taken")))
    }

    pub fn u64_le(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes were taken")))
    }

    pub fn i64_le(&mut self) -> Option<i64> {
        Some(self.u64_le()? as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_number_is_refused() {
        assert_eq!(Cursor::new(&[0xff; 20]).varint(), None);
        assert_eq!(
            Cursor::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).varint(),
            Some(u64::MAX)
        );
        assert_eq!(Cursor::new(&[0x80]).varint(), None);
    }
}
