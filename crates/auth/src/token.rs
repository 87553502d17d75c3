//! Text of a simple token: random letters, a dot, the index of the log entry that issued it.
//!
//! Only the client has the letters. The log and the members' tables have their SHA-256, so that a
//! token cannot be recovered from a log.

use rand::RngExt;
use sha2::{Digest, Sha256};

/// Number of letters: 24 of 52 possible ones, which are 136 random bits. etcd has 16.
const LETTERS: usize = 24;
/// Digits of the largest index.
const INDEX_DIGITS_MAX: usize = 20;
const ALPHABET: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

pub fn letters() -> String {
    let mut random = rand::rng();
    (0..LETTERS).map(|_| char::from(ALPHABET[random.random_range(0..ALPHABET.len())])).collect()
}

/// Returns the digest that the log stores instead of the letters: 64 hexadecimal digits.
pub fn digest(letters: &str) -> String {
    Sha256::digest(letters).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the name under which members store a token. None for a text that cannot be a token, such as a
/// digest from a log, or one with an index that is not a number.
pub fn name(token: &str) -> Option<String> {
    let (letters, index) = token.split_once('.')?;
    let is_index = index.len() <= INDEX_DIGITS_MAX && index.parse::<u64>().is_ok();
    (letters.len() == LETTERS && is_index).then(|| format!("{}.{index}", digest(letters)))
}

/// Returns the token that members store as `name`.
pub fn with_letters(name: &str, letters: &str) -> String {
    let index = name.split_once('.').map_or("", |(_, index)| index);
    format!("{letters}.{index}")
}

/// Returns the log index in a token.
pub fn index_of(token: &str) -> Option<u64> {
    token.split_once('.')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_letters_and_an_index() {
        let (one, other) = (letters(), letters());
        assert!(one != other && one.len() == 24 && one.chars().all(|letter| letter.is_ascii_alphabetic()));
        for (token, index) in
            [("abc.25", Some(25)), ("abc", None), ("abc.", None), ("abc.x", None), ("abc.1.2", None)]
        {
            assert_eq!(index_of(token), index, "{token}");
        }
    }

    #[test]
    fn a_name_is_found_from_its_token_and_is_no_token() {
        let letters = letters();
        let kept = format!("{}.7", digest(&letters));
        let token = with_letters(&kept, &letters);
        assert_eq!(token, format!("{letters}.7"));
        assert_eq!(name(&token).as_ref(), Some(&kept));
        assert!(!kept.contains(&letters));
        let long = format!("{letters}.{:0100}", 7);
        for other in [kept.as_str(), "abc.7", letters.as_str(), "", &long, &format!("{letters}.x")] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
