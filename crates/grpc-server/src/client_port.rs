//! The client port: gRPC and HTTP on one address, plain or inside TLS.
//!
//! ```text
//!   https: TLS handshake and checks, on the TLS threads; then, as on a plain connection:
//!   first bytes "PRI " ──▶ front (HTTP/2: gRPC)
//!   anything else ──▶ http  (health, version, metrics, gateway)
//!   no bytes in time ────▶ closed
//! ```
//!
//! While as many connections are open as there are descriptors for, a newcomer displaces a connection
//! without a request, or with requests that anyone may send, by the rule of [`admission::Places`]. A
//! connection with a certificate, or with a call that has permission, is never displaced; if there are no
//! other connections, the newcomer is rejected. A place counts for an address: no user is known yet.
//!
//! A listener may serve only one of the two: `--listen-client-http-urls`. A listener for HTTP only serves
//! HTTP/1. With TLS, HTTP/2 requests other than gRPC go to `http` as well, since curl and browsers choose
//! HTTP/2. Without TLS, only GET does: a probe must not interpret a rejection as an unhealthy member.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode};
use tonic::Status;
use tonic::body::Body;
use tower::{Service, ServiceExt};

use crate::http1;
use crate::http2::{self, CallHandler};
use crate::listen::{self, Permits};
use crate::local::LocalConnection;
use crate::socket::Socket;
use admission::{Holder, MemoryLimit};
use auth::{Connection, caller_of};
use process::shutdown::Stop;
use transport::tls::{Acceptor, Port, Stream};
use transport::wire::Wire;

/// Time for the first bytes of a connection, which holds a file descriptor in the meantime.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(5);
/// The first bytes of every HTTP/2 connection, and of no HTTP/1 request.
pub(crate) const HTTP2_PREFACE: [u8; 4] = *b"PRI ";

/// The services of a client port.
#[derive(Clone)]
pub struct Services<C> {
    pub calls: C,
    pub http: axum::Router,
    /// For TLS.
    pub https: axum::Router,
    pub limits: http2::ConnectionLimits,
    /// Limits the memory of all connections.
    pub memory: Arc<MemoryLimit>,
}

/// The protocols of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    GrpcAndHttp,
    /// Only gRPC: HTTP has a separate listener.
    Grpc,
    /// Only HTTP/1.
    Http,
}

/// Serves every listener until `stop`.
pub fn serve<C: CallHandler>(
    listeners: Vec<(Port, Traffic)>,
    services: &Services<C>,
    permits: &Permits,
    stop: &Stop,
) {
    let shared = PortShared {
        totals: Arc::new(http2::Totals::under(Arc::clone(&services.memory))),
        stop: stop.clone(),
    };
    let places = permits.places();
    let next = Arc::new(AtomicU64::new(1)); // 0 is for calls without a connection.
    let services = Arc::new(services.clone());
    for ((listener, tls), traffic) in listeners {
        let (services, shared, next) = (Arc::clone(&services), shared.clone(), Arc::clone(&next));
        let places = Arc::clone(&places);
        let serving = move |stream: Wire| {
            let holder = Holder::new();
            let address = stream.peer_address().map(|address| address.ip());
            let place = places.take(caller_of(address), &holder);
            let number = next.fetch_add(1, Ordering::Relaxed);
            // Boxed and freed when the protocol is known, as a connection may be idle for long.
            let begun = Box::pin(accepted(
                stream,
                number,
                tls.clone(),
                traffic,
                Arc::clone(&services),
                shared.clone(),
                holder,
            ));
            async move {
                let Some(_place) = place else { return };
                let connection = begun.await;
                if let Some(connection) = connection {
                    connection.await;
                }
            }
        };
        tokio::spawn(listen::accept(listener, permits.clone(), stop.clone(), serving));
    }
}

/// State shared by all client connections.
#[derive(Clone)]
struct PortShared {
    totals: Arc<http2::Totals>,
    stop: Stop,
}

/// A connection after protocol detection.
type ConnectionFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn accepted<C: CallHandler>(
    stream: Wire,
    number: u64,
    tls: Option<Acceptor>,
    traffic: Traffic,
    services: Arc<Services<C>>,
    shared: PortShared,
    holder: Arc<Holder>,
) -> Option<ConnectionFuture> {
    let address = stream.peer_address();
    let (stream, identified) = match tls {
        None => (Stream::Plain(stream), Connection::new(number, address, None)),
        Some(acceptor) => {
            let given_up = async {
                tokio::select! {
                    () = shared.stop.stopped() => {}
                    () = holder.displaced() => {}
                }
            };
            let stream = Box::pin(acceptor.accept(stream, given_up)).await?;
            let common_name = stream.common_name();
            if common_name.is_some() {
                holder.keep(); // The handshake has verified its certificate.
            }
            (stream, Connection::new(number, address, common_name))
        }
    };
    serve_connection(stream, traffic, &identified, &services, shared, holder).await
}

/// Reads the bytes that decide on the protocol. Each protocol has a separate future, so that a connection
/// allocates memory only for its own.
async fn serve_connection<C: CallHandler>(
    stream: Stream,
    traffic: Traffic,
    identified: &Connection,
    services: &Services<C>,
    shared: PortShared,
    holder: Arc<Holder>,
) -> Option<ConnectionFuture> {
    let is_secure = stream.is_secure();
    let mut socket = Socket::new(stream);
    let PortShared { totals, stop } = shared;
    let totals = totals.of(identified.client.caller);
    let first = tokio::select! {
        first = tokio::time::timeout(FIRST_BYTES_TIMEOUT, socket.begins_with(HTTP2_PREFACE)) => first,
        () = stop.stopped() => return None,
        () = holder.displaced() => return None,
    };
    let local = || {
        let (totals, holder) = (Arc::clone(&totals), Arc::clone(&holder));
        LocalConnection::new(identified.without_certificate(), services.limits, totals, holder, &stop)
    };
    match first {
        Ok(Ok(true)) if traffic != Traffic::Http => {
            let router = match is_secure {
                true => (services.https.clone(), Some(local())),
                false => (services.http.clone(), None),
            };
            let http = PlainHttp((traffic == Traffic::GrpcAndHttp).then_some(router));
            let served = http2::Services { calls: services.calls.of(identified, &holder), http };
            Some(Box::pin(http2::serve(socket, served, services.limits, totals, holder, stop.receiver())))
        }
        Ok(Ok(false)) if traffic != Traffic::Grpc => {
            let router = if is_secure { &services.https } else { &services.http };
            let local = local();
            let service =
                router.clone().map_request(move |mut request: http::Request<hyper::body::Incoming>| {
                    request.extensions_mut().insert(local.clone());
                    request
                });
            Some(Box::pin(async move { http1::serve(socket, service, &holder, &stop).await }))
        }
        // The client meant the listener of the other kind.
        Ok(Ok(true | false)) => None,
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Serves the requests of an HTTP/2 connection that are not gRPC calls: with a router, and the connection for
/// its calls. Without the latter, on plain connections, where etcd has no router, the router serves only GET,
/// for probes. All other requests are rejected like by grpc-go.
#[derive(Clone)]
struct PlainHttp(Option<(axum::Router, Option<LocalConnection>)>);

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Service<Request<Body>> for PlainHttp {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(())) // There is no shared capacity to wait for.
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match &self.0 {
            Some((router, local)) if local.is_some() || request.method() == Method::GET => {
                let host = request.uri().authority().and_then(|host| host.as_str().parse().ok());
                if let Some(host) = host {
                    request.headers_mut().entry(HOST).or_insert(host);
                }
                if let Some(local) = local {
                    local.holder().note_open();
                    request.extensions_mut().insert(local.clone());
                }
                let answering = router.clone().oneshot(request);
                Box::pin(async move { Ok(answering.await?.map(Body::new)) })
            }
            Some(_) | None => {
                let given = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
                let text = format!("invalid gRPC request content-type {:?}", given.unwrap_or_default());
                let mut refusal = Status::invalid_argument(text).into_http();
                *refusal.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                Box::pin(std::future::ready(Ok(refusal)))
            }
        }
    }
}
