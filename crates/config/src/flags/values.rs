//! Values of flags as Go reads them, with its words for those that it cannot read.

use std::time::Duration;

use crate::url::{Url, UrlError};

pub fn unsigned(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|error| number_reason(&error))
}

pub fn unsigned_32(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|error| number_reason(&error))
}

pub fn signed(text: &str) -> Result<i64, &'static str> {
    text.parse().map_err(|error| number_reason(&error))
}

fn number_reason(error: &std::num::ParseIntError) -> &'static str {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    match error.kind() {
        PosOverflow | NegOverflow => "value out of range",
        _ => "parse error; write a whole number",
    }
}

/// A length of time as Go writes it: `2h0m0s`, `500ms`, `1.5s`. Negative ones are refused.
pub fn duration(text: &str) -> Result<Duration, &'static str> {
    const UNITS: [(&str, f64); 7] =
        [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    const WRONG: &str = "parse error; write a time such as 500ms, 5s or 1m30s";
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

/// An amount of memory: `512MiB`, `2GB`, `1048576`.
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
        UNITS.iter().find(|(name, _)| *name == unit).ok_or("parse error; write bytes such as 512MiB")?;
    unsigned(number)?.checked_mul(*factor).ok_or("value out of range")
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
        _ => Err("parse error; write true or false"),
    }
}
