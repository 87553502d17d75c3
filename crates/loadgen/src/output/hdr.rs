//! HdrHistogram's log format 1.3, for plotting and merging histograms with its tools.
//!
//! A histogram is encoded as version 2: counts as ZigZag LEB128, runs of zeros as a negative number, inside
//! zlib, inside base64. The zlib stream is stored, not compressed: the counts are small already.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use std::fmt::Write;

const COOKIE: u32 = 0x1c84_9303 | 0x10;
const COMPRESSED_COOKIE: u32 = 0x1c84_9304 | 0x10;
/// zlib with a window of 32 KiB, at the fastest level.
const ZLIB_HEADER: [u8; 2] = [0x78, 0x01];
/// Maximum size of a stored block.
const BLOCK_BYTES_MAX: usize = 0xffff;
const ADLER_MODULUS: u32 = 65_521;
/// Unit of the column of maxima; histograms are in nanoseconds.
const NANOS_PER_MILLI: f64 = 1e6;

/// Formats a log with an interval per histogram, with its tag.
pub fn log(start_unix_seconds: u64, seconds: f64, histograms: &[(String, &Histogram<u64>)]) -> String {
    let mut out = String::from("#[HdrHistogram log format version 1.3]\n");
    let _ = writeln!(out, "#[StartTime: {start_unix_seconds}.000 (seconds since epoch)]");
    out.push_str(
        "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n",
    );
    for (tag, histogram) in histograms {
        let max = histogram.max() as f64 / NANOS_PER_MILLI;
        // A comma would terminate the tag.
        let tag = tag.replace([',', ' '], "-");
        let tag = if tag.is_empty() { tag } else { format!("Tag={tag},") };
        let text = STANDARD.encode(compressed(&encoded(histogram)));
        let _ = writeln!(out, "{tag}0.000,{seconds:.3},{max:.3},{text}");
    }
    out
}

fn encoded(histogram: &Histogram<u64>) -> Vec<u8> {
    let counts = payload(histogram);
    let mut out = Vec::with_capacity(40 + counts.len());
    out.extend(COOKIE.to_be_bytes());
    out.extend((counts.len() as u32).to_be_bytes());
    out.extend(0_u32.to_be_bytes()); // counts are not shifted
    out.extend(u32::from(histogram.sigfig()).to_be_bytes());
    out.extend(histogram.low().to_be_bytes());
    out.extend(histogram.high().to_be_bytes());
    out.extend(1_f64.to_be_bytes()); // values are integers
    out.extend(counts);
    out
}

fn payload(histogram: &Histogram<u64>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut zeros = 0_i64;
    for step in histogram.iter_all() {
        match step.count_at_value() {
            0 => zeros += 1,
            count => {
                if zeros > 0 {
                    zigzag(-zeros, &mut out);
                    zeros = 0;
                }
                zigzag(i64::try_from(count).unwrap_or(i64::MAX), &mut out);
            }
        }
    }
    out
}

/// Appends seven bits per byte, eight in the ninth.
fn zigzag(value: i64, out: &mut Vec<u8>) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    for _ in 0..8 {
        if rest < 0x80 {
            out.push(rest as u8);
            return;
        }
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut zlib = ZLIB_HEADER.to_vec();
    let blocks = bytes.chunks(BLOCK_BYTES_MAX);
    let last = blocks.len().saturating_sub(1);
    for (number, block) in blocks.enumerate() {
        let length = block.len() as u16;
        zlib.push(u8::from(number == last));
        zlib.extend(length.to_le_bytes());
        zlib.extend((!length).to_le_bytes());
        zlib.extend(block);
    }
    zlib.extend(adler32(bytes).to_be_bytes());
    let mut out = COMPRESSED_COOKIE.to_be_bytes().to_vec();
    out.extend((zlib.len() as u32).to_be_bytes());
    out.extend(zlib);
    out
}

fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1, 0), |(a, b), &byte| {
        let a = (a + u32::from(byte)) % ADLER_MODULUS;
        (a, (b + a) % ADLER_MODULUS)
    });
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_encoded_as_runs_and_numbers() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        histogram.record_n(3, 5).unwrap();
        histogram.record_n(4, 300).unwrap();
        // Three zeros as -3, then 5 and 300, each as ZigZag LEB128.
        assert_eq!(payload(&histogram), [5, 10, 0xd8, 0x04]);
        let bytes = encoded(&histogram);
        assert_eq!(bytes[..8], [0x1c, 0x84, 0x93, 0x13, 0, 0, 0, 4]);
        assert_eq!(bytes.len(), 40 + 4);
        assert!(payload(&Histogram::<u64>::new(3).unwrap()).is_empty());
    }

    #[test]
    fn the_checksum_is_that_of_zlib() {
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
        let bytes = compressed(b"Wikipedia");
        assert_eq!(bytes[8..15], [0x78, 0x01, 1, 9, 0, 0xf6, 0xff]);
        assert_eq!(bytes[bytes.len() - 4..], [0x11, 0xe6, 0x03, 0x98]);
    }

    #[test]
    fn a_log_has_a_line_for_each_histogram() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        histogram.record(2_000_000).unwrap();
        let log = log(1700, 2.5, &[("Get pod".into(), &histogram), (String::new(), &histogram)]);
        let lines: Vec<_> = log.lines().skip(3).collect();
        assert!(lines[0].starts_with("Tag=Get-pod,0.000,2.500,2.0"), "{log}");
        // HISTF is the base64 of the cookie.
        assert!(lines[1].starts_with("0.000,2.500,2.0") && lines[1].contains(",HISTF"), "{log}");
    }
}
