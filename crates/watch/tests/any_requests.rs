//! Any bytes as requests of watch streams: the program that the fuzz target runs, on its corpus and on random
//! bytes.

use crate::program;
use std::path::Path;

use proptest::prelude::*;

#[test]
fn the_corpus_of_the_fuzz_target_keeps_the_laws() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/watch_requests");
    let inputs =
        std::fs::read_dir(corpus).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
    let played = inputs.inspect(|input| program::play(input)).count();
    assert!(played >= 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_keep_the_laws(input in prop::collection::vec(any::<u8>(), 0..400)) {
        program::play(&input);
    }
}
