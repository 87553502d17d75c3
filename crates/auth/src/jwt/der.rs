//! Minimal DER parser for key files.

/// Tags used in keys.
pub const INTEGER: u8 = 0x02;
pub const BIT_STRING: u8 = 0x03;
pub const OCTET_STRING: u8 = 0x04;
pub const OBJECT_ID: u8 = 0x06;
pub const SEQUENCE: u8 = 0x30;
pub const CONTEXT_0: u8 = 0xa0;
pub const CONTEXT_1: u8 = 0xa1;

#[derive(Clone, Copy, Debug)]
pub struct DerReader<'a>(pub &'a [u8]);

impl<'a> DerReader<'a> {
    /// Returns the content of the next element, if it has this tag. Otherwise consumes no input.
    pub fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, rest) = self.0.split_first()?;
        if *found != tag {
            return None;
        }
        let (first, rest) = rest.split_first()?;
        let (length, rest) = match usize::from(*first) {
            short @ 0..0x80 => (short, rest),
            // A key file has at most some thousand bytes.
            long => {
                let (bytes, rest) = rest.split_at_checked(long & 0x7f)?;
                let is_possible = !bytes.is_empty() && bytes.len() <= 3;
                let number = bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte));
                (Some(number).filter(|_| is_possible)?, rest)
            }
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(content)
    }

    /// Returns a reader for the content of the next element, if it has this tag.
    pub fn enter(&mut self, tag: u8) -> Option<DerReader<'a>> {
        self.take(tag).map(DerReader)
    }

    /// Returns the bytes of a bit string without unused bits.
    pub fn bits(&mut self) -> Option<&'a [u8]> {
        self.take(BIT_STRING)?.strip_prefix(&[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_taken_by_its_tag_and_length() {
        let long = [&[OCTET_STRING, 0x81, 0x80][..], &[7; 128]].concat();
        for (bytes, tag, wanted) in [
            (&[INTEGER, 1, 5][..], INTEGER, Some((&[5][..], 0))),
            (&[INTEGER, 1, 5, 9][..], INTEGER, Some((&[5][..], 1))),
            (&[INTEGER, 1, 5][..], SEQUENCE, None),
            (&[INTEGER, 2, 5][..], INTEGER, None),
            (&[INTEGER, 0x80][..], INTEGER, None),
            (&[INTEGER, 0x84, 0, 0, 0, 1, 5][..], INTEGER, None),
            (&[INTEGER][..], INTEGER, None),
            (&[][..], INTEGER, None),
            (&long[..], OCTET_STRING, Some((&[7; 128][..], 0))),
        ] {
            let mut reader = DerReader(bytes);
            let taken = reader.take(tag).map(|content| (content, reader.0.len()));
            assert_eq!(taken, wanted, "{bytes:?}");
        }
        assert_eq!(DerReader(&[BIT_STRING, 2, 0, 9]).bits(), Some(&[9][..]));
        assert_eq!(DerReader(&[BIT_STRING, 2, 1, 9]).bits(), None);
    }
}
