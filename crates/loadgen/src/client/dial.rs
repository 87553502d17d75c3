//! Connections to an endpoint: plain TCP or TLS, for HTTP/2 and HTTP/1.1.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::io::{InspectReader, InspectWriter};

use crate::client::endpoint::Endpoint;
use crate::stats::progress::WorkerCounters;

/// ALPN names, by which a server with several protocols selects one.
pub const HTTP1: &[u8] = b"http/1.1";
pub const HTTP2: &[u8] = b"h2";

/// A connection, plain or inside TLS.
pub type DialedStream = Box<dyn Io>;

pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Io for S {}

/// Connects, with a TLS handshake if the endpoint needs it.
pub async fn connect(endpoint: &Endpoint, alpn: &[u8]) -> io::Result<DialedStream> {
    let stream = TcpStream::connect(endpoint.authority()).await?;
    stream.set_nodelay(true)?;
    let Some(access) = endpoint.tls() else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(endpoint.host().to_owned()).map_err(io::Error::other)?;
    let stream = access.connector().with_alpn(vec![alpn.to_vec()]).connect(name, stream).await;
    let stream = stream.map_err(|error| io::Error::new(error.kind(), format!("TLS handshake: {error}")))?;
    Ok(Box::new(stream))
}

/// Adds the bytes of the connection to `counters`.
pub fn counted(stream: DialedStream, counters: Arc<WorkerCounters>) -> DialedStream {
    let received = counters.clone();
    let stream = InspectReader::new(stream, move |bytes: &[u8]| received.add_received(bytes.len()));
    Box::new(InspectWriter::new(stream, move |bytes: &[u8]| counters.add_sent(bytes.len())))
}

/// Limit of a reply. A metrics page has some hundred kilobytes.
const BODY_BYTES_MAX: usize = 16 << 20;

/// A connection with a single request at a time.
pub struct Http1(SendRequest<Full<Bytes>>);

pub struct Http1Reply {
    pub status: StatusCode,
    pub body: Bytes,
}

impl Http1 {
    pub async fn open(stream: DialedStream) -> io::Result<Self> {
        let mut builder = Builder::new();
        let opened = builder.title_case_headers(true).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = opened.map_err(io::Error::other)?;
        // The task exits when the sender is dropped; errors surface in the request.
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// Sends a request when the connection is ready, and reads the reply. The connection is unusable after
    /// an error.
    pub async fn call(&mut self, request: Request<Full<Bytes>>) -> io::Result<Http1Reply> {
        self.0.ready().await.map_err(io::Error::other)?;
        let (head, body) = self.0.send_request(request).await.map_err(io::Error::other)?.into_parts();
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(io::Error::other)?;
        Ok(Http1Reply { status: head.status, body: body.to_bytes() })
    }

    /// Waits until the connection is ready for another request; false if it is not within `timeout`.
    pub async fn is_reusable(&mut self, timeout: Duration) -> bool {
        matches!(tokio::time::timeout(timeout, self.0.ready()).await, Ok(Ok(())))
    }
}
