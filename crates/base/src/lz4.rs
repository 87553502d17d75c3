//! LZ4 blocks. A block does not contain the length of its raw bytes; the caller stores it.

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

/// Appends the LZ4 block of `raw` to `out` if it is at most `bytes_max` bytes long. Otherwise returns
/// false and leaves `out` unchanged.
pub fn compress(raw: &[u8], bytes_max: usize, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.resize(start + get_maximum_output_size(raw.len()), 0);
    let bytes = compress_into(raw, &mut out[start..]).expect("the output has the size that never fails");
    let is_small = bytes <= bytes_max;
    out.truncate(if is_small { start + bytes } else { start });
    is_small
}

/// Decompresses a block to exactly `raw_bytes` bytes, or returns `None`. Does not allocate if a block
/// of this length cannot expand to `raw_bytes`, so a forged length cannot make a reader allocate a
/// gigabyte.
pub fn decompress(block: &[u8], raw_bytes: usize) -> Option<Vec<u8>> {
    if raw_bytes > raw_bytes_max(block.len()) {
        return None;
    }
    let mut raw = vec![0; raw_bytes];
    decompress_into(block, &mut raw).is_ok_and(|bytes| bytes == raw_bytes).then_some(raw)
}

/// Returns the maximum raw length of a block: each byte of a match length adds up to 255 bytes.
pub fn raw_bytes_max(block_bytes: usize) -> usize {
    block_bytes.saturating_mul(255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_compressed_is_decompressed() {
        let (even, mixed) = (vec![7; 1 << 20], (0..=255).collect::<Vec<u8>>());
        for raw in [&even, &mixed] {
            let mut block = b"before".to_vec();
            assert!(compress(raw, usize::MAX, &mut block));
            assert_eq!(decompress(&block[6..], raw.len()).as_ref(), Some(raw));
            assert!(raw.len() <= raw_bytes_max(block.len() - 6));
        }
    }

    #[test]
    fn a_block_that_saves_too_little_is_not_kept() {
        let mut out = b"before".to_vec();
        assert!(!compress(&(0..=255).collect::<Vec<u8>>(), 200, &mut out));
        assert_eq!(out, b"before");
    }

    #[test]
    fn a_wrong_length_is_refused() {
        let mut block = Vec::new();
        assert!(compress(&[7; 1000], usize::MAX, &mut block));
        for raw_bytes in [0, 999, 1001, usize::MAX] {
            assert_eq!(decompress(&block, raw_bytes), None, "{raw_bytes}");
        }
        assert_eq!(decompress(&[], 1 << 30), None);
    }
}
