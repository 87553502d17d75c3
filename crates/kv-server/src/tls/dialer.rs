//! Connections to the peer ports of other members, plain or inside TLS, as their URLs say.

use std::io;
use std::sync::Arc;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsConnector, TlsStream};
use tonic::transport::{Channel, Endpoint};

use super::setup::{Live, TlsError};
use super::stream::Stream;
use crate::config::PortTls;
use crate::process::log::causes;

/// Opens connections. Cheap to clone.
#[derive(Clone, Default)]
pub struct Dialer {
    /// The configuration, and the threads of handshakes.
    tls: Option<(Arc<Live>, Handle)>,
}

impl Dialer {
    pub fn new(live: Arc<Live>, threads: Handle) -> Dialer {
        Dialer { tls: Some((live, threads)) }
    }

    /// To servers of another cluster, whose certificates are judged as `port` says. Files are read once.
    pub fn to_servers(port: &PortTls, threads: &Handle) -> Result<Dialer, TlsError> {
        let (live, _never_reloaded) = Live::peers(port.clone())?;
        Ok(Dialer::new(live, threads.clone()))
    }

    /// A gRPC connection to an endpoint, with its limits. The error: why there is none.
    pub async fn channel(&self, endpoint: &Endpoint) -> Result<Channel, String> {
        let dialer = self.clone();
        let connect = tower::service_fn(move |uri| {
            let dialer = dialer.clone();
            async move { dialer.connect(uri).await.map(TokioIo::new) }
        });
        endpoint.connect_with_connector(connect).await.map_err(|error| causes(&error))
    }

    /// To be bounded in time by the caller, and to be dropped at any time.
    pub async fn connect(&self, uri: Uri) -> io::Result<Stream> {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_secure = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        stream.set_nodelay(true)?;
        if !is_secure {
            return Ok(Stream::Plain(stream));
        }
        let Some((live, threads)) = &self.tls else {
            return Err(io::Error::other("an https URL of a peer, and no TLS for peers is configured"));
        };
        let config = live.client().ok_or_else(|| io::Error::other("no TLS for peers is configured"))?;
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let handshake = threads.spawn(async move { TlsConnector::from(config).connect(name, stream).await });
        let stream = handshake.await.map_err(io::Error::other)?;
        let stream =
            stream.map_err(|error| io::Error::new(error.kind(), format!("TLS handshake: {error}")))?;
        Ok(Stream::Tls(Box::new(TlsStream::Client(stream))))
    }
}
