//! One TLS connection to a port, as a client or as another member.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::Client;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, SupportedProtocolVersion,
    version,
};
use tonic::transport::Endpoint;

use super::authority::{Authority, Issued};
use crate::common::PATIENCE;

/// What a caller trusts and shows.
#[derive(Clone)]
pub struct Caller {
    config: Arc<ClientConfig>,
}

/// What came of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Served,
    Refused,
}

pub const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

impl Caller {
    pub fn new(
        trusted: &Authority,
        shown: Option<&Issued>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Caller {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.pem.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match shown {
            None => builder.with_no_client_auth(),
            Some(issued) => {
                let chain = vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        Caller { config: Arc::new(config) }
    }

    fn connect(&self, port: u16, alpn: &[u8]) -> StreamOwned<ClientConnection, TcpStream> {
        let mut config = (*self.config).clone();
        config.alpn_protocols = vec![alpn.to_vec()];
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
    }

    /// The first bytes of a handshake.
    pub fn hello(&self) -> Vec<u8> {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut connection = ClientConnection::new(Arc::clone(&self.config), name).unwrap();
        let mut hello = Vec::new();
        connection.write_tls(&mut hello).unwrap();
        hello
    }

    /// gRPC to a client port.
    pub async fn client(&self, port: u16) -> Client {
        let mut config = (*self.config).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        let connect = move |_: Uri| {
            let connector = connector.clone();
            async move {
                let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
                let name = ServerName::try_from("127.0.0.1").unwrap();
                connector.connect(name, stream).await.map(TokioIo::new)
            }
        };
        let endpoint = Endpoint::from_static("http://member");
        Client::new(endpoint.connect_with_connector(tower::service_fn(connect)).await.unwrap())
    }

    /// Status and body of each path, over one connection of HTTP/2.
    pub async fn get_http2(&self, port: u16, paths: &[&str]) -> Vec<(u16, String)> {
        let mut config = (*self.config).clone();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        let mut answers = Vec::new();
        for path in paths {
            let request = http::Request::get(format!("https://127.0.0.1:{port}{path}")).body(()).unwrap();
            requests = requests.ready().await.unwrap();
            let (response, _) = requests.send_request(request, true).unwrap();
            let response = response.await.unwrap();
            let (status, mut body) = (response.status().as_u16(), response.into_body());
            let mut text = Vec::new();
            while let Some(data) = body.data().await {
                let data = data.unwrap();
                body.flow_control().release_capacity(data.len()).unwrap();
                text.extend_from_slice(&data);
            }
            answers.push((status, String::from_utf8(text).unwrap()));
        }
        answers
    }

    /// The answer to a request of the gateway.
    pub fn post(&self, port: u16, path: &str, json: &str) -> String {
        let mut stream = self.connect(port, b"http/1.1");
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}", json.len());
        stream.write_all(format!("{head}\r\nConnection: close\r\n\r\n{json}").as_bytes()).unwrap();
        let mut answer = String::new();
        // A server may end the connection without a close_notify.
        drop(stream.read_to_string(&mut answer));
        answer
    }

    /// `GET /health` of a client port.
    pub fn health(&self, port: u16) -> Outcome {
        self.health_and_kind(port).0
    }

    /// The same, and whether the session was resumed.
    pub fn health_and_kind(&self, port: u16) -> (Outcome, Option<HandshakeKind>) {
        let mut stream = self.connect(port, b"http/1.1");
        let request = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let mut answer = Vec::new();
        let read = stream.write_all(request).and_then(|()| stream.read_to_end(&mut answer));
        let is_served = String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 200");
        assert!(is_served || read.is_err() || answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
        (if is_served { Outcome::Served } else { Outcome::Refused }, stream.conn.handshake_kind())
    }

    /// The beginning of an HTTP/2 connection to a peer port, which answers with its settings.
    pub fn greet_peer(&self, port: u16) -> Outcome {
        let mut stream = self.connect(port, b"h2");
        let mut answer = [0; 9];
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        let read = stream.write_all(preface).and_then(|()| stream.read_exact(&mut answer));
        match read {
            Ok(()) => {
                assert_eq!(answer[3], 4, "a frame of settings");
                Outcome::Served
            }
            Err(_) => Outcome::Refused,
        }
    }
}

/// Asks again until the answer is `wanted`.
pub fn becomes(wanted: &Outcome, what: &str, ask: impl Fn() -> Outcome) {
    let deadline = Instant::now() + PATIENCE;
    while ask() != *wanted {
        assert!(Instant::now() < deadline, "{what}: never {wanted:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
