//! The string code of RFC 7541, appendix B.
//!
//! The code is canonical: codes of equal length ascend with their symbols, and a longer code continues where
//! the shorter ones end. So the lengths define it, and the tables below are derived from them at compile
//! time.

/// Symbols are the 256 bytes and the end of the string.
const SYMBOLS: usize = 257;
const END_OF_STRING: u16 = 256;
const LENGTH_MAX: usize = 30;

/// Bits of each symbol's code.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

static CODE: Code = Code::derive();

struct Code {
    codes: [u32; SYMBOLS],
    /// Symbols by length, then by value.
    sorted: [u16; SYMBOLS],
    /// For each length: its first code, and where its symbols begin in `sorted`.
    first: [u32; LENGTH_MAX + 1],
    start: [u16; LENGTH_MAX + 2],
    /// By the next 8 bits: symbol and length, or a length of 0 where the code is longer.
    short: [(u8, u8); 256],
}

impl Code {
    const fn derive() -> Code {
        let mut code = Code {
            codes: [0; SYMBOLS],
            sorted: [0; SYMBOLS],
            first: [0; LENGTH_MAX + 1],
            start: [0; LENGTH_MAX + 2],
            short: [(0, 0); 256],
        };
        let (mut length, mut next, mut place) = (1, 0u32, 0);
        while length <= LENGTH_MAX {
            next <<= 1;
            code.first[length] = next;
            code.start[length] = place as u16;
            let mut symbol = 0;
            while symbol < SYMBOLS {
                if LENGTHS[symbol] as usize == length {
                    code.codes[symbol] = next;
                    code.sorted[place] = symbol as u16;
                    if length <= 8 {
                        let mut byte = (next as usize) << (8 - length);
                        let end = (next as usize + 1) << (8 - length);
                        while byte < end {
                            code.short[byte] = (symbol as u8, length as u8);
                            byte += 1;
                        }
                    }
                    next += 1;
                    place += 1;
                }
                symbol += 1;
            }
            length += 1;
        }
        code.start[LENGTH_MAX + 1] = place as u16;
        code
    }

    /// Returns the first symbol of `window`, which is left-aligned, and its length.
    fn symbol(&self, window: u32) -> (u16, u32) {
        let (symbol, length) = self.short[(window >> 24) as usize];
        if length != 0 {
            return (u16::from(symbol), u32::from(length));
        }
        for length in 9..=LENGTH_MAX {
            let offset = (window >> (32 - length)).wrapping_sub(self.first[length]);
            let (start, end) = (self.start[length], self.start[length + 1]);
            if offset < u32::from(end - start) {
                return (self.sorted[usize::from(start) + offset as usize], length as u32);
            }
        }
        // The code is complete, so every window starts with a symbol; the last is the end of the string.
        (END_OF_STRING, LENGTH_MAX as u32)
    }
}

/// The string is no valid code: it contains the end of the string, or its padding is not the shortest run of
/// ones.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invalid;

/// Appends the decoded string to `out`: at most 8 bytes for 5 of `string`.
pub(crate) fn decode(string: &[u8], out: &mut Vec<u8>) -> Result<(), Invalid> {
    // The low `bits` bits of `buffer` are not yet decoded.
    let (mut buffer, mut bits) = (0u64, 0u32);
    let mut bytes = string.iter();
    loop {
        while bits <= 56 {
            let Some(&byte) = bytes.next() else { break };
            buffer = buffer << 8 | u64::from(byte);
            bits += 8;
        }
        if bits == 0 {
            return Ok(());
        }
        // Past the end come ones, as in the padding.
        let window = if bits >= 32 {
            (buffer >> (bits - 32)) as u32
        } else {
            (buffer << (32 - bits)) as u32 | u32::MAX >> bits
        };
        let (symbol, length) = CODE.symbol(window);
        if length > bits {
            let padding = (1u64 << bits) - 1;
            return if bits < 8 && buffer & padding == padding { Ok(()) } else { Err(Invalid) };
        }
        if symbol == END_OF_STRING {
            return Err(Invalid);
        }
        out.push(symbol as u8);
        bits -= length;
    }
}

pub(crate) fn encoded_len(string: &[u8]) -> usize {
    string.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum::<usize>().div_ceil(8)
}

pub(crate) fn encode(string: &[u8], out: &mut Vec<u8>) {
    let (mut buffer, mut bits) = (0u64, 0u32);
    for &byte in string {
        let length = u32::from(LENGTHS[usize::from(byte)]);
        buffer = buffer << length | u64::from(CODE.codes[usize::from(byte)]);
        bits += length;
        while bits >= 8 {
            bits -= 8;
            out.push((buffer >> bits) as u8);
        }
    }
    if bits > 0 {
        out.push((buffer << (8 - bits)) as u8 | (u8::MAX >> bits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_coding_in_every_position() {
        for byte in 0..=u8::MAX {
            for around in 0..8 {
                let mut string = vec![b'0'; around];
                string.push(byte);
                string.extend(vec![b'1'; around]);
                let (mut coded, mut decoded) = (Vec::new(), Vec::new());
                encode(&string, &mut coded);
                assert_eq!(coded.len(), encoded_len(&string));
                decode(&coded, &mut decoded).unwrap();
                assert_eq!(decoded, string);
            }
        }
    }

    /// Codes of appendix B, of several lengths.
    #[test]
    fn derived_codes_are_those_of_the_rfc() {
        for (symbol, code) in [
            (usize::from(b'0'), 0x0),
            (usize::from(b'a'), 0x3),
            (usize::from(b'z'), 0x7b),
            (usize::from(b'X'), 0xfc),
            (0, 0x1ff8),
            (usize::from(b'\\'), 0x7fff0),
            (255, 0x3ffffee),
            (256, 0x3fffffff),
        ] {
            assert_eq!(CODE.codes[symbol], code, "symbol {symbol}");
        }
    }

    /// RFC 7541, 5.2: padding is shorter than 8 bits and all ones; the end of the string is not coded.
    #[test]
    fn refuses_wrong_padding_and_a_coded_end() {
        for string in [&[0x04][..], &[0xff], &[0x07, 0xff], &[0xff, 0xff, 0xff, 0xff], &[0x18]] {
            let result = decode(string, &mut Vec::new());
            assert_eq!(result, Err(Invalid), "{string:x?}");
        }
        assert_eq!(decode(&[0x07], &mut Vec::new()), Ok(()));
    }
}
