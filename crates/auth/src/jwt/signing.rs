//! Signature methods by etcd's names, and their implementation.
//!
//! Implemented by ring, except for curve P-521, which it lacks.

use p521::ecdsa::signature::{Signer as _, Verifier as _};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::rsa;
use ring::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, RsaEncoding, RsaParameters, UnparsedPublicKey,
};

pub enum Signer {
    Hmac(hmac::Key),
    Rsa(rsa::KeyPair, &'static dyn RsaEncoding),
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    P521(Box<p521::ecdsa::SigningKey>),
}

/// Omits the key.
impl std::fmt::Debug for Signer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a private key")
    }
}

/// Reason why a library rejected a key.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub String);

pub enum Verifier {
    Hmac(hmac::Key),
    Public(UnparsedPublicKey<Vec<u8>>),
    P521(Box<p521::ecdsa::VerifyingKey>),
}

/// Omits the key, which is secret with HMAC.
impl std::fmt::Debug for Verifier {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a key")
    }
}

impl Signer {
    /// Signs a message. Returns None if no random numbers are available.
    pub fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match self {
            Signer::Hmac(key) => Some(hmac::sign(key, message).as_ref().to_vec()),
            Signer::Rsa(pair, encoding) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(*encoding, &random, message, &mut signature).ok()?;
                Some(signature)
            }
            Signer::Ecdsa(pair) => Some(pair.sign(&random, message).ok()?.as_ref().to_vec()),
            Signer::Ed25519(pair) => Some(pair.sign(message).as_ref().to_vec()),
            Signer::P521(key) => {
                let signature: p521::ecdsa::Signature = key.try_sign(message).ok()?;
                Some(signature.to_bytes().to_vec())
            }
        }
    }
}

impl Verifier {
    pub fn is_right(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Verifier::Hmac(key) => hmac::verify(key, message, signature).is_ok(),
            Verifier::Public(key) => key.verify(message, signature).is_ok(),
            Verifier::P521(key) => p521::ecdsa::Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify(message, &signature).is_ok()),
        }
    }
}

pub fn hmac(digest: HashAlgorithm, secret: &[u8]) -> (Signer, Verifier) {
    let algorithm = match digest {
        HashAlgorithm::Sha256 => hmac::HMAC_SHA256,
        HashAlgorithm::Sha384 => hmac::HMAC_SHA384,
        HashAlgorithm::Sha512 => hmac::HMAC_SHA512,
    };
    let key = hmac::Key::new(algorithm, secret);
    (Signer::Hmac(key.clone()), Verifier::Hmac(key))
}

pub fn rsa_encoding(padding: Padding, digest: HashAlgorithm) -> &'static dyn RsaEncoding {
    match (padding, digest) {
        (Padding::Pkcs1, HashAlgorithm::Sha256) => &signature::RSA_PKCS1_SHA256,
        (Padding::Pkcs1, HashAlgorithm::Sha384) => &signature::RSA_PKCS1_SHA384,
        (Padding::Pkcs1, HashAlgorithm::Sha512) => &signature::RSA_PKCS1_SHA512,
        (Padding::Pss, HashAlgorithm::Sha256) => &signature::RSA_PSS_SHA256,
        (Padding::Pss, HashAlgorithm::Sha384) => &signature::RSA_PSS_SHA384,
        (Padding::Pss, HashAlgorithm::Sha512) => &signature::RSA_PSS_SHA512,
    }
}

/// Creates a verifier. `public` is an RSAPublicKey of PKCS #1.
pub fn rsa_verifier(padding: Padding, digest: HashAlgorithm, public: Vec<u8>) -> Verifier {
    let parameters: &'static RsaParameters = match (padding, digest) {
        (Padding::Pkcs1, HashAlgorithm::Sha256) => &signature::RSA_PKCS1_2048_8192_SHA256,
        (Padding::Pkcs1, HashAlgorithm::Sha384) => &signature::RSA_PKCS1_2048_8192_SHA384,
        (Padding::Pkcs1, HashAlgorithm::Sha512) => &signature::RSA_PKCS1_2048_8192_SHA512,
        (Padding::Pss, HashAlgorithm::Sha256) => &signature::RSA_PSS_2048_8192_SHA256,
        (Padding::Pss, HashAlgorithm::Sha384) => &signature::RSA_PSS_2048_8192_SHA384,
        (Padding::Pss, HashAlgorithm::Sha512) => &signature::RSA_PSS_2048_8192_SHA512,
    };
    Verifier::Public(UnparsedPublicKey::new(parameters, public))
}

/// Returns the algorithm for P-256 or P-384; ring supports no other curve.
pub fn elliptic_algorithm(digest: HashAlgorithm) -> &'static EcdsaSigningAlgorithm {
    match digest {
        HashAlgorithm::Sha256 => &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
        HashAlgorithm::Sha384 | HashAlgorithm::Sha512 => &signature::ECDSA_P384_SHA384_FIXED_SIGNING,
    }
}

/// Creates a verifier. `public` is an uncompressed point.
pub fn elliptic_verifier(digest: HashAlgorithm, public: Vec<u8>) -> Result<Verifier, Unusable> {
    Ok(match digest {
        HashAlgorithm::Sha256 => {
            Verifier::Public(UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, public))
        }
        HashAlgorithm::Sha384 => {
            Verifier::Public(UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, public))
        }
        HashAlgorithm::Sha512 => {
            let key = p521::ecdsa::VerifyingKey::from_sec1_bytes(&public);
            Verifier::P521(Box::new(key.map_err(|error| Unusable(error.to_string()))?))
        }
    })
}

/// Creates a P-521 key. Also returns its public point, uncompressed.
pub fn p521_pair(scalar: &[u8]) -> Result<(Signer, Vec<u8>), Unusable> {
    let key = p521::ecdsa::SigningKey::from_slice(scalar);
    let key = key.map_err(|error| Unusable(error.to_string()))?;
    let point = key.verifying_key().to_sec1_point(false);
    Ok((Signer::P521(Box::new(key)), point.as_bytes().to_vec()))
}

pub fn edwards_verifier(public: Vec<u8>) -> Verifier {
    Verifier::Public(UnparsedPublicKey::new(&signature::ED25519, public))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashAlgorithm {
    Sha256,
    Sha384,
    Sha512,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// RSASSA-PKCS1-v1_5.
    Pkcs1,
    /// RSASSA-PSS, with a salt as long as the digest.
    Pss,
}

/// A method of RFC 7518, or `EdDSA` of RFC 8037.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Hmac(HashAlgorithm),
    Rsa(Padding, HashAlgorithm),
    /// On the curve that belongs to the digest.
    Ecdsa(HashAlgorithm),
    Ed25519,
    /// Unsigned. Recognized by name but not supported.
    None,
}

const METHODS: [(&str, Method); 14] = [
    ("HS256", Method::Hmac(HashAlgorithm::Sha256)),
    ("HS384", Method::Hmac(HashAlgorithm::Sha384)),
    ("HS512", Method::Hmac(HashAlgorithm::Sha512)),
    ("RS256", Method::Rsa(Padding::Pkcs1, HashAlgorithm::Sha256)),
    ("RS384", Method::Rsa(Padding::Pkcs1, HashAlgorithm::Sha384)),
    ("RS512", Method::Rsa(Padding::Pkcs1, HashAlgorithm::Sha512)),
    ("PS256", Method::Rsa(Padding::Pss, HashAlgorithm::Sha256)),
    ("PS384", Method::Rsa(Padding::Pss, HashAlgorithm::Sha384)),
    ("PS512", Method::Rsa(Padding::Pss, HashAlgorithm::Sha512)),
    ("ES256", Method::Ecdsa(HashAlgorithm::Sha256)),
    ("ES384", Method::Ecdsa(HashAlgorithm::Sha384)),
    ("ES512", Method::Ecdsa(HashAlgorithm::Sha512)),
    ("EdDSA", Method::Ed25519),
    ("none", Method::None),
];

impl Method {
    pub fn of_name(name: &str) -> Option<Method> {
        METHODS.iter().find(|(known, _)| *known == name).map(|(_, method)| *method)
    }

    pub fn name(self) -> &'static str {
        let found = METHODS.iter().find(|(_, method)| *method == self);
        found.map(|(name, _)| *name).expect("every method is in the table")
    }
}
