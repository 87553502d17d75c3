//! A member verifies the certificates of the peers it dials. The peer is a listener of the test.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{Error, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::authority::{Authority, Files, GOOD, Issued, Wish};
use super::caller::Outcome::{self, Refused, Served};
use super::caller::{BOTH, becomes};
use super::{EXPIRED, OTHER_COMMON_NAME, OTHER_NAMES, in_files, secure_peers};
use crate::common::{Cluster, PATIENCE};

/// First bytes sent by a member once it trusts a server.
const PREFACE: &[u8] = b"PRI * HTTP/2.0";
const PATIENCE_OF_ONE: Duration = Duration::from_secs(10);
const WITHOUT_LOCALHOST: Wish = Wish { names: &["127.0.0.1"], ..GOOD };
const OTHER_ADDRESS: Wish = Wish { names: &["127.9.9.9"], ..GOOD };

/// Listener that a member dials.
struct PeerServer {
    listener: TcpListener,
}

impl PeerServer {
    fn new(port: u16) -> PeerServer {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        PeerServer { listener }
    }

    fn accept(&self) -> TcpStream {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).unwrap();
                    stream.set_read_timeout(Some(PATIENCE_OF_ONE)).unwrap();
                    return stream;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            assert!(Instant::now() < deadline, "the member does not dial");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the member's reaction to a server with `config`.
    fn outcome(&self, config: &Arc<ServerConfig>) -> Outcome {
        loop {
            let connection = ServerConnection::new(Arc::clone(config)).unwrap();
            let mut stream = StreamOwned::new(connection, self.accept());
            let mut said = [0; PREFACE.len()];
            match stream.read_exact(&mut said) {
                Ok(()) => {
                    assert_eq!(said, PREFACE);
                    return Served;
                }
                Err(error) => {
                    let cause = error.get_ref();
                    let is_of_tls = cause.is_some_and(|cause| cause.downcast_ref::<Error>().is_some());
                    // The member has seen the certificate. Otherwise it gave up before this test accepted.
                    if is_of_tls || !stream.conn.is_handshaking() {
                        return Refused;
                    }
                }
            }
        }
    }

    /// Returns the member's reaction to a plain-text server.
    fn outcome_of_plain(&self) -> Outcome {
        let mut stream = self.accept();
        let mut said = [0; 3];
        stream.read_exact(&mut said).unwrap();
        assert_eq!(said[..2], [22, 3], "a TLS handshake");
        stream.write_all(b"\0\0\0\x04\0\0\0\0\0").unwrap();
        let mut rest = Vec::new();
        let _reset = stream.read_to_end(&mut rest);
        let is_served = rest.windows(PREFACE.len()).any(|bytes| bytes == PREFACE);
        if is_served { Served } else { Refused }
    }
}

/// Creates a server configuration with a certificate. Requires client certificates of `authority`, if given.
fn showing(issued: &Issued, authority: Option<&Authority>) -> Arc<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(BOTH).unwrap();
    let builder = match authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let chain = vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// Starts a cluster of two members; the test plays the second.
fn start(files: &Files, more: Option<&str>) -> (Cluster, PeerServer) {
    let mut flags = in_files(
        files,
        &[
            ("peer-cert-file", "peer.pem"),
            ("peer-key-file", "peer.key"),
            ("peer-trusted-ca-file", "ca.pem"),
            ("peer-crl-file", "crl.pem"),
        ],
    );
    flags.extend(more.map(str::to_owned));
    let mut cluster = Cluster::new(2);
    secure_peers(&mut cluster.members, &flags);
    let server = PeerServer::new(cluster.members[1].peer_port);
    cluster.members[0].launch();
    (cluster, server)
}

#[test]
fn a_member_judges_the_certificates_of_those_that_it_dials() {
    let (authority, foreign, files) = (Authority::new("a"), Authority::new("b"), Files::new());
    let revoked = authority.issue(GOOD);
    files.write_pair("peer", &authority.issue(GOOD));
    files.write("ca.pem", &authority.pem);
    files.write("crl.pem", &authority.revoke(&[&revoked]));
    for (more, other_common_name, without_localhost) in [
        (None, Served, Served),
        (Some("--peer-cert-allowed-cn=x,good"), Refused, Served),
        (Some("--peer-cert-allowed-hostname=localhost"), Served, Refused),
    ] {
        let (_cluster, server) = start(&files, more);
        assert_eq!(server.outcome_of_plain(), Refused, "none {more:?}");
        for (cell, shown, wants, wanted) in [
            ("server only", &authority.issue(GOOD), None, &Served),
            ("mutual", &authority.issue(GOOD), Some(&authority), &Served),
            ("mutual, wrong CA of the member", &authority.issue(GOOD), Some(&foreign), &Refused),
            ("wrong CA", &foreign.issue(GOOD), None, &Refused),
            ("expired", &authority.issue(EXPIRED), None, &Refused),
            ("revoked", &revoked, None, &Refused),
            ("another common name", &authority.issue(OTHER_COMMON_NAME), None, &other_common_name),
            ("wrong names", &authority.issue(OTHER_NAMES), None, &Refused),
            ("wrong address", &authority.issue(OTHER_ADDRESS), None, &Refused),
            ("without localhost", &authority.issue(WITHOUT_LOCALHOST), None, &without_localhost),
        ] {
            assert_eq!(server.outcome(&showing(shown, wants)), *wanted, "{cell} {more:?}");
        }
    }
}

#[test]
fn a_member_that_dials_uses_files_that_change() {
    let (old, new, files) = (Authority::new("old"), Authority::new("new"), Files::new());
    files.write_pair("peer", &old.issue(GOOD));
    files.write("ca.pem", &old.pem);
    files.write("crl.pem", &old.revoke(&[]));
    let (_cluster, server) = start(&files, None);
    let (of_old, of_new) = (old.issue(GOOD), new.issue(GOOD));
    // The same configuration for each connection, so that sessions can be resumed.
    let (shows_old, shows_new) = (showing(&of_old, None), showing(&of_new, None));
    assert_eq!(server.outcome(&shows_old), Served);
    assert_eq!(server.outcome(&shows_old), Served, "once more");
    assert_eq!(server.outcome(&shows_new), Refused, "the new CA is not known yet");

    files.write("crl.pem", &old.revoke(&[&of_old]));
    becomes(&Refused, "revoked live", || server.outcome(&shows_old));
    files.write("crl.pem", &old.revoke(&[]));
    becomes(&Served, "no longer revoked", || server.outcome(&shows_old));

    let wants_new = showing(&of_old, Some(&new));
    assert_eq!(server.outcome(&wants_new), Refused, "the member's certificate is the old one");
    files.write_pair("peer", &new.issue(GOOD));
    becomes(&Served, "rotated live", || server.outcome(&wants_new));

    files.write("ca.pem", &new.pem);
    becomes(&Served, "CA rotated live", || server.outcome(&shows_new));
    becomes(&Refused, "the old CA", || server.outcome(&shows_old));
}
