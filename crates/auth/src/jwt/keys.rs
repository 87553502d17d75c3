//! Loads keys from files, with etcd's rules and messages.
//!
//! | method | `priv-key` | `pub-key` |
//! |---|---|---|
//! | HS | the bytes of the file | not used |
//! | RS, PS | PEM: PKCS #1 or PKCS #8 | PEM: SubjectPublicKeyInfo, certificate or PKCS #1 |
//! | ES | PEM: SEC 1 or PKCS #8 | PEM: SubjectPublicKeyInfo or certificate |
//! | EdDSA | PEM: PKCS #8 | PEM: SubjectPublicKeyInfo |
//!
//! Only the first block of a PEM file is used. If both files are given, the keys must match.

use std::path::{Path, PathBuf};

use ring::rand::SystemRandom;
use ring::signature::{EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::der::{self, DerReader};
use super::signing::{self, HashAlgorithm, Method, Padding, Signer, Unusable, Verifier};
use config::JwtOptions;
use process::files;

const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const ELLIPTIC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
const P521: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x23];

/// Reason why tokens cannot be signed or verified.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("auth: invalid auth options: {}", file.display())]
    Unreadable {
        file: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("auth: invalid auth options: auth: invalid auth signature method")]
    Method,
    #[error("unsupported signing method: none")]
    NoSignature,
    #[error("auth: missing key data")]
    Missing,
    #[error("auth: public and private keys don't match")]
    Mismatch,
    #[error("invalid key: Key must be a PEM encoded PKCS1 or PKCS8 key")]
    NotPem,
    #[error("key is not a valid {0} key")]
    Kind(&'static str),
    #[error("the key's elliptic curve does not match the signing method")]
    Curve,
    #[error("the private key has no public part, and pub-key is not set")]
    NoPublicPart,
    #[error("invalid RSA key size: at most {} bits, expected 2048 to 8192", .0 * 8)]
    ModulusBytes(usize),
    #[error("the key is rejected")]
    Refused(#[from] Unusable),
}

/// Contents of the files. Absent or empty: not given.
#[derive(Default)]
pub struct Files {
    pub public: Option<Vec<u8>>,
    pub private: Option<Vec<u8>>,
}

impl Files {
    pub fn read(options: &JwtOptions) -> Result<Files, KeyError> {
        let read = |file: &Path| {
            files::read(file).map_err(|error| KeyError::Unreadable { file: file.to_owned(), error })
        };
        let given = |file: &Option<PathBuf>| file.as_deref().map(read).transpose();
        let (public, private) = (given(&options.public_key)?, given(&options.private_key)?);
        let is_given = |bytes: &Vec<u8>| !bytes.is_empty();
        Ok(Files { public: public.filter(is_given), private: private.filter(is_given) })
    }
}

/// Verification key, and the signing key unless only a public key is given.
#[derive(Debug)]
pub struct JwtKeys {
    pub signer: Option<Signer>,
    pub verifier: Verifier,
}

impl JwtKeys {
    pub fn of(method: Method, files: &Files) -> Result<JwtKeys, KeyError> {
        let private = files.private.as_deref();
        let public = files.public.as_deref();
        match method {
            Method::None => Err(KeyError::NoSignature),
            Method::Hmac(digest) => {
                let (signer, verifier) = signing::hmac(digest, private.ok_or(KeyError::Missing)?);
                Ok(JwtKeys { signer: Some(signer), verifier })
            }
            Method::Rsa(padding, digest) => rsa(padding, digest, private, public),
            Method::Ecdsa(digest) => elliptic(digest, private, public),
            Method::Ed25519 => edwards(private, public),
        }
    }
}

fn rsa(
    padding: Padding,
    digest: HashAlgorithm,
    private: Option<&[u8]>,
    public: Option<&[u8]>,
) -> Result<JwtKeys, KeyError> {
    let pair = private.map(|file| {
        const WRONG: KeyError = KeyError::Kind("RSA private");
        let der = pem(file)?;
        let inner = match pkcs8(&der) {
            Some((RSA, _, inner)) => inner,
            Some(_) => return Err(WRONG),
            None => &der,
        };
        ring::rsa::KeyPair::from_der(inner).map_err(|error| Unusable(error.to_string()).into())
    });
    let pair = pair.transpose()?;
    let public = public.map(|file| {
        let der = pem(file)?;
        match public_info(&der, Certificates::Accepted) {
            Some((RSA, _, key)) => Ok(key),
            Some(_) => Err(KeyError::Kind("RSA public")),
            // PKCS #1.
            None if DerReader(&der).enter(der::SEQUENCE).is_some() => Ok(der),
            None => Err(KeyError::Kind("RSA public")),
        }
    });
    let own = pair.as_ref().map(|pair| pair.public().as_ref().to_vec());
    let public = matching(own, public.transpose()?)?;
    check_modulus(&public)?;
    let signer = pair.map(|pair| Signer::Rsa(pair, signing::rsa_encoding(padding, digest)));
    Ok(JwtKeys { signer, verifier: signing::rsa_verifier(padding, digest, public) })
}

/// Rejects a PKCS #1 public key of an unsupported size.
fn check_modulus(public: &[u8]) -> Result<(), KeyError> {
    const BYTES: std::ops::RangeInclusive<usize> = 256..=1024;
    let modulus = DerReader(public).enter(der::SEQUENCE).and_then(|mut key| key.take(der::INTEGER));
    let modulus = modulus.ok_or(KeyError::Kind("RSA public"))?;
    // A leading zero keeps the number positive.
    let bytes = modulus.strip_prefix(&[0]).unwrap_or(modulus).len();
    if BYTES.contains(&bytes) { Ok(()) } else { Err(KeyError::ModulusBytes(bytes)) }
}

fn elliptic(
    digest: HashAlgorithm,
    private: Option<&[u8]>,
    public: Option<&[u8]>,
) -> Result<JwtKeys, KeyError> {
    let curve = match digest {
        HashAlgorithm::Sha256 => P256,
        HashAlgorithm::Sha384 => P384,
        HashAlgorithm::Sha512 => P521,
    };
    let public = public.map(|file| match public_info(&pem(file)?, Certificates::Accepted) {
        Some((ELLIPTIC, found, key)) if found == curve => Ok(key),
        Some((ELLIPTIC, ..)) => Err(KeyError::Curve),
        Some(_) | None => Err(KeyError::Kind("ECDSA public")),
    });
    let public = public.transpose()?;
    let Some(file) = private else {
        let public = public.ok_or(KeyError::Missing)?;
        return Ok(JwtKeys { signer: None, verifier: signing::elliptic_verifier(digest, public)? });
    };
    let der = pem(file)?;
    let (scalar, own) = elliptic_private(&der, curve)?;
    if digest == HashAlgorithm::Sha512 {
        let (signer, own) = signing::p521_pair(&scalar)?;
        let public = matching(Some(own), public)?;
        return Ok(JwtKeys { signer: Some(signer), verifier: signing::elliptic_verifier(digest, public)? });
    }
    let public = match (own, public) {
        (None, None) => return Err(KeyError::NoPublicPart),
        (own, public) => matching(own, public)?,
    };
    let algorithm = signing::elliptic_algorithm(digest);
    let pair =
        EcdsaKeyPair::from_private_key_and_public_key(algorithm, &scalar, &public, &SystemRandom::new());
    // The two parts do not match, or are not on the curve.
    let pair = pair.map_err(|_| KeyError::Mismatch)?;
    Ok(JwtKeys { signer: Some(Signer::Ecdsa(pair)), verifier: signing::elliptic_verifier(digest, public)? })
}

/// Returns the scalar of a private key, and its public point if the file has it.
fn elliptic_private(der: &[u8], curve: &[u8]) -> Result<(Vec<u8>, Option<Vec<u8>>), KeyError> {
    const WRONG: KeyError = KeyError::Kind("ECDSA private");
    let (named, sec1) = match pkcs8(der) {
        Some((ELLIPTIC, curve, inner)) => (Some(curve), inner),
        Some(_) => return Err(WRONG),
        None => (None, der),
    };
    let mut key = DerReader(sec1).enter(der::SEQUENCE).ok_or(WRONG)?;
    key.take(der::INTEGER).ok_or(WRONG)?;
    let number = key.take(der::OCTET_STRING).ok_or(WRONG)?;
    let inside = key.enter(der::CONTEXT_0).and_then(|mut parameters| parameters.take(der::OBJECT_ID));
    if named.or(inside).ok_or(WRONG)? != curve {
        return Err(KeyError::Curve);
    }
    let public = key.enter(der::CONTEXT_1).and_then(|mut public| public.bits()).map(<[u8]>::to_vec);
    let bytes: usize = match curve {
        P256 => 32,
        P384 => 48,
        _ => 66,
    };
    // Some programs omit leading zeros.
    let missing = bytes.checked_sub(number.len()).ok_or(WRONG)?;
    Ok(([&vec![0; missing][..], number].concat(), public))
}

fn edwards(private: Option<&[u8]>, public: Option<&[u8]>) -> Result<JwtKeys, KeyError> {
    let pair = private.map(|file| {
        const WRONG: KeyError = KeyError::Kind("Ed25519 private");
        let der = pem(file)?;
        let Some((ED25519, _, inner)) = pkcs8(&der) else { return Err(WRONG) };
        let seed = DerReader(inner).take(der::OCTET_STRING).ok_or(WRONG)?;
        Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| WRONG)
    });
    let pair = pair.transpose()?;
    let public = public.map(|file| match public_info(&pem(file)?, Certificates::Refused) {
        Some((ED25519, _, key)) => Ok(key),
        Some(_) | None => Err(KeyError::Kind("Ed25519 public")),
    });
    let own = pair.as_ref().map(|pair| pair.public_key().as_ref().to_vec());
    let public = matching(own, public.transpose()?)?;
    Ok(JwtKeys { signer: pair.map(Signer::Ed25519), verifier: signing::edwards_verifier(public) })
}

/// Returns the public key, which must be the same in both files.
fn matching(own: Option<Vec<u8>>, given: Option<Vec<u8>>) -> Result<Vec<u8>, KeyError> {
    match (own, given) {
        (None, None) => Err(KeyError::Missing),
        (Some(own), Some(given)) if own != given => Err(KeyError::Mismatch),
        (Some(key), _) | (None, Some(key)) => Ok(key),
    }
}

fn pem(file: &[u8]) -> Result<Vec<u8>, KeyError> {
    let (_, block) = x509_parser::pem::parse_x509_pem(file).map_err(|_| KeyError::NotPem)?;
    Ok(block.contents)
}

fn pkcs8(der: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let mut key = DerReader(der).enter(der::SEQUENCE)?;
    key.take(der::INTEGER)?;
    let (algorithm, curve) = algorithm(&mut key)?;
    Some((algorithm, curve, key.take(der::OCTET_STRING)?))
}

/// Returns an algorithm and, if it is a parameter, its curve.
fn algorithm<'a>(reader: &mut DerReader<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let mut algorithm = reader.enter(der::SEQUENCE)?;
    Some((algorithm.take(der::OBJECT_ID)?, algorithm.take(der::OBJECT_ID).unwrap_or_default()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Certificates {
    Accepted,
    Refused,
}

fn public_info(der: &[u8], certificates: Certificates) -> Option<(&[u8], &[u8], Vec<u8>)> {
    let info = |der| {
        let mut info = DerReader(der).enter(der::SEQUENCE)?;
        let (algorithm, curve) = algorithm(&mut info)?;
        Some((algorithm, curve, info.bits()?.to_vec()))
    };
    let of_certificate = || {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        info(certificate.tbs_certificate.subject_pki.raw)
    };
    // A certificate also starts with two sequences, but without a bit string after the first one.
    info(der).or_else(|| of_certificate().filter(|_| certificates == Certificates::Accepted))
}
