//! Cache of verified signed tokens, with a limit on the cost of verification.
//!
//! * A signature is verified once, and that of a token issued by this member not at all. Tokens are
//!   cached until there are too many; their expiry is checked with each request.
//! * Tokens that are invalid for another reason are rejected without verifying the signature.
//! * Invalid signatures are limited by [`Failures`], unless the method is cheap.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use state_machine::Session;

use super::failures::Failures;
use super::jwt::{Claims, Jwt, SignError, unix_seconds};

/// Maximum number of cached tokens: some MiB. Beyond it, the cache is cleared.
const KNOWN_MAX: usize = 10_000;

#[derive(Debug)]
pub struct SignedToken {
    pub session: Arc<Session>,
    pub revision: u64,
    /// Unix seconds.
    pub expires_at: Option<u64>,
}

impl From<Claims> for SignedToken {
    fn from(claims: Claims) -> SignedToken {
        let session = Arc::new(Session::of_user(claims.user));
        SignedToken { session, revision: claims.revision, expires_at: claims.expires_at }
    }
}

/// Issues and verifies tokens. The Debug output omits them.
pub struct SignedTokens {
    jwt: Jwt,
    known: Mutex<HashMap<Box<str>, Arc<SignedToken>>>,
    failures: Failures,
}

impl std::fmt::Debug for SignedTokens {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SignedTokens").field("jwt", &self.jwt).finish_non_exhaustive()
    }
}

impl SignedTokens {
    pub fn new(jwt: Jwt) -> SignedTokens {
        SignedTokens { jwt, known: Mutex::default(), failures: Failures::default() }
    }

    /// Issues a token and caches it immediately: its user can call this member even if another
    /// client at the same address sends invalid tokens.
    pub fn issue(&self, user: &str, revision: u64, now: SystemTime) -> Result<String, SignError> {
        let token = self.jwt.sign(user, revision, now)?;
        if let Some(unverified) = self.jwt.read(&token, now) {
            self.remember(&token, unverified.claims);
        }
        Ok(token)
    }

    /// Looks up a token that was sent from an address. Returns None if it is invalid, not valid
    /// now, or its address has sent too many invalid ones.
    pub fn find(&self, token: &str, address: Option<IpAddr>, now: SystemTime) -> Option<Arc<SignedToken>> {
        if let Some(signed) = self.known.lock().get(token) {
            return Some(Arc::clone(signed));
        }
        let unverified = self.jwt.read(token, now)?;
        let verify = || self.jwt.verify(unverified);
        let claims = if self.jwt.is_dear() {
            self.failures.verified(address, unix_seconds(now), verify)?
        } else {
            verify()?
        };
        Some(self.remember(token, claims))
    }

    fn remember(&self, token: &str, claims: Claims) -> Arc<SignedToken> {
        let signed = Arc::new(SignedToken::from(claims));
        let mut known = self.known.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(token.into(), Arc::clone(&signed));
        signed
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::jwt::testing;
    use super::*;

    const USER: &str = "u";
    const HERE: &str = "10.0.0.1";
    const ELSEWHERE: &str = "10.0.0.2";

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn find(tokens: &SignedTokens, token: &str, from: &str, now: u64) -> bool {
        tokens.find(token, Some(from.parse().unwrap()), at(now)).is_some()
    }

    /// Creates another member with the same key and an empty cache.
    fn member(method: &str) -> SignedTokens {
        SignedTokens::new(testing::jwt(method))
    }

    /// Creates different tokens with invalid signatures: each is signed for another user, but
    /// claims to be of `u`.
    fn wrong(method: &str, now: u64) -> Vec<String> {
        let issuer = testing::jwt(method);
        let right = issuer.sign(USER, 1, at(now)).unwrap();
        let body = right.rsplit_once('.').unwrap().0;
        let signature_of = |number| {
            let other = issuer.sign(&format!("user {number}"), 1, at(now)).unwrap();
            other.rsplit_once('.').unwrap().1.to_owned()
        };
        (0..40).map(|number| format!("{body}.{}", signature_of(number))).collect()
    }

    #[test]
    fn wrong_tokens_of_an_address_leave_those_of_others_and_known_ones() {
        for method in ["ES256", "ES512"] {
            let member = member(method);
            let right = testing::jwt(method).sign(USER, 1, at(1000)).unwrap();
            let other = testing::jwt(method).sign("other", 1, at(1000)).unwrap();
            assert!(find(&member, &right, HERE, 1000), "{method}");
            assert!(wrong(method, 1000).iter().all(|token| !find(&member, token, HERE, 1000)), "{method}");
            assert!(find(&member, &right, HERE, 1000), "{method}: it is known");
            assert!(!find(&member, &other, HERE, 1000), "{method}: its signature is not looked at");
            assert!(find(&member, &other, ELSEWHERE, 1000), "{method}");
            let issued = member.issue("third", 1, at(1000)).unwrap();
            assert!(find(&member, &issued, HERE, 1000), "{method}: this member has issued it");
        }
    }

    #[test]
    fn an_address_has_its_number_again_in_the_next_second() {
        let member = member("ES256");
        let right = testing::jwt("ES256").sign(USER, 1, at(1000)).unwrap();
        wrong("ES256", 1000).iter().for_each(|token| assert!(!find(&member, token, HERE, 1000)));
        assert!(!find(&member, &right, HERE, 1000));
        assert!(find(&member, &right, HERE, 1001));
    }

    #[test]
    fn what_is_refused_without_a_look_at_the_signature_counts_for_nothing() {
        let member = member("ES256");
        let right = testing::jwt("ES256").sign(USER, 1, at(1000)).unwrap();
        let ended = testing::jwt("ES256").sign(USER, 1, at(1)).unwrap();
        let of_another_method = testing::jwt("HS256").sign(USER, 1, at(1000)).unwrap();
        let (head, _) = right.split_once('.').unwrap();
        for token in [&*ended, &of_another_method, head, "", "a.b.c", &format!("{head}..")] {
            assert!((0..100).all(|_| !find(&member, token, HERE, 1000)), "{token}");
        }
        assert!(find(&member, &right, HERE, 1000));
    }

    #[test]
    fn tokens_of_a_cheap_method_are_not_counted() {
        let member = member("HS256");
        let right = testing::jwt("HS256").sign(USER, 1, at(1000)).unwrap();
        assert!(wrong("HS256", 1000).iter().all(|token| !find(&member, token, HERE, 1000)));
        assert!(find(&member, &right, HERE, 1000));
    }
}
