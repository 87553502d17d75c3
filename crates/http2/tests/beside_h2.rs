//! Unusual frames, compared with the server of the `h2` crate.

#[path = "common/beside_h2.rs"]
mod both;

use crate::common::*;
use proptest::prelude::*;

/// A header block: a request, trailers, odd fields, or undecodable bytes.
fn any_block() -> impl Strategy<Value = Vec<u8>> {
    let request = (0usize..4, any::<bool>()).prop_map(|(odd, path)| {
        let mut fields = POST.to_vec();
        match odd {
            0 => fields.push(("content-length", "3")),
            1 => fields.push(("te", "trailers")),
            2 => drop(fields.remove(usize::from(path))),
            _ => fields.push(("x", if path { "1" } else { "" })),
        }
        block(&fields)
    });
    let field =
        (prop_oneof!["[a-c]", "[A-Z:]", ":(path|status)", "te|upgrade|content-length"], "[0-9 ]{0,3}");
    let fields = proptest::collection::vec(field, 0..4).prop_map(|fields| {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        block(&fields)
    });
    prop_oneof![
        6 => Just(block(&POST)),
        3 => request,
        2 => fields,
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ]
}

/// A frame as the input has it.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![4 => Just(0u8), 2 => Just(1), 4 => Just(4), 4 => Just(5), 1 => any::<u8>()];
    let stream = prop_oneof![6 => (0u8..5).prop_map(|call| 2 * call + 1), 2 => Just(0), 1 => any::<u8>()];
    let kind = prop_oneof![4 => Just(DATA), 6 => Just(HEADERS), 3 => 2u8..11];
    let payload = prop_oneof![
        3 => any_block(),
        1 => proptest::collection::vec(any::<u8>(), 0..13),
        1 => prop_oneof![Just(4usize), Just(8), Just(6), Just(5), Just(3)].prop_flat_map(|length| {
            proptest::collection::vec(0u8..3, length)
        }),
    ];
    (kind, flags, stream, payload).prop_map(|(kind, flags, stream, payload)| {
        let length = u8::try_from(payload.len()).unwrap();
        [&[length, kind, flags, stream][..], &payload].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn frames_mean_what_they_mean_to_h2_or_are_refused(
        frames in proptest::collection::vec(any_frame(), 1..12),
    ) {
        both::check(&frames.concat());
    }
}

/// Found by the fuzz target: 90 fields of 48 bytes are above the limit of 4096, and the last one has no name.
#[test]
fn a_list_that_is_too_large_is_answered_whatever_its_last_fields_are() {
    let fields = [&block(&POST)[..], &[0x80 | 61; 90], &[0, 0, 0]].concat();
    let length = u8::try_from(fields.len()).unwrap();
    both::check(&[&[length, HEADERS, 4, 1][..], &fields].concat());
}

/// Inputs found by the fuzz target, each named after its content.
#[test]
fn what_fuzzing_has_found_means_what_it_means_to_h2_or_is_refused() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/http2_beside_h2");
    let inputs = std::fs::read_dir(directory).unwrap().map(|entry| std::fs::read(entry.unwrap().path()));
    let count = inputs.map(|input| both::check(&input.unwrap())).count();
    assert!(count >= 6, "{count}");
}
