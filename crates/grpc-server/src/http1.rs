//! One HTTP/1 connection.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::response::Response;
use http::header::UPGRADE;
use http::{Method, Request};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::time::sleep;
use tower::{Service, ServiceExt};

use super::request_rules::refusal;
use super::socket::Socket;
use admission::Holder;
use process::shutdown::Stop;

/// Time for the head of the first request of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a head. Probes send a few hundred bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Serves requests until the client closes the connection, until the request in progress at `stop` is
/// complete, or until the connection is evicted.
///
/// After its first request a connection may be idle for any time, as in etcd: balancers keep theirs for a
/// minute and more, and a request could be in flight when it is closed here.
pub async fn serve<S>(mut socket: Socket, service: S, holder: &Arc<Holder>, stop: &Stop)
where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let (served, at_line) = (Arc::clone(holder), socket.keep_fragments());
    let has_head = Arc::new(AtomicBool::new(false));
    let head_seen = Arc::clone(&has_head);
    let service = service_fn(move |request: Request<Incoming>| {
        head_seen.store(true, Relaxed);
        // Otherwise a body follows, or another protocol.
        let is_whole = request.body().is_end_stream()
            && request.method() != Method::CONNECT
            && !request.headers().contains_key(UPGRADE);
        at_line.store(is_whole, Relaxed);
        let (served, service) = (Arc::clone(&served), service.clone());
        async move {
            let answer = match refusal(&request) {
                Some(refusal) => Ok(refusal),
                None => service.oneshot(request).await,
            };
            served.note_open();
            answer
        }
    });
    let closed = socket.closed();
    // A call in progress would otherwise continue after a disconnect.
    socket.watch_for_end();
    let connection = http1::Builder::new()
        .header_read_timeout(None)
        // A client that has closed its sending side still reads its response, as with etcd. The check of
        // the socket cancels long calls.
        .half_close(true)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    let mut connection = Box::pin(connection);
    let mut without_head = pin!(async {
        sleep(HEAD_TIMEOUT).await;
        if has_head.load(Relaxed) {
            std::future::pending::<()>().await;
        }
    });
    // An error here is the client's: it closed the connection, or its request was malformed and has been
    // rejected.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = holder.displaced() => {}
        () = &mut without_head => {}
        () = stop.stopped() => {
            connection.as_mut().graceful_shutdown();
            drop(connection.as_mut().await);
        }
    }
    drop(connection);
    // A websocket has taken over the socket, and counts as the connection until it is closed.
    closed.await;
}

#[cfg(test)]
mod tests {
    use axum::routing::any;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::listen;
    use config::Urls;
    use process::shutdown;
    use transport::tls::Stream;

    async fn exchange(request: &str) -> String {
        let listener = listen::bind(&Urls::parse("http://127.0.0.1:0").unwrap()).unwrap().remove(0);
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut socket = Socket::new(Stream::Plain(listener.accept().await.unwrap()));
        assert!(!socket.begins_with(*b"PRI ").await.unwrap());
        let router = axum::Router::new().route("/version", any(|body: String| async move { body + "ok" }));
        let (_stopper, stop) = shutdown::stop();
        let (mut answer, holder) = (String::new(), Holder::new());
        tokio::join!(serve(socket, router, &holder, &stop), async {
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
                // The body is sent only after 100 Continue, so it is read separately.
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
        tokio::join!(serve(socket, router, &holder, &stop), talking);
    }

    /// The clock is paused: it passes whenever all tasks wait.
    #[tokio::test(start_paused = true)]
    async fn a_served_connection_may_be_idle_for_any_time_and_one_without_a_request_not() {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        for request in ["GET /version HTTP/1.1\r\nHost: x\r\n\r\n", "GET /version HTTP/1.1\r\n"] {
            let listener = listen::bind(&Urls::parse("http://127.0.0.1:0").unwrap()).unwrap().remove(0);
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            client.write_all(request.as_bytes()).await.unwrap();
            let socket = Socket::new(Stream::Plain(listener.accept().await.unwrap()));
            let router = axum::Router::new().route("/version", any(|| async { "ok" }));
            let (_stopper, stop) = shutdown::stop();
            let holder = Holder::new();
            let talking = async move {
                let mut answer = [0; 1024];
                let mut count = client.read(&mut answer).await.unwrap();
                if count > 0 {
                    sleep(DAY).await;
                    client.write_all(request.as_bytes()).await.unwrap();
                    count = client.read(&mut answer).await.unwrap();
                }
                String::from_utf8_lossy(&answer[..count]).ends_with("ok")
            };
            let began = tokio::time::Instant::now();
            let ((), is_answered) = tokio::join!(serve(socket, router, &holder, &stop), talking);
            assert_eq!(is_answered, request.ends_with("\r\n\r\n"), "{request}");
            assert!(is_answered || began.elapsed() >= HEAD_TIMEOUT);
        }
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
        tokio::join!(serve(socket, router, &holder, &stop), async {
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
