//! Support for the curve P-521, which ring lacks and etcd uses for its self-signed certificates:
//! signatures, keys and the key exchange, implemented with the pure-Rust crate `p521`.

use std::sync::{Arc, LazyLock};

use p521::ecdsa::signature::{Signer as _, hazmat::PrehashVerifier};
use p521::ecdsa::{Signature, SigningKey, VerifyingKey};
use p521::elliptic_curve::{point::AffineCoordinates, sec1::ToSec1Point};
use p521::pkcs8::{DecodePrivateKey, EncodePublicKey};
use p521::{PublicKey, SecretKey};
use ring::digest::{self, digest};
use ring::rand::{SecureRandom, SystemRandom};
use tokio_rustls::rustls::crypto::{
    ActiveKeyExchange, CryptoProvider, KeyProvider, SharedSecret, SupportedKxGroup, WebPkiSupportedAlgorithms,
};
use tokio_rustls::rustls::pki_types::{
    AlgorithmIdentifier, InvalidSignature, PrivateKeyDer, SignatureVerificationAlgorithm,
    SubjectPublicKeyInfoDer, alg_id,
};
use tokio_rustls::rustls::sign::{self, Signer};
use tokio_rustls::rustls::{Error, NamedGroup, PeerMisbehaved, SignatureAlgorithm, SignatureScheme};

/// Size of a field element in bytes.
const NUMBER_BYTES: usize = 66;
/// First byte of an uncompressed point, the only format that TLS and Go accept.
const UNCOMPRESSED: u8 = 4;

/// Extends ring's provider with the curve, as the last choice of each kind.
pub fn with_p521(mut provider: CryptoProvider) -> CryptoProvider {
    static ALGORITHMS: LazyLock<WebPkiSupportedAlgorithms> = LazyLock::new(|| {
        let of_ring = tokio_rustls::rustls::crypto::ring::default_provider();
        added_to(of_ring.signature_verification_algorithms)
    });
    provider.signature_verification_algorithms = *ALGORITHMS;
    provider.key_provider = &Keys;
    provider.kx_groups.push(&CurveGroup);
    provider
}

/// Extends ring's algorithms. rustls requires static slices, which are allocated once per process.
fn added_to(of_ring: WebPkiSupportedAlgorithms) -> WebPkiSupportedAlgorithms {
    let own = [&WITH_SHA256, &WITH_SHA384, &WITH_SHA512];
    let own = own.map(|algorithm| algorithm as &'static dyn SignatureVerificationAlgorithm);
    let [with_sha256, with_sha384, with_sha512] = own;
    // Before TLS 1.3 a scheme only specifies the hash; the key determines the curve.
    let added = |(scheme, known): &(SignatureScheme, &'static [_])| {
        let more = match scheme {
            SignatureScheme::ECDSA_NISTP256_SHA256 => Some(with_sha256),
            SignatureScheme::ECDSA_NISTP384_SHA384 => Some(with_sha384),
            _ => None,
        };
        let known: Vec<_> = known.iter().copied().chain(more).collect();
        (*scheme, &*known.leak())
    };
    let only: &'static [_] = vec![with_sha512].leak();
    let last = (SignatureScheme::ECDSA_NISTP521_SHA512, only);
    let mapping: Vec<_> = of_ring.mapping.iter().map(added).chain([last]).collect();
    let all: Vec<_> = of_ring.all.iter().copied().chain(own).collect();
    WebPkiSupportedAlgorithms { all: all.leak(), mapping: mapping.leak() }
}

struct Ecdsa {
    signature: AlgorithmIdentifier,
    digest: &'static digest::Algorithm,
}

static WITH_SHA256: Ecdsa = Ecdsa { signature: alg_id::ECDSA_SHA256, digest: &digest::SHA256 };
static WITH_SHA384: Ecdsa = Ecdsa { signature: alg_id::ECDSA_SHA384, digest: &digest::SHA384 };
static WITH_SHA512: Ecdsa = Ecdsa { signature: alg_id::ECDSA_SHA512, digest: &digest::SHA512 };

impl std::fmt::Debug for Ecdsa {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ECDSA with P-521 and {:?}", self.digest)
    }
}

impl SignatureVerificationAlgorithm for Ecdsa {
    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.signature
    }

    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let key = Some(public_key).filter(|key| key.first() == Some(&UNCOMPRESSED));
        let key = key.and_then(|key| VerifyingKey::from_sec1_bytes(key).ok()).ok_or(InvalidSignature)?;
        let signature = Signature::from_der(signature).map_err(|_| InvalidSignature)?;
        // A hash shorter than a field element is padded with leading zeros.
        let hash = digest(self.digest, message);
        let mut number = [0; NUMBER_BYTES];
        number[NUMBER_BYTES - hash.as_ref().len()..].copy_from_slice(hash.as_ref());
        key.verify_prehash(&number, &signature).map_err(|_| InvalidSignature)
    }
}

#[derive(Debug)]
struct Keys;

impl KeyProvider for Keys {
    fn load_private_key(&self, der: PrivateKeyDer<'static>) -> Result<Arc<dyn sign::SigningKey>, Error> {
        let own = match &der {
            PrivateKeyDer::Pkcs8(der) => SecretKey::from_pkcs8_der(der.secret_pkcs8_der()).ok(),
            PrivateKeyDer::Sec1(der) => SecretKey::from_sec1_der(der.secret_sec1_der()).ok(),
            _ => None,
        };
        match own {
            Some(secret) => Ok(Arc::new(SigningPair(SigningKey::from(&secret)))),
            None => tokio_rustls::rustls::crypto::ring::sign::any_supported_type(&der),
        }
    }
}

#[derive(Clone)]
struct SigningPair(SigningKey);

impl std::fmt::Debug for SigningPair {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a private key on P-521")
    }
}

impl sign::SigningKey for SigningPair {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let is_offered = offered.contains(&SignatureScheme::ECDSA_NISTP521_SHA512);
        is_offered.then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        let der = self.0.verifying_key().to_public_key_der().ok()?;
        Some(SubjectPublicKeyInfoDer::from(der.into_vec()))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for SigningPair {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signature: Result<Signature, _> = self.0.try_sign(message);
        let signature = signature.map_err(|_| Error::General("signing failed".to_owned()))?;
        Ok(signature.to_der().as_bytes().to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ECDSA_NISTP521_SHA512
    }
}

#[derive(Debug)]
struct CurveGroup;

impl SupportedKxGroup for CurveGroup {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let secret = loop {
            let mut number = [0; NUMBER_BYTES];
            SystemRandom::new().fill(&mut number).map_err(|_| Error::FailedToGetRandomBytes)?;
            // 521 bits. Nearly all of those numbers are below the order of the curve.
            number[0] &= 1;
            if let Ok(secret) = SecretKey::from_slice(&number) {
                break secret;
            }
        };
        let public = secret.public_key().to_sec1_point(false).as_bytes().to_vec();
        Ok(Box::new(Exchange { secret, public }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

struct Exchange {
    secret: SecretKey,
    public: Vec<u8>,
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let peer = Some(peer).filter(|peer| peer.first() == Some(&UNCOMPRESSED));
        let peer = peer.and_then(|peer| PublicKey::from_sec1_bytes(peer).ok());
        let peer = peer.ok_or(PeerMisbehaved::InvalidKeyShare)?;
        let shared = peer.to_projective() * *self.secret.to_nonzero_scalar();
        Ok(SharedSecret::from(&shared.to_affine().x()[..]))
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}
