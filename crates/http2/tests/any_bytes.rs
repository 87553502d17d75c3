//! Arbitrary frames and bytes with arbitrary read boundaries: the laws of `common/laws.rs`.

use crate::common::*;
use crate::laws;
use proptest::prelude::*;

/// Mostly valid frames, so that many are handled.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let stream = prop_oneof![6 => (0u32..12).prop_map(|n| 2 * n + 1), 2 => Just(0), 1 => any::<u32>()];
    let bytes = |max| proptest::collection::vec(any::<u8>(), 0..max);
    let fragment = prop_oneof![
        4 => Just(block(&POST)),
        1 => Just(block(&[&POST[..], &[("content-length", "3")]].concat())),
        // With an entry for the dynamic table, which later blocks refer to by be and bf.
        2 => Just([&block(&POST)[..], b"\x40\x01a\x01b"].concat()),
        1 => Just([&block(&POST)[..], b"\xbe"].concat()),
        1 => bytes(20),
    ];
    let flags = prop_oneof![Just(0u8), Just(1), Just(4), Just(5), Just(5), any::<u8>()];
    prop_oneof![
        4 => (flags.clone(), stream.clone(), fragment.clone())
            .prop_map(|(flags, stream, block)| frame(HEADERS, flags, stream, &block)),
        3 => (flags.clone(), stream.clone(), bytes(600))
            .prop_map(|(flags, stream, data)| frame(DATA, flags, stream, &data)),
        1 => (flags.clone(), stream.clone(), fragment)
            .prop_map(|(flags, stream, block)| frame(CONTINUATION, flags, stream, &block)),
        1 => (stream.clone(), 0u32..9000)
            .prop_map(|(stream, by)| frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())),
        1 => (1u16..7, 0u32..70_000).prop_map(|(id, value)| frame(SETTINGS, 0, 0, &setting(id, value))),
        1 => stream.clone().prop_map(|stream| frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])),
        1 => Just(frame(PING, 0, 0, b"pingpong")),
        1 => (any::<u8>(), flags, stream, bytes(12))
            .prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload)),
        1 => bytes(12),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_frames_cut_anywhere_keep_the_laws(
        frames in proptest::collection::vec(any_frame(), 0..60),
        lengths in proptest::collection::vec(any::<u8>(), 1..20),
    ) {
        laws::check(&[hello(), frames.concat()].concat(), &lengths);
    }

    #[test]
    fn any_bytes_cut_anywhere_keep_the_laws(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        lengths in proptest::collection::vec(any::<u8>(), 1..20),
    ) {
        laws::check(&bytes, &lengths);
        laws::check(&[hello(), bytes].concat(), &lengths);
    }
}

/// Proptest's inputs are short; this one reaches the limits on control frames, resets and output many times.
#[test]
fn long_floods_keep_the_laws() {
    for flood in [
        frame(PING, 0, 0, b"pingpong"),
        frame(SETTINGS, 0, 0, &setting(4, 70_000)),
        frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes()),
        frame(0xbe, 0, 0, &[]),
    ] {
        laws::check(&[hello(), flood.repeat(20_000)].concat(), &[255, 3]);
    }
    let mut resets = hello();
    let mut refused = hello();
    for stream in (1..40_000).step_by(2) {
        resets.extend([post(stream), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat());
        refused.extend(post(stream));
    }
    laws::check(&resets, &[255, 3]);
    laws::check(&refused, &[255, 3]);
}
