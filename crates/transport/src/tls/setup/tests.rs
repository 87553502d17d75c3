//! Certificates that `interop/cmd/certificates` checked with etcd, in handshakes of both versions.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, ClientConnection, Error, NamedGroup, ServerConfig, ServerConnection,
};

use super::contents::{Contents, TlsError};
use super::loaded::{LoadedFiles, PortKind};
use certificates::{Certificate, Roots, Verifier, is_valid_for, with_p521};
use config::{KeyPair, PortTls};
use process::log::causes;

const RECORDED: &str = include_str!("etcd.tsv");

/// Cases in which etcd decides differently. `docs/compatibility/certificates.md` has the reasons.
const DIFFERENT: [(&str, &str); 10] = [
    ("client", "algorithm of the signature with parameters"),
    ("client", "version 2 with extensions"),
    ("client", "key RSA 1024"),
    ("client", "signed by RSA 1024 with SHA-256"),
    ("client", "signed by P-256 with SHA-512"),
    ("client", "constraints: directory name, not critical"),
    ("client", "policies required and there"),
    ("client", "odd: extended key usage empty"),
    ("server", "key RSA 1024"),
    ("shown", "key RSA 1024"),
];

/// A line of the recording. Certificates and keys are in base64.
struct Case {
    role: &'static str,
    name: &'static str,
    is_accepted: bool,
    roots: Vec<&'static str>,
    chain: Vec<&'static str>,
    key: &'static str,
}

fn cases() -> Vec<Case> {
    let case = |line: &'static str| {
        let [role, name, answer, roots, chain, key, _words] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let list = |text: &'static str| text.split(',').filter(|part| !part.is_empty()).collect();
        Case { role, name, is_accepted: answer == "accepted", roots: list(roots), chain: list(chain), key }
    };
    RECORDED.lines().map(case).collect()
}

fn pem(label: &str, all: &[&str]) -> String {
    let block = |text: &&str| {
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
    };
    all.iter().map(block).collect()
}

fn ders(all: &[&str]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem("CERTIFICATE", all).as_bytes()).map(Result::unwrap).collect()
}

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Returns a pair that is not under test.
fn own_pair(directory: &Path) -> KeyPair {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
    KeyPair {
        certificate: write(directory, "own.pem", &certificate.pem()),
        key: write(directory, "own.key", &key.serialize_pem()),
    }
}

fn load(port: &PortTls, used: PortKind) -> Result<LoadedFiles, TlsError> {
    LoadedFiles::build(port, used, &Contents::read(port)?)
}

/// Runs a handshake in memory.
fn shake(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Result<NamedGroup, Error> {
    let mut client = ClientConnection::new(client, ServerName::try_from("127.0.0.1").unwrap()).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    while client.wants_write() || server.wants_write() {
        let (mut of_client, mut of_server) = (Vec::new(), Vec::new());
        client.write_tls(&mut of_client).unwrap();
        server.write_tls(&mut of_server).unwrap();
        let (mut of_client, mut of_server) = (&of_client[..], &of_server[..]);
        while !of_client.is_empty() {
            server.read_tls(&mut of_client).unwrap();
            server.process_new_packets()?;
        }
        while !of_server.is_empty() {
            client.read_tls(&mut of_server).unwrap();
            client.process_new_packets()?;
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(server.negotiated_key_exchange_group().unwrap().name())
}

/// Returns the reason if a member rejects the certificate in its role.
fn refusal(case: &Case, directory: &Path, is_tls13: bool) -> Option<String> {
    let own = own_pair(directory);
    let roots = Some(write(directory, "roots.pem", &pem("CERTIFICATE", &case.roots)));
    let pair = KeyPair {
        certificate: write(directory, "chain.pem", &pem("CERTIFICATE", &case.chain)),
        key: write(directory, "chain.key", &pem("PRIVATE KEY", &[case.key])),
    };
    let mut any = PortTls::default();
    (any.protocol.tls12, any.protocol.tls13) = (!is_tls13, is_tls13);
    let showing = PortTls { shown: Some(pair), is_self_signed: true, ..any.clone() };
    let judging = PortTls { shown: Some(own), trusted_ca_file: roots, requires_certificate: true, ..any };
    let shown = match load(&showing, PortKind::Peers) {
        Ok(shown) => shown,
        Err(error) => return Some(causes(&error)),
    };
    let judge = || load(&judging, PortKind::Peers).unwrap();
    // An alert from the peer carries no reason.
    let ended = match case.role {
        "client" => shake(shown.client.unwrap(), judge().server.unwrap()),
        "server" => shake(judge().client.unwrap(), shown.server.unwrap()),
        _ => shake(shown.client.unwrap(), shown.server.unwrap()),
    };
    ended.err().map(|error| error.to_string())
}

#[test]
fn certificates_are_accepted_where_etcd_accepts_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for case in cases().iter().filter(|case| !is_for_verifier(case)) {
        let is_different = DIFFERENT.contains(&(case.role, case.name));
        for is_tls13 in [false, true] {
            let refused = refusal(case, directory.path(), is_tls13);
            if refused.is_none() != (case.is_accepted != is_different) {
                wrong.push(format!(
                    "{}: {}: etcd {}, here {refused:?}",
                    case.role, case.name, case.is_accepted
                ));
            }
            assert!(!is_different || case.is_accepted, "{}: never more lenient than etcd", case.name);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn is_admitted(verifier: &Verifier, chain: &[CertificateDer<'_>]) -> bool {
    verifier.verify_client_cert(&chain[0], &chain[1..], UnixTime::now()).is_ok()
}

/// Returns None if one of the roots is malformed.
fn verifier_of(roots: &[&str]) -> Option<Verifier> {
    let mut trusted = Roots::default();
    ders(roots).into_iter().try_for_each(|root| trusted.add(root)).ok()?;
    let provider = with_p521(ring::default_provider());
    Some(Verifier::new(Some(trusted), provider.signature_verification_algorithms))
}

/// A member itself does not start with a malformed name.
fn is_for_verifier(case: &Case) -> bool {
    case.role == "random" || case.name.starts_with("name: ")
}

#[test]
fn random_chains_and_names_are_judged_as_by_go() {
    for case in cases().iter().filter(|case| is_for_verifier(case)) {
        let verifier = verifier_of(&case.roots);
        let is_admitted = verifier.is_some_and(|verifier| is_admitted(&verifier, &ders(&case.chain)));
        assert_eq!(is_admitted, case.is_accepted, "{}", case.name);
    }
}

#[test]
fn a_chain_with_any_bit_changed_is_refused() {
    let names = [
        "version 3",
        "version 1",
        "version 1 of a root of version 1",
        "intermediate with usage any",
        "constraints: of an intermediate, kept",
        "signed by RSA-PSS with SHA-256",
        "signed by Ed25519",
    ];
    let all = cases();
    for name in names {
        let case = all.iter().find(|case| case.name == name && case.role == "client").unwrap();
        let (verifier, chain) = (verifier_of(&case.roots).unwrap(), ders(&case.chain));
        assert!(is_admitted(&verifier, &chain), "{name}");
        for (at, certificate) in chain.iter().enumerate() {
            for byte in 0..certificate.len() {
                let mut changed = chain.clone();
                let mut der = certificate.to_vec();
                der[byte] ^= 1 << (byte % 8);
                changed[at] = der.into();
                assert!(!is_admitted(&verifier, &changed), "{name}: certificate {at}, byte {byte}");
            }
        }
    }
}

#[test]
fn who_does_not_have_the_key_of_a_certificate_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let own = own_pair(directory.path());
    let chain = vec![CertificateDer::from_pem_file(&own.certificate).unwrap()];
    let provider = Arc::new(with_p521(ring::default_provider()));
    let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let stolen = CertifiedKey::new(chain, provider.key_provider.load_private_key(key).unwrap());
    let stolen = Arc::new(SingleCertAndKey::from(stolen));
    // The certificate is trusted, so only the key is wrong.
    let (shown, trusted_ca_file) = (Some(own.clone()), Some(own.certificate));
    let port = PortTls { shown, trusted_ca_file, requires_certificate: true, ..PortTls::default() };
    let any = PortTls { is_self_signed: true, ..port.clone() };
    let (judge, any) = (load(&port, PortKind::Peers).unwrap(), load(&any, PortKind::Peers).unwrap());
    let bad = Err(Error::InvalidCertificate(CertificateError::BadSignature));
    for version in [&tokio_rustls::rustls::version::TLS12, &tokio_rustls::rustls::version::TLS13] {
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let client = client.with_protocol_versions(&[version]).unwrap().dangerous();
        let verifier = Verifier::new(None, provider.signature_verification_algorithms);
        let client = client.with_custom_certificate_verifier(Arc::new(verifier));
        let client = Arc::new(client.with_client_cert_resolver(stolen.clone()));
        assert_eq!(shake(client, judge.server.clone().unwrap()), bad, "a client, {version:?}");
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let server = server.with_protocol_versions(&[version]).unwrap().with_no_client_auth();
        let server = Arc::new(server.with_cert_resolver(stolen.clone()));
        assert_eq!(shake(any.client.clone().unwrap(), server), bad, "a server, {version:?}");
    }
}

#[test]
fn the_curve_p521_serves_a_key_exchange() {
    let directory = tempfile::tempdir().unwrap();
    let port =
        PortTls { shown: Some(own_pair(directory.path())), is_self_signed: true, ..PortTls::default() };
    let loaded = load(&port, PortKind::Peers).unwrap();
    for version in [&tokio_rustls::rustls::version::TLS12, &tokio_rustls::rustls::version::TLS13] {
        let mut provider = with_p521(ring::default_provider());
        provider.kx_groups.retain(|group| group.name() == NamedGroup::secp521r1);
        let verifier = Verifier::new(None, provider.signature_verification_algorithms);
        let client =
            ClientConfig::builder_with_provider(Arc::new(provider)).with_protocol_versions(&[version]);
        let client = client.unwrap().dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let client = Arc::new(client.with_no_client_auth());
        assert_eq!(shake(client, loaded.server.clone().unwrap()), Ok(NamedGroup::secp521r1), "{version:?}");
    }
}

#[test]
fn hosts_are_names_and_addresses_as_in_go() {
    let names = ["a.test", "*.b.test", "*", "C.test", "f*.test", "x_y.test", "127.0.0.1", "fd00::1"];
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(names.map(str::to_owned)).unwrap();
    let made = params.self_signed(&key).unwrap();
    let certificate = Certificate::parse(made.der()).unwrap();
    for (host, wanted) in [
        ("a.test", true),
        ("A.TEST", true),
        ("a.test.", true),
        ("x.a.test", false),
        ("test", false),
        ("x.b.test", true),
        ("b.test", false),
        ("x.y.b.test", false),
        (".b.test", false),
        ("c.test", true),
        ("foo.test", false),
        ("f*.test", true),
        ("x_y.test", true),
        ("127.0.0.1", true),
        ("[fd00::1]", true),
        ("fd00:0::1", true),
        ("::ffff:127.0.0.1", true),
        ("127.0.0.2", false),
        ("", false),
        (".", false),
    ] {
        assert_eq!(is_valid_for(&certificate, host), wanted, "{host}");
    }
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_what_is_wrong_and_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let own = own_pair(directory.path());
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let (good, key) = (read(&own.certificate), read(&own.key));
    let der = CertificateDer::from_pem_slice(good.as_bytes()).unwrap();
    let other_key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let labelled = |label: &str| good.replace(" CERTIFICATE-", &format!(" {label}-"));
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let old =
        "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END EC PRIVATE KEY-----\n";
    let damaged_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let (certificate, public) = (labelled("TRUSTED CERTIFICATE"), labelled("PUBLIC KEY"));
    for (name, text, wanted) in [
        ("own.pem", key.as_bytes(), "are the files of certificate and key swapped?"),
        ("own.key", good.as_bytes(), "are the files of certificate and key swapped?"),
        ("own.pem", b"", "the file is empty; it must contain a CERTIFICATE in PEM"),
        ("own.key", b"", "the file is empty; it must contain a PRIVATE KEY in PEM"),
        ("own.pem", &der, "it is DER, not PEM: convert it with `openssl x509 -inform DER -in "),
        ("own.key", &der, "it is DER, not PEM: convert it with `openssl pkey -inform DER -in "),
        ("own.pem", b"text", "not a PEM file: a CERTIFICATE starts with -----BEGIN CERTIFICATE-----"),
        ("own.pem", certificate.as_bytes(), "expected CERTIFICATE, found TRUSTED CERTIFICATE: convert it"),
        ("own.key", public.as_bytes(), "expected PRIVATE KEY, found PUBLIC KEY"),
        ("own.pem", &good.as_bytes()[..200], "its PEM is damaged: it ends before -----END CERTIFICATE-----"),
        (
            "own.key",
            encrypted.as_bytes(),
            "the private key is encrypted, and no flag gives its password: decrypt",
        ),
        ("own.key", old.as_bytes(), "the private key is encrypted"),
        ("own.key", damaged_key.as_bytes(), "this private key is damaged or of a kind that cannot be used"),
        ("own.key", other_key.as_bytes(), "does not belong to the certificate in "),
        ("ca.pem", b"text", "not a PEM file"),
        ("ca.pem", key.as_bytes(), "there is a private key in it and no certificate"),
        ("crl.pem", b"text", "expected a certificate revocation list"),
    ] {
        let files = [("own.pem", &good), ("own.key", &key), ("ca.pem", &good)];
        files.iter().for_each(|(name, text)| drop(write(directory.path(), name, text)));
        let crl_file = Some(directory.path().join("crl.pem")).filter(|_| name == "crl.pem");
        std::fs::write(directory.path().join(name), text).unwrap();
        let trusted_ca_file = Some(directory.path().join("ca.pem"));
        let port = PortTls { shown: Some(own.clone()), trusted_ca_file, crl_file, ..PortTls::default() };
        let port = PortTls { requires_certificate: true, ..port };
        let said = causes(&load(&port, PortKind::Clients).err().unwrap());
        let path = directory.path().join(name).display().to_string();
        assert!(said.starts_with(&path) && said.contains(wanted), "{name} {wanted}: {said}");
    }
    // A PEM label that does not match the key's encoding.
    write(directory.path(), "own.pem", &good);
    write(directory.path(), "own.key", &key.replace(" PRIVATE", " EC PRIVATE"));
    let port = PortTls { shown: Some(own.clone()), ..PortTls::default() };
    assert!(load(&port, PortKind::Clients).is_ok());
    std::fs::remove_file(&own.key).unwrap();
    let port = PortTls { shown: Some(own.clone()), ..PortTls::default() };
    let said = causes(&load(&port, PortKind::Clients).err().unwrap());
    assert!(said.contains("own.key: ") && said.ends_with(" (check the path)"), "{said}");
}

#[test]
fn openssls_other_labels_of_certificates_name_authorities_as_in_etcd() {
    let directory = tempfile::tempdir().unwrap();
    let own = own_pair(directory.path());
    let good = std::fs::read_to_string(&own.certificate).unwrap();
    for label in ["CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"] {
        let text = good.replace(" CERTIFICATE-", &format!(" {label}-"));
        let trusted_ca_file = Some(write(directory.path(), "ca.pem", &text));
        let port = PortTls { trusted_ca_file, requires_certificate: true, ..PortTls::default() };
        let showing = PortTls { shown: Some(own.clone()), is_self_signed: true, ..PortTls::default() };
        let server =
            load(&PortTls { shown: Some(own.clone()), ..port }, PortKind::Peers).unwrap().server.unwrap();
        shake(load(&showing, PortKind::Peers).unwrap().client.unwrap(), server).unwrap();
    }
}
