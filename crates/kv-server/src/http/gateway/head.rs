//! The head of a call: conversion of HTTP headers to metadata.
//!
//! `Authorization` is passed on, and `Grpc-Metadata-X` as `x`. `Grpc-Timeout` is the deadline. All other
//! headers are dropped.

use http::header::{AUTHORIZATION, CONNECTION, HeaderName, UPGRADE};
use http::{HeaderMap, HeaderValue};

use crate::rpc::deadline;

const METADATA_PREFIX: &str = "grpc-metadata-";
const TIMEOUT: &str = "grpc-timeout";

/// Reports whether a request is a websocket upgrade.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    has_word(headers, &CONNECTION, "upgrade") && has_word(headers, &UPGRADE, "websocket")
}

fn has_word(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case(wanted))
}

/// Returns the metadata of a call, or the error in the headers.
pub(super) fn metadata(headers: &HeaderMap) -> Result<HeaderMap, String> {
    let mut metadata = HeaderMap::new();
    for (name, value) in headers {
        match name.as_str().strip_prefix(METADATA_PREFIX) {
            Some(key) if is_free(key) => {
                if let Ok(key) = HeaderName::from_bytes(key.as_bytes()) {
                    metadata.append(key, value.clone());
                }
            }
            None if name == AUTHORIZATION => {
                metadata.append(AUTHORIZATION, value.clone());
            }
            _ => {}
        }
    }
    if let Some(timeout) = headers.get(TIMEOUT).filter(|timeout| !timeout.is_empty()) {
        let text = timeout.to_str().unwrap_or_default();
        match nanoseconds(text) {
            None => return Err(format!("invalid grpc-timeout: {text}")),
            Some(0) => {} // no deadline, as in grpc-gateway
            Some(length) => drop(metadata.insert(TIMEOUT, in_grpcs_form(length))),
        }
    }
    Ok(metadata)
}

/// Reports whether a client may set this metadata field: the fields of HTTP/2 and gRPC are reserved.
fn is_free(key: &str) -> bool {
    !key.starts_with("grpc-")
        && !matches!(
            key,
            "content-type"
                | "te"
                | "host"
                | "connection"
                | "content-length"
                | "transfer-encoding"
                | "upgrade"
                | "keep-alive"
                | "proxy-connection"
        )
}

/// Parses a number and a unit of gRPC's. grpc-gateway accepts a sign, and more digits than gRPC; values
/// above 292 years wrap around in Go, so most of them have expired.
fn nanoseconds(text: &str) -> Option<i64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = deadline::unit_nanoseconds(unit)?;
    Some(number.parse::<i64>().ok()?.wrapping_mul(unit.cast_signed()))
}

/// Formats a duration in at most eight digits. Expired ones become a nanosecond.
fn in_grpcs_form(nanoseconds: i64) -> HeaderValue {
    let length = nanoseconds.max(1).unsigned_abs();
    let units = ["n", "u", "m", "S", "M", "H"].into_iter();
    let sizes = units.filter_map(|unit| Some((unit, length.div_ceil(deadline::unit_nanoseconds(unit)?))));
    let fitting = sizes.into_iter().find(|(_, number)| *number < 100_000_000);
    let (unit, number) = fitting.expect("292 years are 2,562,048 hours");
    HeaderValue::try_from(format!("{number}{unit}")).expect("digits and a letter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_metadata_are_passed_on_and_nothing_else() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer a.1"),
            ("grpc-metadata-token", "b.2"),
            ("grpc-metadata-hasleader", "true"),
            ("grpc-metadata-grpc-timeout", "1S"),
            ("grpc-metadata-content-type", "text/plain"),
            ("token", "c.3"),
            ("accept", "*/*"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let metadata = metadata(&headers).unwrap();
        let mut fields: Vec<(&str, &[u8])> =
            metadata.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        fields.sort();
        assert_eq!(
            fields,
            [("authorization", &b"Bearer a.1"[..]), ("hasleader", b"true"), ("token", b"b.2")]
        );
    }

    #[test]
    fn a_timeout_is_passed_on_dropped_or_refused() {
        for (text, wanted) in [
            ("1n", Ok(Some("1n"))),
            ("2S", Ok(Some("2000000u"))),
            ("+2S", Ok(Some("2000000u"))),
            ("-1S", Ok(Some("1n"))),
            ("123456789S", Ok(Some("2057614M"))),
            ("9223372036854775807n", Ok(Some("2562048H"))),
            ("2562048H", Ok(Some("1n"))),
            ("99999999999H", Ok(Some("1n"))),
            ("5124096H", Ok(Some("1526291m"))),
            ("4611686018427387904H", Ok(None)),
            ("-9223372036854775808n", Ok(Some("1n"))),
            ("0n", Ok(None)),
            ("9223372036854775808n", Err("invalid grpc-timeout: 9223372036854775808n")),
            ("x", Err("invalid grpc-timeout: x")),
            ("", Ok(None)),
            ("1", Err("invalid grpc-timeout: 1")),
        ] {
            let headers = HeaderMap::from_iter([(
                HeaderName::from_static(TIMEOUT),
                HeaderValue::from_str(text).unwrap(),
            )]);
            let made = metadata(&headers).map(|metadata| metadata.get(TIMEOUT).cloned());
            let wanted = wanted.map(|text| text.map(HeaderValue::from_static)).map_err(str::to_owned);
            assert_eq!(made, wanted, "{text}");
        }
    }
}
