//! Integers with a prefix of 1 to 8 bits (RFC 7541, section 5.1).

/// More than any length or index can be; keeps the arithmetic in 32 bits.
const VALUE_MAX: u32 = 1 << 28;

/// Reads an integer starting at `block[0]`. Returns it and the rest, or `None` if it is truncated or too
/// large.
pub(crate) fn read(block: &[u8], prefix_bits: u32) -> Option<(u32, &[u8])> {
    let mask = (1u32 << prefix_bits) - 1;
    let (&first, mut rest) = block.split_first()?;
    let mut value = u32::from(first) & mask;
    if value < mask {
        return Some((value, rest));
    }
    // Four bytes reach the maximum; a fifth could only be padding with zeros, which no encoder needs.
    for shift in [0, 7, 14, 21] {
        let (&byte, tail) = rest.split_first()?;
        rest = tail;
        value += u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return (value <= VALUE_MAX).then_some((value, rest));
        }
    }
    None
}

/// Appends `value`; `pattern` holds the bits above the prefix.
pub(crate) fn write(out: &mut Vec<u8>, pattern: u8, prefix_bits: u32, value: usize) {
    let mask = (1usize << prefix_bits) - 1;
    if value < mask {
        out.push(pattern | value as u8);
        return;
    }
    out.push(pattern | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7541, C.1.
    #[test]
    fn examples_of_the_rfc() {
        for (bytes, prefix_bits, value) in
            [(&[0x0a][..], 5, 10), (&[0x1f, 0x9a, 0x0a][..], 5, 1337), (&[0x2a][..], 8, 42)]
        {
            assert_eq!(read(bytes, prefix_bits), Some((value, &[][..])));
            let mut out = Vec::new();
            write(&mut out, 0, prefix_bits, value as usize);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn refuses_cut_and_oversized_integers() {
        for bytes in [&[][..], &[0x1f], &[0x1f, 0x80], &[0x1f, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
            assert_eq!(read(bytes, 5), None, "{bytes:x?}");
        }
    }
}
