use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::*;

/// Tokens that etcd issued to user `u`, with the keys of this directory: method and token.
const ISSUED_BY_ETCD: &str = include_str!("tests/tokens.txt");

/// Files with different encodings of the same key.
type Forms = &'static [&'static [u8]];

/// Each method with the forms of its keys: private, public.
const KEYS: &[(&str, Forms, Forms)] = &[
    ("HS256", &[include_bytes!("tests/hs.key")], &[]),
    ("HS384", &[include_bytes!("tests/hs.key")], &[]),
    ("HS512", &[include_bytes!("tests/hs.key")], &[]),
    ("RS256", RSA_PRIVATE, RSA_PUBLIC),
    ("RS384", RSA_PRIVATE, RSA_PUBLIC),
    ("RS512", RSA_PRIVATE, RSA_PUBLIC),
    ("PS256", RSA_PRIVATE, RSA_PUBLIC),
    ("PS384", RSA_PRIVATE, RSA_PUBLIC),
    ("PS512", RSA_PRIVATE, RSA_PUBLIC),
    ("ES256", &[include_bytes!("tests/ec256.pem"), include_bytes!("tests/ec256-8.pem")], &[P256_PUBLIC]),
    ("ES384", &[include_bytes!("tests/ec384.pem"), include_bytes!("tests/ec384-8.pem")], &[P384_PUBLIC]),
    ("ES512", &[include_bytes!("tests/ec512.pem"), include_bytes!("tests/ec512-8.pem")], &[P521_PUBLIC]),
    ("EdDSA", &[ED_PRIVATE], &[ED_PUBLIC]),
];
const RSA_PRIVATE: Forms = &[include_bytes!("tests/rsa1.pem"), include_bytes!("tests/rsa8.pem")];
const RSA_PUBLIC: Forms = &[
    include_bytes!("tests/rsapub.pem"),
    include_bytes!("tests/rsapub1.pem"),
    include_bytes!("tests/rsacert.pem"),
];
const P256_PUBLIC: &[u8] = include_bytes!("tests/ec256-pub.pem");
const P384_PUBLIC: &[u8] = include_bytes!("tests/ec384-pub.pem");
const P521_PUBLIC: &[u8] = include_bytes!("tests/ec512-pub.pem");
const ED_PRIVATE: &[u8] = include_bytes!("tests/ed.pem");
const ED_PUBLIC: &[u8] = include_bytes!("tests/ed-pub.pem");

fn jwt(method: &str, private: Option<&[u8]>, public: Option<&[u8]>) -> Result<Jwt, KeyError> {
    let files = Files { private: private.map(<[u8]>::to_vec), public: public.map(<[u8]>::to_vec) };
    Jwt::new(method, Duration::from_secs(60), &files)
}

/// Loads every valid combination of key files for a method.
fn every_form(method: &str) -> Vec<Jwt> {
    let (_, privates, publics) = KEYS.iter().find(|(name, ..)| *name == method).expect("a known method");
    let with = |private: Option<&[u8]>, public| jwt(method, private, public).expect("a right key");
    let alone = privates.iter().map(|private| with(Some(private), None));
    let both = privates.iter().flat_map(|one| publics.iter().map(move |other| with(Some(one), Some(other))));
    let public = publics.iter().map(|public| with(None, Some(public)));
    alone.chain(both).chain(public).collect()
}

/// Loads the first combination, which signs and verifies.
pub fn first(method: &str) -> Jwt {
    every_form(method).remove(0)
}

fn verified(jwt: &Jwt, token: &str, now: SystemTime) -> Option<Claims> {
    jwt.read(token, now).and_then(|unverified| jwt.verify(unverified))
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

#[test]
fn tokens_of_etcd_are_accepted_with_each_form_of_their_key_and_with_no_other_key() {
    let issued: Vec<(&str, &str)> = ISSUED_BY_ETCD.lines().filter_map(|line| line.split_once(' ')).collect();
    assert_eq!(issued.len(), KEYS.len());
    for (method, token) in &issued {
        for jwt in every_form(method) {
            let claims = verified(&jwt, token, at(1_800_000_000)).unwrap_or_else(|| panic!("{method}"));
            assert_eq!((claims.user.as_str(), claims.revision), ("u", 8), "{method}");
            let end = claims.expires_at.expect("etcd's tokens end");
            assert!(verified(&jwt, token, at(end - 1)).is_some() && verified(&jwt, token, at(end)).is_none());
            let others = issued.iter().filter(|(other, _)| other != method);
            assert!(others.clone().all(|(_, token)| verified(&jwt, token, at(1_800_000_000)).is_none()));
        }
    }
}

#[test]
fn a_signed_token_is_accepted_until_it_ends_and_unchanged_only() {
    for (method, ..) in KEYS {
        let forms = every_form(method);
        let Some(token) = forms.iter().find_map(|jwt| jwt.sign("name \"x\"", 7, at(1000)).ok()) else {
            panic!("{method}: no form signs");
        };
        let broken = changed(&token);
        for jwt in &forms {
            let claims = verified(jwt, &token, at(1059)).unwrap_or_else(|| panic!("{method}"));
            assert_eq!((claims.user.as_str(), claims.revision), ("name \"x\"", 7), "{method}");
            assert_eq!(verified(jwt, &token, at(1060)), None, "{method}");
            for broken in &broken {
                assert_eq!(verified(jwt, broken, at(1001)), None, "{method}: {broken}");
            }
        }
    }
}

/// A token with one thing changed.
fn changed(token: &str) -> Vec<String> {
    let parts: Vec<&str> = token.split('.').collect();
    let [head, claims, signature] = parts[..] else { panic!("three parts") };
    let encode = |json: &str| URL_SAFE_NO_PAD.encode(json);
    let other = encode(r#"{"username":"root","revision":7,"exp":2000}"#);
    let none = encode(r#"{"alg":"none","typ":"JWT"}"#);
    let mut bits = URL_SAFE_NO_PAD.decode(signature).unwrap();
    bits[10] ^= 1;
    let flipped = URL_SAFE_NO_PAD.encode(&bits);
    vec![
        format!("{head}.{other}.{signature}"),
        format!("{none}.{claims}."),
        format!("{none}.{claims}.{signature}"),
        format!("{head}.{claims}.{flipped}"),
        format!("{head}.{claims}."),
        format!("{head}.{claims}"),
        format!("{token}.x"),
        format!("{token}="),
        String::new(),
    ]
}

#[test]
fn the_head_of_a_token_does_not_choose_the_method() {
    // A public key is not secret: it must not be usable as an HMAC secret.
    let (_, _, public) = KEYS[3];
    let as_secret = jwt("HS256", Some(public[0]), None).unwrap().sign("u", 1, at(1000)).unwrap();
    for public in public {
        let jwt = jwt("RS256", None, Some(public)).unwrap();
        assert_eq!(verified(&jwt, &as_secret, at(1001)), None);
    }
}

#[test]
fn a_public_key_alone_signs_nothing() {
    for (method, _, publics) in KEYS {
        for public in *publics {
            let signed = jwt(method, None, Some(public)).unwrap().sign("u", 1, at(0));
            assert_eq!(signed, Err(SignError::VerifyOnly), "{method}");
        }
    }
}

#[test]
fn keys_are_refused_with_reasons() {
    const OTHER: &str = "auth: public and private keys don't match";
    const NOT_PEM: &str = "invalid key: Key must be a PEM encoded PKCS1 or PKCS8 key";
    const CURVE: &str = "the key's elliptic curve does not match the signing method";
    let (rsa, ec) = (RSA_PRIVATE[1], KEYS[9].1);
    let made = |algorithm| rcgen::KeyPair::generate_for(algorithm).unwrap().serialize_pem().into_bytes();
    let (other_ec, other_ed) = (made(&rcgen::PKCS_ECDSA_P256_SHA256), made(&rcgen::PKCS_ED25519));
    for (method, private, public, wanted) in [
        ("RS257", None, None, "auth: invalid auth options: auth: invalid auth signature method"),
        ("", None, None, "auth: invalid auth options: auth: invalid auth signature method"),
        ("none", Some(rsa), None, "unsupported signing method: none"),
        ("HS256", None, None, "auth: missing key data"),
        ("RS256", None, None, "auth: missing key data"),
        ("ES256", None, None, "auth: missing key data"),
        ("EdDSA", None, None, "auth: missing key data"),
        ("RS256", Some(&b"text"[..]), None, NOT_PEM),
        ("ES256", None, Some(&b"text"[..]), NOT_PEM),
        ("PS256", Some(ec[1]), None, "key is not a valid RSA private key"),
        ("PS256", None, Some(P256_PUBLIC), "key is not a valid RSA public key"),
        ("ES256", Some(rsa), None, "key is not a valid ECDSA private key"),
        ("ES256", None, Some(RSA_PUBLIC[0]), "key is not a valid ECDSA public key"),
        ("EdDSA", Some(rsa), None, "key is not a valid Ed25519 private key"),
        ("EdDSA", None, Some(RSA_PUBLIC[2]), "key is not a valid Ed25519 public key"),
        ("ES384", Some(ec[0]), None, CURVE),
        ("ES384", Some(ec[1]), None, CURVE),
        ("ES512", None, Some(P256_PUBLIC), CURVE),
        ("ES256", Some(&other_ec), Some(P256_PUBLIC), OTHER),
        ("EdDSA", Some(&other_ed), Some(ED_PUBLIC), OTHER),
    ] {
        let refused = jwt(method, private, public).map(drop).map_err(|error| error.to_string());
        assert_eq!(refused, Err(wanted.to_owned()), "{method}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let options = JwtOptions {
        sign_method: "RS256".to_owned(),
        private_key: Some("/nowhere/key".into()),
        ..JwtOptions::default()
    };
    let error = Jwt::load(&options).unwrap_err();
    assert_eq!(error.to_string(), "auth: invalid auth options: /nowhere/key");
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn keys_are_in_no_debug_form() {
    for jwt in every_form("HS256") {
        assert!(!format!("{jwt:?}").contains("secret"), "{jwt:?}");
    }
}
