//! One HTTP/1 connection.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tower::{Service, ServiceExt};

use super::socket::Socket;
use process::shutdown::Stop;

/// Time for the head of one request, and between two requests on one connection.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of one head. A probe sends some hundred.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// How long a connection is kept.
#[derive(Clone, Copy, Debug)]
pub enum Keep {
    /// For any number of requests.
    ForMore,
    /// For one request, whose head comes at once: where the places are few, and no client shall hold one.
    ForOne,
}

/// Time for the head of the only request.
const ONLY_HEAD_WITHIN: Duration = Duration::from_secs(2);

/// Serves requests until the client closes the connection, or until the request that runs at `stop` is
/// answered.
pub async fn serve<S>(mut socket: Socket, service: S, keep: Keep, stop: &Stop)
where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let service = TowerToHyperService::new(service.map_err(|never: Infallible| match never {}));
    let (head_within, keep_alive) = match keep {
        Keep::ForMore => (HEAD_WITHIN, true),
        Keep::ForOne => (ONLY_HEAD_WITHIN, false),
    };
    let closed = socket.closed();
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_within)
        .keep_alive(keep_alive)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    let mut connection = Box::pin(connection);
    // An error here is the client's: it closed the connection, or its request was malformed and has been
    // refused.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = stop.stopped() => {
            connection.as_mut().graceful_shutdown();
            drop(connection.as_mut().await);
        }
    }
    drop(connection);
    // A websocket has taken the socket over, and counts as the connection until it is closed.
    closed.await;
}
