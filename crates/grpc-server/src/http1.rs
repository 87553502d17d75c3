//! One HTTP/1 connection.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::response::Response;
use http::header::UPGRADE;
use http::{Method, Request};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tower::{Service, ServiceExt};

use super::request_rules::refusal;
use super::socket::Socket;
use admission::Holder;
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
/// answered, or another connection has its place.
pub async fn serve<S>(mut socket: Socket, service: S, keep: Keep, holder: &Arc<Holder>, stop: &Stop)
where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let (used, at_line) = (Arc::clone(holder), socket.keep_fragments());
    let service = service_fn(move |request: Request<Incoming>| {
        // Else a body follows, or what is no HTTP/1.
        let is_whole = request.body().is_end_stream()
            && request.method() != Method::CONNECT
            && !request.headers().contains_key(UPGRADE);
        at_line.store(is_whole, Relaxed);
        let (in_use, service) = (used.begin(), service.clone());
        async move {
            let _in_use = in_use;
            match refusal(&request) {
                Some(refusal) => Ok(refusal),
                None => service.oneshot(request).await,
            }
        }
    });
    let (head_within, keep_alive) = match keep {
        Keep::ForMore => (HEAD_WITHIN, true),
        Keep::ForOne => (ONLY_HEAD_WITHIN, false),
    };
    let closed = socket.closed();
    // It may have a call under way that would go on without it.
    socket.watch_for_end();
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_within)
        .keep_alive(keep_alive)
        // A client that has ended what it sends reads its answer, as from etcd. The look at the socket ends
        // long calls.
        .half_close(true)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    let mut connection = Box::pin(connection);
    // An error here is the client's: it closed the connection, or its request was malformed and has been
    // refused.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = holder.displaced() => {}
        () = stop.stopped() => {
            connection.as_mut().graceful_shutdown();
            drop(connection.as_mut().await);
        }
    }
    drop(connection);
    // A websocket has taken the socket over, and counts as the connection until it is closed.
    closed.await;
}

#[cfg(test)]
mod tests {
    use axum::routing::any;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::listen;
    use admission::Places;
    use config::Urls;
    use process::shutdown;
    use transport::tls::Stream;

    async fn exchange(request: &str) -> String {
        let listener = listen::bind(&Urls::parse("http://127.0.0.1:0").unwrap()).unwrap().remove(0);
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        let mut socket = Socket::new(Stream::Plain(listener.accept().await.unwrap()));
        assert!(!socket.begins_with(*b"PRI ").await.unwrap());
        let router = axum::Router::new().route("/version", any(|body: String| async move { body + "ok" }));
        let (_stopper, stop) = shutdown::stop();
        let (mut answer, holder) = (String::new(), Holder::new());
        tokio::join!(serve(socket, router, Keep::ForOne, &holder, &stop), async {
            client.read_to_string(&mut answer).await.unwrap();
        });
        answer
    }

    #[tokio::test]
    async fn a_body_is_read_as_it_was_sent() {
        const LINE: &str = "GET /a#b HTTP/1.1\n";
        let listener = listen::bind(&Urls::parse("http://127.0.0.1:0").unwrap()).unwrap().remove(0);
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let socket = Socket::new(Stream::Plain(listener.accept().await.unwrap()));
        let router = axum::Router::new().route("/version", any(|body: String| async move { body + "ok" }));
        let (_stopper, stop) = shutdown::stop();
        let holder = Holder::new();
        let talking = async {
            let mut answer = [0; 1024];
            for (request, wanted) in [
                ("GET /version#x HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
                ("GET /version HTTP/1.1\r\nHost: x\r\n\r\n", "ok"),
                ("GET /version#x HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
                // The body is sent once it is asked for, so it is read alone.
                (
                    "POST /version HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 18\r\n\r\n",
                    "100 Continue",
                ),
                (LINE, LINE),
            ] {
                client.write_all(request.as_bytes()).await.unwrap();
                let count = client.read(&mut answer).await.unwrap();
                let answer = String::from_utf8_lossy(&answer[..count]);
                assert!(answer.contains(wanted), "{request}{answer}");
            }
            drop(client);
        };
        tokio::join!(serve(socket, router, Keep::ForMore, &holder, &stop), talking);
    }

    #[tokio::test]
    async fn a_connection_whose_request_is_being_answered_is_in_use() {
        let listener = listen::bind(&Urls::parse("http://127.0.0.1:0").unwrap()).unwrap().remove(0);
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let socket = Socket::new(Stream::Plain(listener.accept().await.unwrap()));
        let (places, holder, idle) = (Places::new(2), Holder::new(), Holder::new());
        let _place = places.take(1, &holder);
        let others = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let scrape = {
            let (places, idle) = (Arc::clone(&places), Arc::clone(&idle));
            move || async move {
                idle.touch();
                others.lock().push(places.take(2, &idle));
                others.lock().push(places.take(3, &Holder::new()));
                "ok"
            }
        };
        let router = axum::Router::new().route("/metrics", any(scrape));
        let (_stopper, stop) = shutdown::stop();
        let mut answer = String::new();
        tokio::join!(serve(socket, router, Keep::ForOne, &holder, &stop), async {
            client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            client.read_to_string(&mut answer).await.unwrap();
        });
        assert!(answer.ends_with("ok"), "{answer}");
        idle.displaced().await;
    }

    #[tokio::test]
    async fn a_client_that_has_ended_what_it_sends_reads_its_answer() {
        let listener = listen::bind(&Urls::parse("http://127.0.0.1:0").unwrap()).unwrap().remove(0);
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        client.shutdown().await.unwrap();
        let socket = Socket::new(Stream::Plain(listener.accept().await.unwrap()));
        // The end is read before there is an answer.
        let slow = || async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            "ok"
        };
        let router = axum::Router::new().route("/version", any(slow));
        let (_stopper, stop) = shutdown::stop();
        let (mut answer, holder) = (String::new(), Holder::new());
        tokio::join!(serve(socket, router, Keep::ForMore, &holder, &stop), async {
            client.read_to_string(&mut answer).await.unwrap();
        });
        assert!(answer.ends_with("ok"), "{answer}");
    }

    /// As etcd answers, which is Go's net/http.
    #[tokio::test]
    async fn a_request_that_go_refuses_is_refused() {
        const GET: &str = "GET /version HTTP/1.1\r\n";
        const POST: &str = "POST /version HTTP/1.1\r\nHost: x\r\n";
        for (line, rest, status, body) in [
            (GET, "Host: x\r\n\r\n", 200, "ok"),
            (GET, "Host:\r\n\r\n", 200, "ok"),
            (GET, "\r\n", 400, "400 Bad Request: missing required Host header"),
            ("GET /version HTTP/1.0\r\n", "\r\n", 200, "ok"),
            (GET, "Host: x\r\nHost: x\r\n\r\n", 400, "400 Bad Request"),
            (GET, "Host: a/b\r\n\r\n", 400, "400 Bad Request: malformed Host header"),
            (POST, "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 200, "aok"),
            (
                POST,
                "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
                501,
                "Unsupported transfer encoding",
            ),
            (
                POST,
                "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                501,
                "Unsupported transfer encoding",
            ),
            (GET, "Host: x\r\nExpect: foo\r\n\r\n", 417, ""),
            (GET, "Host: x\r\nExpect:\r\n\r\n", 200, "ok"),
            (GET, "Host: x\r\nExpect: a, 100-Continue\r\n\r\n", 200, "ok"),
            ("GET version HTTP/1.1\r\n", "Host: x\r\n\r\n", 400, "400 Bad Request"),
            ("GET http://y/version HTTP/1.1\r\n", "Host: x\r\n\r\n", 200, "ok"),
            ("GET /version#x HTTP/1.1\r\n", "Host: x\r\n\r\n", 404, ""),
            ("GET /version?x#y HTTP/1.1\r\n", "Host: x\r\n\r\n", 200, "ok"),
        ] {
            let answer = exchange(&[line, rest].concat()).await;
            let (head, found) = answer.split_once("\r\n\r\n").expect("a whole head");
            assert!(head.contains(&format!(" {status} ")), "{line}{rest}{answer}");
            assert_eq!(found, body, "{line}{rest}");
        }
    }
}
