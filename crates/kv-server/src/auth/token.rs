//! The text of a simple token: random letters, a dot, the index of the log entry that issued it.

use rand::RngExt;

/// Letters: 24 of 52, which are 136 random bits. etcd has 16.
const LETTERS: usize = 24;
const ALPHABET: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// The letters of a new token.
pub fn prefix() -> String {
    let mut random = rand::rng();
    (0..LETTERS).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())])).collect()
}

/// The entry that a token says it was issued by.
pub fn index_of(token: &str) -> Option<u64> {
    token.split_once('.')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_letters_and_an_index() {
        let (one, other) = (prefix(), prefix());
        assert!(one != other && one.len() == 24 && one.chars().all(|letter| letter.is_ascii_alphabetic()));
        for (token, index) in
            [("abc.25", Some(25)), ("abc", None), ("abc.", None), ("abc.x", None), ("abc.1.2", None)]
        {
            assert_eq!(index_of(token), index, "{token}");
        }
    }
}
