//! JSON Web Tokens (RFC 7519), signed and verified like in etcd.
//!
//! * A token contains its user, the auth revision at which it was issued, and its expiry. Members
//!   do not store it: each verifies it with the same key.
//! * Only the configured method is accepted, regardless of the method in the token's header.
//! * A member with only a public key verifies tokens but does not issue them.
//!
//! Must not depend on users or clocks.

mod der; // elements of DER
mod keys; // from files to keys
mod signing; // methods by name, and the signatures of each

mod claims; // what a token says

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;

use config::JwtOptions;

pub use self::claims::Claims;
pub use self::keys::KeyError;
use self::keys::{Files, JwtKeys};
use self::signing::Method;

/// Reason why a token could not be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignError {
    VerifyOnly,
    /// The library failed, or no random numbers were available.
    Failed,
}

#[derive(Debug)]
pub struct Jwt {
    method: Method,
    keys: JwtKeys,
    ttl: Duration,
}

impl Jwt {
    pub fn load(options: &JwtOptions) -> Result<Jwt, KeyError> {
        if !options.unknown.is_empty() {
            tracing::warn!(keys = ?options.unknown, "unknown JWT options");
        }
        Jwt::new(&options.sign_method, options.ttl, &Files::read(options)?)
    }

    fn new(method: &str, ttl: Duration, files: &Files) -> Result<Jwt, KeyError> {
        let method = Method::of_name(method).ok_or(KeyError::Method)?;
        Ok(Jwt { method, keys: JwtKeys::of(method, files)?, ttl })
    }

    /// Signs a token that expires its time to live after `now`.
    pub fn sign(&self, user: &str, revision: u64, now: SystemTime) -> Result<String, SignError> {
        let signer = self.keys.signer.as_ref().ok_or(SignError::VerifyOnly)?;
        let ends = now.checked_add(self.ttl).map_or(u64::MAX, unix_seconds);
        let head = json!({ "alg": self.method.name(), "typ": "JWT" });
        let claims = json!({ "username": user, "revision": revision, "exp": ends });
        let part = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let mut token = format!("{}.{}", part(&head), part(&claims));
        let signature = signer.sign(token.as_bytes()).ok_or(SignError::Failed)?;
        token.push('.');
        token.push_str(&URL_SAFE_NO_PAD.encode(signature));
        Ok(token)
    }

    /// Parses a token that is valid at `now`, subject to its signature. Cheap: the signature is not
    /// verified.
    pub fn read<'a>(&self, token: &'a str, now: SystemTime) -> Option<UnverifiedToken<'a>> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (head, claims) = signed.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let head: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&decode(head)?).ok()?;
        if head.get("alg")?.as_str()? != self.method.name() {
            return None;
        }
        let claims = Claims::of(&decode(claims)?).filter(|claims| claims.is_valid_at(unix_seconds(now)))?;
        Some(UnverifiedToken { claims, message: signed, signature: decode(signature)? })
    }

    /// Returns the claims if the signature is valid. Takes up to a millisecond, depending on the
    /// method.
    pub fn verify(&self, token: UnverifiedToken<'_>) -> Option<Claims> {
        let is_right = self.keys.verifier.is_right(token.message.as_bytes(), &token.signature);
        is_right.then_some(token.claims)
    }

    /// Reports whether verification costs much more than the rest of a small request.
    pub fn is_dear(&self) -> bool {
        !matches!(self.method, Method::Hmac(_))
    }
}

pub struct UnverifiedToken<'a> {
    pub claims: Claims,
    message: &'a str,
    signature: Vec<u8>,
}

/// Converts to whole seconds, rounded down.
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;

/// A key of each method, for tests of dependent modules.
#[cfg(test)]
pub mod testing {
    pub use super::tests::first as jwt;
}
