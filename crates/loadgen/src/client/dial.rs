//! Connections to an endpoint: plain TCP or TLS, for HTTP/2 and HTTP/1.1.

use crate::client::endpoint::Endpoint;
use crate::stats::progress::WorkerCounters;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::io::{InspectReader, InspectWriter};

/// ALPN names; a server that offers several protocols selects by them.
pub const HTTP1: &[u8] = b"http/1.1";
pub const HTTP2: &[u8] = b"h2";

/// A connection, plain or inside TLS.
pub type DialedStream = Box<dyn Io>;

pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Io for S {}

/// Connects, with a TLS handshake where the endpoint needs it.
pub async fn connect(endpoint: &Endpoint, alpn: &[u8]) -> io::Result<DialedStream> {
    let stream = TcpStream::connect(endpoint.authority()).await?;
    stream.set_nodelay(true)?;
    let Some(access) = endpoint.tls() else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(endpoint.host().to_owned()).map_err(io::Error::other)?;
    let stream = access.connector().with_alpn(vec![alpn.to_vec()]).connect(name, stream).await;
    let stream = stream.map_err(|error| io::Error::new(error.kind(), format!("TLS handshake: {error}")))?;
    Ok(Box::new(stream))
}

/// The same connection, with its bytes added to `counters`.
pub fn counted(stream: DialedStream, counters: Arc<WorkerCounters>) -> DialedStream {
    let received = counters.clone();
    let stream = InspectReader::new(stream, move |bytes: &[u8]| received.add_received(bytes.len()));
    Box::new(InspectWriter::new(stream, move |bytes: &[u8]| counters.add_sent(bytes.len())))
}
