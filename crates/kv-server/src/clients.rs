//! The client port: gRPC and HTTP/1 behind one address.
//!
//! ```text
//!   first bytes "PRI " ──▶ front (HTTP/2: gRPC)
//!   anything else ───────▶ http  (health, version, metrics)
//!   nothing in time ─────▶ closed
//! ```

use std::convert::Infallible;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};

use crate::front::{self, GrpcService, HotMethods};
use crate::listen::{self, Permits};
use crate::shutdown::Stop;

/// Someone who opens a connection and says nothing holds a file descriptor, so not for long.
const FIRST_BYTES_WITHIN: Duration = Duration::from_secs(10);
/// Time for the head of one HTTP/1 request; a kept-alive connection may rest as long. etcd's figure.
const HEADERS_WITHIN: Duration = Duration::from_secs(300);
/// Every HTTP/2 connection begins so, and no HTTP/1 request can.
const HTTP2_PREFACE: &[u8; 4] = b"PRI ";
/// Time between two looks at a first word that came in pieces.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// What a client can talk to.
#[derive(Clone)]
pub struct Services<H, G> {
    pub hot: H,
    pub grpc: G,
    pub http: axum::Router,
    pub limits: front::Limits,
}

/// Serves every listener until `stop`.
pub fn serve<H, G>(listeners: Vec<TcpListener>, services: &Services<H, G>, permits: &Permits, stop: &Stop)
where
    H: HotMethods + Sync,
    G: GrpcService + Sync,
{
    for listener in listeners {
        let (services, stop) = (services.clone(), stop.clone());
        let accepting = {
            let stop = stop.clone();
            listen::accept(listener, permits.clone(), stop.clone(), move |stream| {
                connection(stream, services.clone(), stop.clone())
            })
        };
        tokio::spawn(accepting);
    }
}

async fn connection<H: HotMethods, G: GrpcService>(stream: TcpStream, services: Services<H, G>, stop: Stop) {
    match tokio::time::timeout(FIRST_BYTES_WITHIN, speaks_http2(&stream)).await {
        Ok(Ok(true)) => {
            front::serve(stream, services.hot, services.grpc, services.limits, stop.receiver()).await;
        }
        Ok(Ok(false)) => http1(stream, services.http, stop).await,
        Ok(Err(_)) | Err(_) => {}
    }
}

/// Looks at the first bytes without taking them.
async fn speaks_http2(stream: &TcpStream) -> std::io::Result<bool> {
    let mut seen = [0; HTTP2_PREFACE.len()];
    loop {
        let count = stream.peek(&mut seen).await?;
        if count == 0 || seen[..count] != HTTP2_PREFACE[..count] {
            return Ok(false);
        }
        if count == seen.len() {
            return Ok(true);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn http1(stream: TcpStream, router: axum::Router, stop: Stop) {
    let service = TowerToHyperService::new(
        tower::ServiceExt::<http::Request<hyper::body::Incoming>>::map_err(router, |never: Infallible| {
            match never {}
        }),
    );
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // An error here is the client's: it went away, or it spoke nonsense and has been told so.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.stopped() => connection.as_mut().graceful_shutdown(),
    }
    drop(connection.await);
}
