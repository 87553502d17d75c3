//! Fetches the status document of an endpoint. Each fetch uses one connection and one request, and does
//! not follow redirects.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http::header::{CONNECTION, HOST, HeaderValue};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::clean::{clean, cleaned};
use process::log::causes;
use telemetry::status::Document;
use transport::tls::{Dialer, Stream};

const PATH: &str = "/ui/status.json";
/// Total timeout of connection, handshake, request and response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a document. A document with 64 members, all methods and 200 names has about 150 KiB.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Maximum size of the status line and headers of a response.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Error for an address that is not a valid metrics endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--metrics-endpoints: {0:?} is not HOST:PORT, http://HOST:PORT or https://HOST:PORT")]
pub struct AddressError(String);

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("no response within {} s", RESPONSE_TIMEOUT.as_secs())]
    Late,
    #[error(transparent)]
    Connect(#[from] io::Error),
    #[error("the response is not HTTP/1: {0}")]
    Http(#[from] hyper::Error),
    #[error("the connection was closed before the response")]
    Closed,
    #[error("404: no status document. Only listeners of --listen-metrics-urls serve it")]
    NotFound,
    #[error("421: the member does not know this host name. Use its address, or see --host-whitelist")]
    Misdirected,
    #[error("HTTP status {0}")]
    Status(u16),
    #[error("the response has more than {ANSWER_BYTES_MAX} bytes, or is incomplete: {0}")]
    Body(String),
    #[error("the response is not a status document: {0}")]
    Document(#[from] serde_json::Error),
    #[error("the response is not a status document: no member ID")]
    Nameless,
}

/// Reason that an endpoint has no document, safe to display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The endpoint is unreachable, or its response is not valid for a member.
    Down(String),
    /// The endpoint is an HTTP server without status documents, such as the client port of a member.
    NoFigures(String),
}

impl From<FetchError> for Absence {
    fn from(error: FetchError) -> Absence {
        let text = clean(&causes(&error));
        match error {
            FetchError::NotFound | FetchError::Misdirected | FetchError::Status(_) => {
                Absence::NoFigures(text)
            }
            FetchError::Late
            | FetchError::Connect(_)
            | FetchError::Http(_)
            | FetchError::Closed
            | FetchError::Body(_)
            | FetchError::Document(_)
            | FetchError::Nameless => Absence::Down(text),
        }
    }
}

/// Source of status documents: an endpoint and its connection settings. Cheap to clone.
#[derive(Clone)]
pub struct DocumentSource {
    uri: Uri,
    host: HeaderValue,
    dialer: Dialer,
}

impl DocumentSource {
    /// Creates a source for `url`, which has a scheme and no path.
    pub fn new(url: &str, dialer: &Dialer) -> Result<DocumentSource, AddressError> {
        let refused = || AddressError(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| refused())?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let authority = uri.authority().filter(|it| it.port().is_some() && !it.as_str().contains('@'));
        let (Some(authority), true) = (authority, is_http && is_bare) else { return Err(refused()) };
        if authority.host().is_empty() || authority.port_u16().is_none() {
            return Err(refused());
        }
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| refused())?;
        Ok(DocumentSource { uri, host, dialer: dialer.clone() })
    }

    /// Returns host and port, the label of a row until its member is known.
    pub fn address(&self) -> String {
        clean(self.uri.authority().map_or("", |authority| authority.as_str()))
    }

    /// Fetches the document. Both the document and the error are safe to display.
    pub async fn document(&self) -> Result<Document, Absence> {
        let fetched = tokio::time::timeout(RESPONSE_TIMEOUT, self.fetch()).await;
        fetched.unwrap_or(Err(FetchError::Late)).map_err(Absence::from)
    }

    async fn fetch(&self) -> Result<Document, FetchError> {
        let stream = self.dialer.connect(self.uri.clone()).await?;
        document_of(&self.ask(stream).await?)
    }

    async fn ask(&self, stream: Stream) -> Result<Bytes, FetchError> {
        let mut http = http1::Builder::new();
        http.max_buf_size(HEAD_BYTES_MAX);
        let (mut sender, connection) = http.handshake(TokioIo::new(stream)).await?;
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.uri_mut() = Uri::from_static(PATH);
        request.headers_mut().insert(HOST, self.host.clone());
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        let answered = Box::pin(async {
            let response = sender.send_request(request).await?;
            match response.status() {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND => return Err(FetchError::NotFound),
                StatusCode::MISDIRECTED_REQUEST => return Err(FetchError::Misdirected),
                status => return Err(FetchError::Status(status.as_u16())),
            }
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            body.map(|body| body.to_bytes()).map_err(|error| FetchError::Body(error.to_string()))
        });
        // The connection has no separate task, so it is closed with the request.
        match select(answered, connection).await {
            Either::Left((answered, _connection)) => answered,
            Either::Right((Ok(()), answered)) => match tokio::time::timeout(Duration::ZERO, answered).await {
                Ok(answered) => answered,
                Err(_not_ready) => Err(FetchError::Closed),
            },
            Either::Right((Err(error), _)) => Err(error.into()),
        }
    }
}

pub fn document_of(json: &[u8]) -> Result<Document, FetchError> {
    let document: Document = serde_json::from_slice(json)?;
    // All fields have defaults, for compatibility with other versions.
    if document.id.is_empty() { Err(FetchError::Nameless) } else { Ok(cleaned(document)) }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn an_endpoint_is_a_host_and_a_port() {
        let source = |url: &str| DocumentSource::new(url, &Dialer::default()).map(|source| source.address());
        for (url, wanted) in [
            ("http://127.0.0.1:9090", Some("127.0.0.1:9090")),
            ("https://[::1]:9090/", Some("[::1]:9090")),
            ("http://127.0.0.1", None),
            ("http://127.0.0.1:9090/metrics", None),
            ("http://user:secret@127.0.0.1:9090", None),
            ("ftp://127.0.0.1:9090", None),
            ("http://:9090", None),
            ("http://a:99999", None),
            ("unix:///run/kv.sock", None),
            ("", None),
        ] {
            assert_eq!(source(url).ok().as_deref(), wanted, "{url}");
        }
    }

    /// Returns the result for a server that responds with `head` and `padding` more bytes.
    async fn answer(head: &str, padding: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let head = head.to_owned();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let read = stream.read(&mut request).await.unwrap();
            // The client may close the connection early.
            let _cut = stream.write_all(head.as_bytes()).await;
            let _cut = stream.write_all(&vec![b' '; padding]).await;
            String::from_utf8(request[..read].to_vec()).unwrap()
        });
        let document = DocumentSource::new(&url, &Dialer::default()).unwrap().document().await;
        let request = server.await.unwrap();
        assert!(request.starts_with("GET /ui/status.json HTTP/1.1\r\nhost: 127.0.0.1:"), "{request}");
        match document {
            Ok(document) => format!("member {}", document.id),
            Err(Absence::Down(reason)) => reason,
            Err(Absence::NoFigures(reason)) => format!("no statistics: {reason}"),
        }
    }

    /// Uses a paused clock, which advances while all tasks are idle.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_ends_its_answer_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n").await.unwrap();
            // A slow trickle of bytes must not extend the timeout.
            while stream.write_all(b" ").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let source = DocumentSource::new(&url, &Dialer::default()).unwrap();
        assert_eq!(source.document().await.unwrap_err(), Absence::Down("no response within 5 s".to_owned()));
        server.abort();
    }

    #[tokio::test]
    async fn answers_have_limits_and_errors_say_what_is_wrong() {
        let ok = "HTTP/1.1 200 OK\r\n";
        for (head, padding, wanted) in [
            (format!("{ok}Content-Length: 10\r\n\r\n{{\"id\":\"a\"}}"), 0, "member a"),
            (format!("{ok}Connection: close\r\n\r\n{{\"id\":\"a\"}}"), 0, "member a"),
            (format!("{ok}Content-Length: 10\r\n\r\n{{\"id\":"), 0, "the response has more than"),
            (
                format!("{ok}\r\n{{\"id\":\"a\"}}"),
                ANSWER_BYTES_MAX,
                "the response has more than 1048576 bytes",
            ),
            (format!("{ok}Content-Length: 9999999999\r\n\r\n"), 1 << 21, "the response has more than"),
            (format!("{ok}X: "), 1 << 20, "the response is not HTTP/1"),
            (
                format!("{ok}Content-Length: 2\r\n\r\n{{}}"),
                0,
                "the response is not a status document: no member",
            ),
            (format!("{ok}Content-Length: 2\r\n\r\n[]"), 0, "the response is not a status document: "),
            (
                format!("{ok}\r\n{{\"id\":\"a\",\"leases\":-1}}"),
                0,
                "the response is not a status document: invalid value",
            ),
            (format!("{ok}\r\n{}", "[".repeat(100_000)), 0, "the response is not a status document: "),
            (
                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(),
                0,
                "no statistics: 404: no status document",
            ),
            ("HTTP/1.1 421 \u{7}\r\nContent-Length: 0\r\n\r\n".to_owned(), 0, "the response is not HTTP/1"),
            (
                "HTTP/1.1 421 x\r\nContent-Length: 0\r\n\r\n".to_owned(),
                0,
                "no statistics: 421: the member does not",
            ),
            ("HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n".to_owned(), 0, "no statistics: HTTP status 302"),
            ("\u{1b}[2J".to_owned(), 0, "the response is not HTTP/1"),
            (String::new(), 0, "the response is not HTTP/1: connection closed"),
        ] {
            let answer = answer(&head, padding).await;
            assert!(answer.starts_with(wanted), "{head:.60}: {answer}");
            assert!(!answer.contains(char::is_control), "{answer}");
        }
    }
}
