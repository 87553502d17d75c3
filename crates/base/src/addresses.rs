//! Addresses at which to dial one peer.
//!
//! ```text
//!   listed ──update──▶ former ──the peer responds at a listed URL──▶ forgotten
//! ```
//!
//! An operator updates the membership first and restarts the member at its new address later, possibly
//! much later, and the new address may be misspelt. The member therefore stays reachable at its
//! previous addresses.
//!
//! Has no I/O; the simulator uses it too.

use crate as base; // The list of mutants is checked by a search for `base::mutant`.

/// Maximum number of former addresses retained per peer.
const FORMER_MAX: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// URLs of the peer in the membership. Empty if it is not a member.
    listed: Vec<String>,
    /// Previous URLs, kept until the peer responds at a listed one.
    former: Vec<String>,
    /// URLs that the peer reports for itself; see `introduction`.
    claimed: Vec<String>,
    /// URL of the last response.
    answers_at: Option<String>,
}

impl Addresses {
    pub fn new(listed: Vec<String>, claimed: Vec<String>) -> Addresses {
        Addresses { listed, claimed, ..Addresses::default() }
    }

    pub fn listed(&self) -> &[String] {
        &self.listed
    }

    /// Returns all URLs in dialling order.
    pub fn all(&self) -> Vec<String> {
        let mut all = self.listed.clone();
        for url in self.former.iter().chain(&self.claimed) {
            if !all.contains(url) {
                all.push(url.clone());
            }
        }
        all
    }

    /// Returns all URLs, with that of the last response first.
    pub fn by_last_answer(&self) -> Vec<String> {
        let mut all = self.all();
        all.sort_by_key(|url| Some(url) != self.answers_at.as_ref());
        all
    }

    /// Reports whether the membership lists the URL or used to. Without TLS, any server may be at another
    /// address.
    pub fn is_of_list(&self, url: &String) -> bool {
        self.listed.contains(url) || self.former.contains(url)
    }

    /// Replaces the listed and claimed URLs. Returns true if they changed.
    pub fn follow(&mut self, listed: Vec<String>, claimed: Vec<String>) -> bool {
        if (&self.listed, &self.claimed) == (&listed, &claimed) {
            return false;
        }
        // Known bug for mutation tests: the documented order of an update disconnects the member until it
        // restarts.
        if self.listed != listed && !self.listed.is_empty() && !base::mutant("links-end-at-an-update") {
            self.former = self.by_last_answer();
            self.former.retain(|url| !listed.contains(url));
            self.former.truncate(FORMER_MAX);
        }
        (self.listed, self.claimed) = (listed, claimed);
        true
    }

    /// Records a response at `url`. Returns true if this changed the addresses.
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
