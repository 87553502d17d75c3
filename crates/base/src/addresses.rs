//! Where one peer is dialled.
//!
//! ```text
//!   listed ──update──▶ former ──the peer answers where the list has it──▶ forgotten
//! ```
//!
//! An operator changes the list first and starts the member at its new address afterwards, perhaps much
//! later, and the new address may be misspelt. So a member stays reachable where it was.
//!
//! Knows no connections. The simulator dials by it as well.

use crate as base; // Mutants are found in the source by `base::`.

/// Former addresses that are kept of one peer: those of some updates in a row.
const FORMER_MAX: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Where the list has the peer. Empty: it is not in the list.
    listed: Vec<String>,
    /// Where it was dialled before, if it has not answered yet where the list has it.
    former: Vec<String>,
    /// Where it says that it is; see `introduction`.
    claimed: Vec<String>,
    /// Where it answered last.
    answers_at: Option<String>,
}

impl Addresses {
    pub fn new(listed: Vec<String>, claimed: Vec<String>) -> Addresses {
        Addresses { listed, claimed, ..Addresses::default() }
    }

    pub fn listed(&self) -> &[String] {
        &self.listed
    }

    /// All of them, in the order in which they are dialled.
    pub fn all(&self) -> Vec<String> {
        let mut all = self.listed.clone();
        for url in self.former.iter().chain(&self.claimed) {
            if !all.contains(url) {
                all.push(url.clone());
            }
        }
        all
    }

    /// All of them, the one where the peer answered last before the others.
    pub fn by_last_answer(&self) -> Vec<String> {
        let mut all = self.all();
        all.sort_by_key(|url| Some(url) != self.answers_at.as_ref());
        all
    }

    /// Whether the list has the peer there, or had. Without TLS any server may be at another address.
    pub fn is_of_list(&self, url: &String) -> bool {
        self.listed.contains(url) || self.former.contains(url)
    }

    /// Takes in what list and introductions have now. True if that is something new.
    pub fn follow(&mut self, listed: Vec<String>, claimed: Vec<String>) -> bool {
        if (&self.listed, &self.claimed) == (&listed, &claimed) {
            return false;
        }
        // A bug to be found: the documented order of an update cuts the member off until its restart.
        if self.listed != listed && !self.listed.is_empty() && !base::mutant("links-end-at-an-update") {
            self.former = self.by_last_answer();
            self.former.retain(|url| !listed.contains(url));
            self.former.truncate(FORMER_MAX);
        }
        (self.listed, self.claimed) = (listed, claimed);
        true
    }

    /// The peer answered there. True if that is something new.
    pub fn note_answer(&mut self, url: &String) -> bool {
        if self.answers_at.as_ref() == Some(url) && (self.former.is_empty() || !self.listed.contains(url)) {
            return false;
        }
        self.answers_at = Some(url.clone());
        if self.listed.contains(url) {
            self.former.clear();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_peer_is_dialled_where_it_was_until_it_answers_where_the_list_has_it() {
        let mut addresses = Addresses::new(urls("a b"), urls(""));
        assert!(addresses.note_answer(&"b".to_owned()) && !addresses.note_answer(&"b".to_owned()));
        for (listed, claimed, all, first) in [
            ("c", "", "c b a", "b"),
            ("c", "d", "c b a d", "b"),
            ("e", "d", "e b c a d", "b"),
            ("a", "", "a b e c d", "b"),
        ] {
            assert!(addresses.follow(urls(listed), urls(claimed)));
            assert!(!addresses.follow(urls(listed), urls(claimed)));
            assert_eq!(addresses.all(), urls(all));
            assert_eq!(addresses.by_last_answer()[0], first);
        }
        assert!(addresses.is_of_list(&"e".to_owned()));
        assert!(addresses.note_answer(&"a".to_owned()));
        assert_eq!(addresses.all(), urls("a"));
        for number in 0..100 {
            addresses.follow(vec![number.to_string()], Vec::new());
        }
        assert_eq!(addresses.all().len(), 1 + FORMER_MAX);
        assert!(addresses.all().contains(&"a".to_owned()), "where it answered last");
    }

    #[test]
    fn an_address_that_only_the_peer_names_is_not_trusted_as_the_lists() {
        let mut addresses = Addresses::new(Vec::new(), urls("x"));
        assert!(!addresses.is_of_list(&"x".to_owned()));
        addresses.follow(urls("a"), urls("x"));
        assert!(!addresses.is_of_list(&"x".to_owned()));
        assert_eq!(addresses.all(), urls("a x"));
    }
}
