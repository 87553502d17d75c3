//! The methods that a token can be signed with, by the names that etcd knows.

/// Bits of a method's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    Sha256,
    Sha384,
    Sha512,
}

/// How an RSA key signs a digest.
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
    Hmac(Digest),
    Rsa(Padding, Digest),
    /// On the curve that belongs to the digest.
    Ecdsa(Digest),
    Ed25519,
    /// No signature. Known by name only.
    None,
}

const METHODS: [(&str, Method); 14] = [
    ("HS256", Method::Hmac(Digest::Sha256)),
    ("HS384", Method::Hmac(Digest::Sha384)),
    ("HS512", Method::Hmac(Digest::Sha512)),
    ("RS256", Method::Rsa(Padding::Pkcs1, Digest::Sha256)),
    ("RS384", Method::Rsa(Padding::Pkcs1, Digest::Sha384)),
    ("RS512", Method::Rsa(Padding::Pkcs1, Digest::Sha512)),
    ("PS256", Method::Rsa(Padding::Pss, Digest::Sha256)),
    ("PS384", Method::Rsa(Padding::Pss, Digest::Sha384)),
    ("PS512", Method::Rsa(Padding::Pss, Digest::Sha512)),
    ("ES256", Method::Ecdsa(Digest::Sha256)),
    ("ES384", Method::Ecdsa(Digest::Sha384)),
    ("ES512", Method::Ecdsa(Digest::Sha512)),
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
