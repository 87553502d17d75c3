//! The set of deleted keys compared with a list of intervals. `tests/validation.rs` tests the rule itself.

use super::*;
use bytes::Bytes;
use proptest::prelude::*;

fn delete(key: &str, range_end: &str) -> DeleteRangeRequest {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    DeleteRangeRequest { key: bytes(key), range_end: bytes(range_end), prev_kv: false }
}

fn covers(request: &DeleteRangeRequest, key: &[u8]) -> bool {
    if request.range_end.is_empty() {
        request.key == key
    } else {
        request.key <= key && key < &request.range_end[..]
    }
}

fn assert_disjoint(deletes: &Deletes<'_>) {
    let mut last_end: Option<&[u8]> = None;
    for (start, end) in &deletes.ranges {
        assert!(start < end && last_end.is_none_or(|last| last < *start), "{:?}", deletes.ranges);
        last_end = Some(end);
    }
}

#[test]
fn ranges_that_meet_become_one() {
    let requests = [delete("a", "c"), delete("e", "g"), delete("c", "e"), delete("b", "d"), delete("x", "y")];
    let mut deletes = Deletes::default();
    requests.iter().for_each(|request| deletes.insert(request));
    let ranges: Vec<_> = deletes.ranges.iter().map(|(start, end)| (*start, *end)).collect();
    assert_eq!(ranges, [(&b"a"[..], &b"g"[..]), (b"x", b"y")]);
}

#[test]
fn a_range_swallows_those_inside_it() {
    let requests = [delete("c", "d"), delete("e", "f"), delete("a", "z")];
    let mut deletes = Deletes::default();
    requests.iter().for_each(|request| deletes.insert(request));
    assert_eq!(deletes.ranges.len(), 1);
    assert!(deletes.contains(b"y") && !deletes.contains(b"z"));
}

proptest! {
    #[test]
    fn the_merged_set_covers_exactly_what_its_parts_cover(
        parts in prop::collection::vec(("[a-h]{1,2}", prop_oneof![Just(String::new()), "[a-h]{1,2}".boxed(), Just("\0".to_owned())]), 0..12),
        keys in prop::collection::vec("[a-h]{1,3}", 1..20),
        cut in 0..12usize,
    ) {
        let requests: Vec<_> = parts.iter().map(|(key, end)| delete(key, end)).collect();
        let (mut deletes, mut others) = (Deletes::default(), Deletes::default());
        for (place, request) in requests.iter().enumerate() {
            if place < cut { deletes.insert(request) } else { others.insert(request) }
        }
        deletes.absorb(others);
        assert_disjoint(&deletes);
        for key in &keys {
            let wanted = requests.iter().any(|request| covers(request, key.as_bytes()));
            prop_assert_eq!(deletes.contains(key.as_bytes()), wanted, "{}", key);
        }
    }
}
