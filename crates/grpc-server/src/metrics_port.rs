//! The listeners of `--listen-metrics-urls`: HTTP/1 for probes and scrapers, plain or inside TLS. Inside
//! TLS also HTTP/2, as on etcd's: a proxy that dials there as a gRPC client closes connections without it.
//!
//! Their connections are counted separately, so that a probe gets a response however many clients there
//! are.

use std::sync::Arc;

use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;

use super::client_port::HTTP2_PREFACE;
use super::http1;
use super::listen::{self, Permits};
use super::socket::Socket;
use admission::{Holder, Places};
use auth::caller_of;
use process::shutdown::Stop;
use transport::tls::{Acceptor, Port, Stream};
use transport::wire::Wire;

/// Connections open at one time. A kubelet and a scraper need some five. One more waits in the backlog.
pub const CONNECTIONS_MAX: u32 = 32;
/// Number of connections. A newcomer displaces one of them, which is closed immediately, by the rule of
/// [`Places`]: all requests are of a kind that anyone may send. A client with a slow or unread response
/// does not keep out a probe.
const PLACES: usize = 24;

/// Time for the first bytes inside TLS.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum streams per connection. A scraper sends one request at a time.
const STREAMS_MAX: u32 = 16;
/// Maximum bytes of a request's headers. A probe sends some hundred.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Interval between pings to a silent connection.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// The routers for plain connections, which check the Host header, and for TLS.
#[derive(Clone)]
pub struct Routers {
    pub plain: Router,
    pub secure: Router,
}

/// Serves every listener until `stop`.
pub fn serve(ports: Vec<Port>, routers: &Routers, stop: &Stop) {
    let (permits, places) = (Permits::new(CONNECTIONS_MAX), Places::new(PLACES));
    for (listener, tls) in ports {
        let (routers, until, places) = (routers.clone(), stop.clone(), Arc::clone(&places));
        let serving =
            move |stream| accepted(stream, tls.clone(), routers.clone(), Arc::clone(&places), until.clone());
        tokio::spawn(listen::accept(listener, permits.clone(), stop.clone(), serving));
    }
}

async fn accepted(stream: Wire, tls: Option<Acceptor>, routers: Routers, places: Arc<Places>, stop: Stop) {
    let (holder, caller) = (Holder::new(), caller_of(stream.peer_address().map(|address| address.ip())));
    let Some(_place) = places.take(caller, &holder) else { return };
    let stream = match tls {
        None => Some(Stream::Plain(stream)),
        Some(acceptor) => {
            let given_up = async {
                tokio::select! {
                    () = holder.displaced() => {}
                    () = stop.stopped() => {}
                }
            };
            acceptor.accept(stream, given_up).await
        }
    };
    let Some(stream) = stream else { return };
    if stream.is_secure() {
        let mut socket = Socket::new(stream);
        let first = tokio::select! {
            first = tokio::time::timeout(FIRST_BYTES_TIMEOUT, socket.begins_with(HTTP2_PREFACE)) => first,
            () = holder.displaced() => return,
            () = stop.stopped() => return,
        };
        match first {
            Ok(Ok(true)) => serve_http2(socket, routers.secure, &holder, &stop).await,
            Ok(Ok(false)) => http1::serve(socket, routers.secure, &holder, &stop).await,
            Ok(Err(_)) | Err(_) => {}
        }
        return;
    }
    http1::serve(Socket::new(stream), routers.plain, &holder, &stop).await;
}

/// Serves one HTTP/2 connection until the client closes it, or until the requests that run at `stop` have
/// responses, or another connection has its place.
async fn serve_http2(socket: Socket, router: Router, holder: &Arc<Holder>, stop: &Stop) {
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .keep_alive_interval(PING_INTERVAL)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(router));
    let mut connection = Box::pin(connection);
    // An error here is the client's.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = holder.displaced() => {}
        () = stop.stopped() => {
            connection.as_mut().graceful_shutdown();
            drop(connection.as_mut().await);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use axum::routing::any;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpSocket, TcpStream};

    use super::*;
    use config::Urls;
    use process::shutdown;

    const GET_SLOW: &[u8] = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n";
    const GET_LIVEZ: &[u8] = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";

    /// A port with a path that responds and one that does not.
    fn started() -> (u16, shutdown::Stopper) {
        let router = Router::new()
            .route("/livez", any(|| async { "ok" }))
            .route("/slow", any(std::future::pending::<&'static str>));
        let listener = listen::bind(&Urls::parse("http://127.0.0.1:0").unwrap()).unwrap().remove(0);
        let port = listener.local_addr().unwrap().port();
        let (stopper, stop) = shutdown::stop();
        serve(vec![(listener, None)], &Routers { plain: router.clone(), secure: router }, &stop);
        (port, stopper)
    }

    async fn dial(port: u16, from: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 1, from), 0).into()).unwrap();
        socket.connect((Ipv4Addr::LOCALHOST, port).into()).await.unwrap()
    }

    async fn is_alive(probe: &mut TcpStream) -> bool {
        probe.write_all(GET_LIVEZ).await.unwrap();
        let mut answer = [0; 1024];
        let count = probe.read(&mut answer).await.unwrap();
        answer[..count].ends_with(b"ok")
    }

    #[tokio::test]
    async fn requests_of_many_addresses_that_wait_keep_no_probe_out() {
        let (port, _stopper) = started();
        let mut waiting = Vec::new();
        for from in 1..100 {
            let mut client = dial(port, from).await;
            client.write_all(GET_SLOW).await.unwrap();
            waiting.push(client);
            assert!(is_alive(&mut dial(port, 200).await).await, "{from}");
        }
    }

    #[tokio::test]
    async fn a_connection_is_kept_for_further_requests() {
        let (port, _stopper) = started();
        let mut scraper = dial(port, 1).await;
        for _ in 0..3 {
            assert!(is_alive(&mut scraper).await);
        }
        // Silent connections displace their own.
        for _ in 0..100 {
            drop(dial(port, 2).await);
        }
        assert!(is_alive(&mut scraper).await);
    }
}
