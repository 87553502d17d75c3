//! Parses values of flags like Go, with Go's error messages.

use std::time::Duration;

use crate::url::{Url, UrlError};

const NO_NUMBER: &str = "parse error; use a whole number";
const OUT_OF_RANGE: &str = "value out of range";

pub fn unsigned(text: &str) -> Result<u64, &'static str> {
    digits(text)?.try_into().map_err(|_| OUT_OF_RANGE)
}

pub fn unsigned_32(text: &str) -> Result<u32, &'static str> {
    digits(text)?.try_into().map_err(|_| OUT_OF_RANGE)
}

pub fn signed(text: &str) -> Result<i64, &'static str> {
    let number = match text.strip_prefix('-') {
        Some(text) => -digits(text)?,
        None => digits(text.strip_prefix('+').unwrap_or(text))?,
    };
    number.try_into().map_err(|_| OUT_OF_RANGE)
}

/// A number without a sign as Go reads it: `0x1f`, `0o17` or `017`, `0b11`, `1_000_000`.
fn digits(text: &str) -> Result<i128, &'static str> {
    let text = text.to_ascii_lowercase();
    let bases = [("0x", 16), ("0o", 8), ("0b", 2), ("0", 8)];
    let of_base =
        |(prefix, base)| Some((text.strip_prefix(prefix)?, base)).filter(|(rest, _)| !rest.is_empty());
    let (rest, base) = bases.into_iter().find_map(of_base).unwrap_or((&text, 10));
    let mut groups = rest.split('_').enumerate();
    // An underscore is allowed between two digits, or after the base.
    let is_whole = groups.all(|(at, group)| {
        let is_digits = group.chars().all(|digit| digit.is_digit(base));
        is_digits && (!group.is_empty() || (at == 0 && base != 10))
    });
    let digits = rest.replace('_', "");
    if !is_whole || digits.is_empty() {
        return Err(NO_NUMBER);
    }
    i128::from_str_radix(&digits, base).map_err(|_| OUT_OF_RANGE)
}

/// Parses a duration in Go's format: `2h0m0s`, `500ms`, `1.5s`. Rejects negative ones.
pub fn duration(text: &str) -> Result<Duration, &'static str> {
    const UNITS: [(&str, f64); 7] =
        [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    const WRONG: &str = "parse error; use a duration such as 500ms, 5s or 1m30s";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(WRONG)?;
        let number: f64 = rest[..digits].parse().map_err(|_| WRONG)?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == &rest[..end]).ok_or(WRONG)?;
        seconds += number * unit;
        rest = &rest[end..];
    }
    if text.is_empty() { Err(WRONG) } else { Duration::try_from_secs_f64(seconds).map_err(|_| WRONG) }
}

/// An amount of memory: `512MiB`, `2GB`, `1048576`. Go has no such flag, and its octal numbers are not read.
pub fn bytes(text: &str) -> Result<u64, &'static str> {
    const UNITS: [(&str, u64); 8] = [
        ("", 1),
        ("B", 1),
        ("KB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
    ];
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let (_, factor) =
        UNITS.iter().find(|(name, _)| *name == unit).ok_or("parse error; use bytes such as 512MiB")?;
    let number: u64 = number.parse().map_err(|_| if number.is_empty() { NO_NUMBER } else { OUT_OF_RANGE })?;
    number.checked_mul(*factor).ok_or(OUT_OF_RANGE)
}

/// Returns a size that may be negative: a number as Go reads it, or an amount of memory with its unit.
pub fn signed_bytes(text: &str) -> Result<i64, &'static str> {
    or_with_unit(signed(text), text)
}

/// Returns a size: a number as Go reads it, or an amount of memory with its unit.
pub fn unsigned_bytes(text: &str) -> Result<u64, &'static str> {
    or_with_unit(unsigned(text), text)
}

fn or_with_unit<T: TryFrom<u64>>(number: Result<T, &'static str>, text: &str) -> Result<T, &'static str> {
    match number {
        Err(NO_NUMBER) if text.ends_with('B') => bytes(text)?.try_into().map_err(|_| OUT_OF_RANGE),
        number => number,
    }
}

/// A list of origins, each a URL without a path, or `*`.
pub fn origins(text: &str) -> Result<String, UrlError> {
    for origin in text.split(',').filter(|origin| *origin != "*") {
        Url::parse(origin)?;
    }
    Ok(text.to_owned())
}

/// The words that Go takes for a switch.
pub fn switch(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("parse error; use true or false"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        for (text, wanted) in [
            ("0", Ok(0)),
            ("-7", Ok(-7)),
            ("+7", Ok(7)),
            ("010", Ok(8)),
            ("0x10", Ok(16)),
            ("0X1f", Ok(31)),
            ("0o17", Ok(15)),
            ("0b11", Ok(3)),
            ("8_000_000", Ok(8_000_000)),
            ("0x_ff", Ok(255)),
            ("0_7", Ok(7)),
            ("9223372036854775807", Ok(i64::MAX)),
            ("9223372036854775808", Err(OUT_OF_RANGE)),
            ("99999999999999999999999999999999999999999", Err(OUT_OF_RANGE)),
        ]
        .into_iter()
        .chain(
            ["", "-", "_1", "1_", "1__0", "09", "0x", "0x_", "1e3", " 1", "8GB", "--1", "0b2", "-+1", "0x-1"]
                .map(|text| (text, Err(NO_NUMBER))),
        ) {
            assert_eq!(signed(text), wanted, "{text:?}");
        }
        assert_eq!(
            (unsigned("+1"), unsigned("-1"), unsigned_32("4294967296")),
            (Err(NO_NUMBER), Err(NO_NUMBER), Err(OUT_OF_RANGE))
        );
    }

    #[test]
    fn amounts_of_memory_are_decimal() {
        const WRONG: &str = "parse error; use bytes such as 512MiB";
        for (text, wanted) in [
            ("0", Ok(0)),
            ("1048576", Ok(1 << 20)),
            ("2GB", Ok(2_000_000_000)),
            ("010GiB", Ok(10 << 30)),
            ("08GiB", Ok(8 << 30)),
            ("010", Ok(10)),
            ("18446744073709551615", Ok(u64::MAX)),
            ("18446744073709551616", Err(OUT_OF_RANGE)),
            ("18446744073709551615KB", Err(OUT_OF_RANGE)),
            ("", Err(NO_NUMBER)),
            ("GiB", Err(NO_NUMBER)),
            ("0x10", Err(WRONG)),
            ("1_000", Err(WRONG)),
            ("-1", Err(WRONG)),
            ("1gib", Err(WRONG)),
        ] {
            assert_eq!(bytes(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn a_size_is_a_number_of_go_or_has_a_unit() {
        for (text, wanted) in [
            ("8GiB", Ok(8 << 30)),
            ("2GB", Ok(2_000_000_000)),
            ("0xB", Ok(11)),
            ("010", Ok(8)),
            ("-1", Ok(-1)),
            ("-8GiB", Err("parse error; use bytes such as 512MiB")),
            ("9223372036854775808B", Err(OUT_OF_RANGE)),
            ("8G", Err(NO_NUMBER)),
            ("", Err(NO_NUMBER)),
        ] {
            assert_eq!(signed_bytes(text), wanted, "{text:?}");
        }
        assert_eq!((unsigned_bytes("2MiB"), unsigned_bytes("-1")), (Ok(2 << 20), Err(NO_NUMBER)));
    }
}
