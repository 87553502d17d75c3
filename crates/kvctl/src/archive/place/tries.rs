//! Limits on the requests to a bucket, and how often a failed one is retried.
//!
//! * Each try is limited in time: until the head of the response, and by a minimum pace for its body.
//! * Each response is limited in bytes, by what was requested. A list is limited in pages.
//! * Redirects are errors: a signed request is not valid anywhere else, and an endpoint must not choose which
//!   host is contacted.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream;
use http::header::{CONTENT_LENGTH, LOCATION, RANGE};
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, StreamBody};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, Error, RetryConfig};
use reqwest::{Proxy, redirect};

use crate::live_import::say;
use process::log::causes;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time without a byte of the response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Slowest pace of the body of a request or response, after a grace period: the slowest supported line,
/// shared by two parts of an upload. A part's timeout is shorter than the retry time of [`Tries::PATIENT`],
/// which leaves time for a second attempt.
const BYTES_PER_SECOND_MIN: u64 = 32 << 10;
/// Longest response that is no object. A page of a list has 1,000 names of at most 1 KiB, escaped.
const PAGE_BYTES_MAX: u64 = 16 << 20;
/// Maximum pages of a list: 16 million objects, or 2.6 years of a segment every 5 s.
const PAGES_MAX: u32 = if cfg!(test) { 64 } else { 16 << 10 };
/// In the query for a page after the first.
const CONTINUED: &str = "continuation-token=";
/// Factor on the timeout for the request that completes an upload.
const COMPLETE_FACTOR: u32 = 10;
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Retry policy for temporary failures: timeouts, 5xx, rejected or broken connections. Each attempt has a
/// timeout.
#[derive(Clone, Copy, Debug)]
pub struct Tries {
    answer_within: Duration,
    /// Time after which no further attempt starts.
    begin_within: Duration,
    pauses_max: Duration,
    tries_max: usize,
}

impl Tries {
    /// Policy for callers that retry by themselves and check for signals only between calls, and for
    /// endpoints that have not responded yet.
    pub const BRIEF: Tries = Tries {
        answer_within: RESPONSE_TIMEOUT,
        begin_within: Duration::from_secs(5),
        pauses_max: Duration::from_secs(1),
        tries_max: 10,
    };
    /// Policy for callers that would have to start over. A signature is valid for 15 minutes.
    pub const PATIENT: Tries = Tries {
        begin_within: Duration::from_secs(300),
        pauses_max: Duration::from_secs(15),
        tries_max: 1000,
        ..Tries::BRIEF
    };

    #[cfg(test)]
    pub const QUICK: Tries = Tries {
        answer_within: Duration::from_millis(200),
        pauses_max: Duration::from_millis(40),
        tries_max: 20,
        ..Tries::PATIENT
    };
    #[cfg(test)]
    pub const QUICK_AND_BRIEF: Tries = Tries { begin_within: Duration::from_millis(200), ..Tries::QUICK };

    pub fn retry_config(self) -> RetryConfig {
        let backoff = BackoffConfig { max_backoff: self.pauses_max, base: 3.0, ..BackoffConfig::default() };
        RetryConfig { backoff, max_retries: self.tries_max, retry_timeout: self.begin_within }
    }

    /// Time after which the pace of a response's body counts.
    fn pace_after(self) -> Duration {
        self.answer_within * 2 / 3
    }

    /// Returns the timeout until the head of the response.
    fn limit(self, request: &HttpRequest) -> Duration {
        let is_of_upload = request.uri().query().is_some_and(|query| query.contains("uploadId="));
        if request.method() == Method::POST && is_of_upload {
            return self.answer_within * COMPLETE_FACTOR;
        }
        let bytes = request.body().content_length() as u64;
        self.answer_within + transfer_time(bytes)
    }
}

/// Longest time that a body of this length may take.
fn transfer_time(bytes: u64) -> Duration {
    Duration::from_secs(bytes / BYTES_PER_SECOND_MIN)
}

/// Longest body of a successful response to a request. A whole object has the length of its head, which its
/// reader checks.
fn response_bytes_max(request: &HttpRequest) -> u64 {
    let range = request.headers().get(RANGE).and_then(|range| range.to_str().ok());
    let ends = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    match ends.and_then(|(from, to)| Some((from.parse::<u64>().ok()?, to.parse::<u64>().ok()?))) {
        Some((from, to)) => to.saturating_sub(from).saturating_add(1).max(PAGE_BYTES_MAX),
        None if request.method() == Method::GET && request.uri().query().is_none() => u64::MAX,
        None => PAGE_BYTES_MAX,
    }
}

impl HttpConnector for Tries {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient, Error> {
        let client =
            connect(options).map_err(|error| Error::Generic { store: "S3", source: error.into() })?;
        let client = HttpClient::new(client);
        let limited = LimitedClient { tries: *self, client, said: Mutex::default(), list: Mutex::default() };
        Ok(HttpClient::new(limited))
    }
}

/// The client that object_store would make of these options, but for redirects and its limit on time.
fn connect(options: &ClientOptions) -> reqwest::Result<reqwest::Client> {
    let is_set = |key| options.get_config_value(&key).is_some_and(|value| value == "true");
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("kv-server/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .https_only(!is_set(ClientConfigKey::AllowHttp))
        .danger_accept_invalid_certs(is_set(ClientConfigKey::AllowInvalidCertificates));
    if let Some(proxy) = options.get_config_value(&ClientConfigKey::ProxyUrl) {
        builder = builder.proxy(Proxy::all(proxy)?);
    }
    builder.build()
}

/// Makes one try.
#[derive(Debug)]
struct LimitedClient {
    tries: Tries,
    client: HttpClient,
    /// When the last line about a failed try was written.
    said: Mutex<Option<Instant>>,
    list: Mutex<ListProgress>,
}

/// Progress of the current list.
#[derive(Debug, Default)]
struct ListProgress {
    pages: u32,
    /// The query for the last page that was received.
    last: String,
}

impl HttpService for LimitedClient {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let host = request.uri().authority().map(ToString::to_string).unwrap_or_default();
            let query = request.uri().query().unwrap_or_default().to_owned();
            self.check_page(&query)?;
            let (is_head, mut bytes_max) = (request.method() == Method::HEAD, response_bytes_max(&request));
            let answered = within(self.tries.limit(&request), self.client.execute(request)).await;
            match &answered {
                Ok(answer) if !answer.status().is_server_error() => {}
                Ok(answer) => self.say(&host, &answer.status().to_string()),
                Err(error) => self.say(&host, &causes(error)),
            }
            let (head, body) = answered?.into_parts();
            if let Some(location) = head.headers.get(LOCATION).filter(|_| head.status.is_redirection()) {
                let what_to_do = "set AWS_ENDPOINT_URL to the bucket's own endpoint";
                return Err(broken(format!("{host} redirects to {location:?}: {what_to_do}")));
            }
            match head.status.is_success() {
                true => self.note_page(query),
                false => bytes_max = PAGE_BYTES_MAX,
            }
            if let Some(bytes) = content_length(&head.headers).filter(|_| !is_head) {
                check_length(bytes, bytes_max)?;
                bytes_max = bytes;
            }
            let (limit, grace) = (self.tries.answer_within, self.tries.pace_after());
            let began = Instant::now();
            let frames = stream::try_unfold((body, 0), move |(mut body, received)| async move {
                let frame = within(limit, async { body.frame().await.transpose() }).await?;
                let Some(frame) = frame else { return Ok(None) };
                let received = received + frame.data_ref().map_or(0, |bytes| bytes.len() as u64);
                check_length(received, bytes_max)?;
                if began.elapsed() > grace + transfer_time(received) {
                    let text = format!("less than {} KiB/s", BYTES_PER_SECOND_MIN >> 10);
                    return Err(HttpError::new(HttpErrorKind::Timeout, std::io::Error::other(text)));
                }
                Ok(Some((frame, (body, received))))
            });
            Ok(HttpResponse::from_parts(head, HttpResponseBody::new(StreamBody::new(frames))))
        })
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn check_length(bytes: u64, bytes_max: u64) -> Result<(), HttpError> {
    let refused = || broken(format!("the response is longer than {bytes_max} bytes"));
    (bytes <= bytes_max).then_some(()).ok_or_else(refused)
}

/// A response that no bucket gives. The request is not retried.
fn broken(text: String) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, std::io::Error::other(text))
}

impl LimitedClient {
    /// Rejects another page of a list that has no end.
    fn check_page(&self, query: &str) -> Result<(), HttpError> {
        let list = self.list.lock().expect("nothing panics with it");
        if !query.contains(CONTINUED) {
            return Ok(());
        }
        if list.pages >= PAGES_MAX {
            return Err(broken(format!("the list has more than {PAGES_MAX} pages")));
        }
        let repeats = || broken("the list does not advance: it continues with the same page".to_owned());
        (list.last != query).then_some(()).ok_or_else(repeats)
    }

    /// Counts a page that is received. A page that failed is requested again with the same query.
    fn note_page(&self, query: String) {
        let mut list = self.list.lock().expect("nothing panics with it");
        let pages = if query.contains(CONTINUED) { list.pages + 1 } else { 1 };
        if query.contains("list-type=") {
            *list = ListProgress { pages, last: query };
        }
    }

    /// Reports the reason of a long wait to the user.
    fn say(&self, host: &str, reason: &str) {
        let mut said = self.said.lock().expect("nothing panics with it");
        if self.tries.tries_max > Tries::BRIEF.tries_max && said.is_none_or(|at| at.elapsed() > LOG_INTERVAL)
        {
            *said = Some(Instant::now());
            say(&format!("{host}: {reason}: trying for up to {:?}", self.tries.begin_within));
        }
    }
}

/// Returns the result of a future, unless it times out.
async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, HttpError>>,
) -> Result<T, HttpError> {
    let late = |_| std::io::Error::other(format!("no response within {limit:?}"));
    let answer = tokio::time::timeout(limit, answer).await;
    answer.map_err(|elapsed| HttpError::new(HttpErrorKind::Timeout, late(elapsed)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_try_has_the_time_that_its_bytes_take() {
        let limit = |method, uri: &str, bytes: usize| {
            let request = http::Request::builder().method(method).uri(uri);
            Tries::PATIENT.limit(&request.body(vec![0; bytes].into()).unwrap()).as_secs()
        };
        assert_eq!(limit(Method::GET, "/b/k", 0), 30);
        assert_eq!(limit(Method::PUT, "/b/k", 1 << 20), 62);
        // Another one begins in time if a part of an upload gets no answer.
        assert_eq!(limit(Method::PUT, "/b/k?partNumber=1&uploadId=1", 8 << 20), 286);
        assert_eq!(limit(Method::POST, "/b/k?uploads=", 0), 30);
        assert_eq!(limit(Method::POST, "/b/k?uploadId=1", 100), 300);
    }
}
