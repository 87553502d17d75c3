//! What the words of a command name.

pub(super) fn link(word: &str) -> (u64, u64) {
    let (from, to) = word.split_once('>').expect("FROM>TO");
    (id(from), id(to))
}

pub(super) fn id(word: &str) -> u64 {
    word.parse().expect("the id of a member")
}

pub(super) fn ids(words: &[&str]) -> Vec<u64> {
    words.iter().map(|word| id(word)).collect()
}
