//! The trace context of a call's headers, by the W3C recommendation.

use http::HeaderMap;

/// Length of `tracestate` that the standard requires to propagate. A longer one is dropped, as its bytes
/// would wait in the queue.
const STATE_BYTES_MAX: usize = 512;
/// Maximum length of a parsed `traceparent`; a regular one has 55 bytes.
const PARENT_BYTES_MAX: usize = 128;

/// The client's span.
#[derive(Debug, PartialEq)]
pub struct Parent {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub is_sampled: bool,
    /// The client's `tracestate`, passed on as it is.
    pub state: String,
}

impl Parent {
    /// Returns the span in the headers of a call, if they have a valid one.
    pub fn of(headers: &HeaderMap) -> Option<Parent> {
        let text = |name, bytes_max| {
            let value = headers.get(name).filter(|value| value.len() <= bytes_max)?;
            value.to_str().ok()
        };
        let mut parts = text("traceparent", PARENT_BYTES_MAX)?.trim().split('-');
        let [version] = bytes(parts.next()?)?;
        let (trace_id, span_id) = (bytes(parts.next()?)?, bytes(parts.next()?)?);
        let [flags] = bytes(parts.next()?)?;
        // A later version may have more parts.
        let is_valid = version != 0xff && (version != 0 || parts.next().is_none());
        let is_valid = is_valid && trace_id != [0; 16] && span_id != [0; 8];
        let state = text("tracestate", STATE_BYTES_MAX).unwrap_or_default().to_owned();
        is_valid.then_some(Parent { trace_id, span_id, is_sampled: flags & 1 == 1, state })
    }
}

/// Parses `N` bytes of lower-case hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != 2 * N || !text.as_bytes().iter().all(is_digit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(0..N) {
        *byte = u8::from_str_radix(&text[2 * digits..2 * digits + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-11111111111111111111111111111111-2222222222222222-01";

    fn of(parent: &str, state: &str) -> Option<Parent> {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", parent.parse().ok()?);
        headers.insert("tracestate", state.parse().unwrap());
        Parent::of(&headers)
    }

    #[test]
    fn a_parent_has_ids_flags_and_state() {
        let parent = |is_sampled, state: &str| {
            Some(Parent { trace_id: [0x11; 16], span_id: [0x22; 8], is_sampled, state: state.to_owned() })
        };
        assert_eq!(of(PARENT, "a=b"), parent(true, "a=b"));
        assert_eq!(of(&PARENT.replace("-01", "-03"), ""), parent(true, ""));
        assert_eq!(of(&PARENT.replace("-01", "-02"), ""), parent(false, ""));
        assert_eq!(of(PARENT, &format!("a={}", "b".repeat(STATE_BYTES_MAX))), parent(true, ""));
        // A later version may have more fields.
        let later = PARENT.replace("00-", "01-");
        assert_eq!(of(&format!("{later}-{}", "-".repeat(10)), ""), parent(true, ""));
    }

    #[test]
    fn malformed_and_oversized_parents_are_ignored() {
        let long = format!("{}-{}", PARENT.replace("00-", "01-"), "-".repeat(64 * 1024));
        let zero = PARENT.replace("1111", "0000");
        let more = format!("{PARENT}-1");
        let (upper, signed) = (PARENT.replace('1', "A"), PARENT.replace("-01", "-+1"));
        let odd = ["", "-", "00", "00-", "ff-1-1-01", "00-\u{7f}", &"0".repeat(55)];
        for parent in
            odd.into_iter().chain([&*long, &zero, &more, &upper, &signed, &PARENT.replace("00-", "ff-")])
        {
            assert_eq!(of(parent, ""), None, "{parent:?}");
        }
    }
}
