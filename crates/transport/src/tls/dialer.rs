//! Connections to the peer ports of other members, plain or with TLS, depending on their URLs.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsConnector, TlsStream};
use tonic::transport::{Channel, Endpoint};

use super::acceptor::Stream;
use super::refusals::{broken, reason};
use super::resolver::{NameSource, Resolver};
use super::setup::{Live, TlsError};
use crate::wire::Wire;
use config::{PortTls, Url};
use process::log::causes;

/// Server name expected in a certificate on a Unix socket.
const SOCKET_HOST: &str = "localhost";
/// The authority of requests on a Unix socket.
const SOCKET_ENDPOINT: &str = "http://localhost";

/// Target of a `unix` or `unixs` URL.
#[derive(Clone)]
struct UnixAddress {
    path: PathBuf,
    is_secure: bool,
}

fn socket_of(url: &str) -> Option<UnixAddress> {
    let url = Url::parse(url).ok()?;
    Some(UnixAddress { path: url.socket_path()?.to_owned(), is_secure: url.scheme().is_secure() })
}

/// Application protocol inside TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AlpnProtocol {
    #[default]
    Http2,
    Http1,
}

/// Opens connections. Cheap to clone.
#[derive(Clone, Default)]
pub struct Dialer {
    /// TLS configuration and the handshake threads.
    tls: Option<(Arc<Live>, Handle)>,
    resolver: Resolver,
    origin: NameSource,
    protocol: AlpnProtocol,
    /// Local address to dial from; None lets the system choose.
    pub(super) source: Option<IpAddr>,
}

impl Dialer {
    pub fn new(live: Arc<Live>, threads: Handle) -> Dialer {
        Dialer { tls: Some((live, threads)), ..Dialer::default() }
    }

    /// Returns a dialer for hosts named by a stranger; it does not delay lookups of other names.
    pub fn to_claimed(&self) -> Dialer {
        Dialer { origin: NameSource::Claimed, ..self.clone() }
    }

    /// Returns a dialer for HTTP/1-only ports, such as those of `--listen-metrics-urls`.
    pub fn to_http1(&self) -> Dialer {
        Dialer { protocol: AlpnProtocol::Http1, ..self.clone() }
    }

    /// Returns a dialer for servers of another cluster, which verifies their certificates with `port`. Files
    /// are read once.
    pub fn to_servers(port: &PortTls, threads: &Handle) -> Result<Dialer, TlsError> {
        let (live, _never_reloaded) = Live::peers(port.clone())?;
        Ok(Dialer::new(live, threads.clone()))
    }

    /// Opens a gRPC connection to a URL of any scheme, with the limits set by `limit`. The error is the
    /// reason.
    pub async fn channel_to(
        &self,
        url: &str,
        limit: impl FnOnce(Endpoint) -> Endpoint,
    ) -> Result<Channel, String> {
        let socket = socket_of(url);
        let text = if socket.is_some() { SOCKET_ENDPOINT } else { url };
        let endpoint = Endpoint::from_shared(text.to_owned()).map_err(|error| causes(&error))?;
        self.open(&limit(endpoint), socket).await
    }

    /// Opens a gRPC connection to an endpoint with its limits. The error is the reason.
    pub async fn channel(&self, endpoint: &Endpoint) -> Result<Channel, String> {
        self.open(endpoint, None).await
    }

    async fn open(&self, endpoint: &Endpoint, socket: Option<UnixAddress>) -> Result<Channel, String> {
        let dialer = self.clone();
        let connect = tower::service_fn(move |uri| {
            let (dialer, socket) = (dialer.clone(), socket.clone());
            async move {
                let connected = match socket {
                    Some(UnixAddress { path, is_secure }) => dialer.connect_unix(&path, is_secure).await,
                    None => dialer.connect(uri).await,
                };
                connected.map(TokioIo::new)
            }
        });
        endpoint.connect_with_connector(connect).await.map_err(|error| broken(&error))
    }

    async fn connect_unix(&self, path: &Path, is_secure: bool) -> io::Result<Stream> {
        let stream = Wire::connect_unix(path).await?;
        if is_secure {
            self.inside_tls(stream, SOCKET_HOST.to_owned()).await
        } else {
            Ok(Stream::Plain(stream))
        }
    }

    /// Opens a connection. Has no timeout; cancel-safe.
    pub async fn connect(&self, uri: Uri) -> io::Result<Stream> {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_secure = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let addresses = self.resolver.find(&host, port, self.origin).await?;
        let stream = match self.source {
            None => TcpStream::connect(&addresses[..]).await?,
            Some(source) => connect_from(source, &addresses).await?,
        };
        stream.set_nodelay(true)?;
        let stream = Wire::Tcp(stream);
        if is_secure { self.inside_tls(stream, host).await } else { Ok(Stream::Plain(stream)) }
    }

    async fn inside_tls(&self, stream: Wire, host: String) -> io::Result<Stream> {
        let Some((live, threads)) = &self.tls else {
            return Err(io::Error::other("an https URL of a peer, and no TLS for peers is configured"));
        };
        let configured = live.client();
        let (config, checks) =
            configured.ok_or_else(|| io::Error::other("no TLS for peers is configured"))?;
        let config = match self.protocol {
            AlpnProtocol::Http2 => config,
            AlpnProtocol::Http1 => {
                let mut config = ClientConfig::clone(&config);
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                Arc::new(config)
            }
        };
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let handshake = threads.spawn(async move {
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            checks.check_server(chain).map_err(io::Error::other)?;
            Ok::<_, io::Error>(stream)
        });
        let stream = handshake.await.map_err(io::Error::other)?;
        let stream = stream
            .map_err(|error| io::Error::new(error.kind(), format!("TLS handshake: {}", reason(&error))))?;
        Ok(Stream::Tls(Box::new(TlsStream::Client(stream))))
    }
}

/// Connects to the first reachable address in the family of `source`.
async fn connect_from(source: IpAddr, addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failed = io::Error::other(format!("no address of the family of {source} to dial"));
    for address in addresses.iter().filter(|address| address.is_ipv4() == source.is_ipv4()) {
        let socket = if source.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.bind((source, 0).into())?;
        match socket.connect(*address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dialer_with_a_source_dials_from_it() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let dialer = Dialer { source: Some([127, 0, 0, 3].into()), ..Dialer::default() };
        let _stream = dialer.connect(url.clone()).await.unwrap();
        assert_eq!(listener.accept().await.unwrap().1.ip(), IpAddr::from([127, 0, 0, 3]));
        let other_family = Dialer { source: Some("::1".parse().unwrap()), ..Dialer::default() };
        let refused = other_family.connect(url).await.err().unwrap().to_string();
        assert_eq!(refused, "no address of the family of ::1 to dial");
    }
}
