//! HTTP/1.1 for what has no gRPC form: the JSON gateway and `/metrics`.

use crate::client::dial::DialedStream;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use std::io;
use std::time::Duration;

/// A metrics page is some hundred kilobytes; a longer reply is from something else.
const BODY_BYTES_MAX: usize = 16 << 20;

/// One connection, with one request at a time.
pub struct Http1(SendRequest<Full<Bytes>>);

/// A reply read to its end.
pub struct Http1Reply {
    pub status: StatusCode,
    pub body: Bytes,
}

impl Http1 {
    pub async fn open(stream: DialedStream) -> io::Result<Self> {
        let mut builder = Builder::new();
        let opened = builder.title_case_headers(true).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = opened.map_err(io::Error::other)?;
        // It ends when the sender is dropped, and its errors are those of the request that it carries.
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// Sends a request when the connection is ready, and reads the reply. After an error, this value is of no
    /// more use.
    pub async fn call(&mut self, request: Request<Full<Bytes>>) -> io::Result<Http1Reply> {
        self.0.ready().await.map_err(io::Error::other)?;
        let (head, body) = self.0.send_request(request).await.map_err(io::Error::other)?.into_parts();
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(io::Error::other)?;
        Ok(Http1Reply { status: head.status, body: body.to_bytes() })
    }

    /// Waits until the connection takes another request; false if it does not, or not within `timeout`.
    pub async fn is_reusable(&mut self, timeout: Duration) -> bool {
        matches!(tokio::time::timeout(timeout, self.0.ready()).await, Ok(Ok(())))
    }
}
