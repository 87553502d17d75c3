//! A compliant HTTP/2 client that respects flow control, for attacks with legal frames.

use std::future::poll_fn;
use std::io;

use bytes::Bytes;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use http::{Method, Request, Version};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::connection::dial;

/// Larger than any response to an attacker.
const WINDOW_BYTES: u32 = 64 << 20;

pub struct Http2Session {
    sender: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

impl Http2Session {
    pub async fn open(port: u16) -> io::Result<Http2Session> {
        Http2Session::over(dial(port).await?).await
    }

    pub async fn over(stream: TcpStream) -> io::Result<Http2Session> {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
        let (sender, connection) = builder.handshake(stream).await.map_err(io::Error::other)?;
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Http2Session { sender, driver })
    }

    pub fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }

    /// Opens a call once the server permits another stream.
    pub async fn call(&mut self, path: &str) -> io::Result<(ResponseFuture, SendStream<Bytes>)> {
        self.sender = self.sender.clone().ready().await.map_err(io::Error::other)?;
        let request = Request::builder()
            .method(Method::POST)
            .version(Version::HTTP_2)
            .uri(format!("http://127.0.0.1{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .map_err(io::Error::other)?;
        self.sender.send_request(request, false).map_err(io::Error::other)
    }
}

impl Drop for Http2Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Sends a body as the windows permit.
pub async fn send_body(stream: &mut SendStream<Bytes>, mut body: Bytes, is_last: bool) -> io::Result<()> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let granted = poll_fn(|context| stream.poll_capacity(context)).await;
        let granted = granted.ok_or(io::ErrorKind::ConnectionReset)?.map_err(io::Error::other)?;
        let chunk = body.split_to(granted.min(body.len()));
        let ends = is_last && body.is_empty();
        stream.send_data(chunk, ends).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Reads a response to the end of its body.
pub async fn finish(response: ResponseFuture) -> io::Result<()> {
    let mut body = response.await.map_err(io::Error::other)?.into_body();
    while let Some(chunk) = body.data().await {
        let bytes = chunk.map_err(io::Error::other)?.len();
        body.flow_control().release_capacity(bytes).map_err(io::Error::other)?;
    }
    Ok(())
}
