//! How long a bucket is given for an answer, and how often it is asked.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream;
use http::Method;
use http_body_util::{BodyExt, StreamBody};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};
use object_store::{BackoffConfig, ClientOptions, Error, RetryConfig};

use crate::live_import::say;
use process::log::causes;

/// Without a byte of an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Of a request in addition, over the slowest line that is served, which it shares with another one. A part
/// of an upload gets less than [`Tries::PATIENT`] has, so that a second try is made.
const BYTES_PER_SECOND_MIN: u64 = 32 << 10;
/// To put the parts of an upload together takes so many times longer.
const COMPLETE_FACTOR: u32 = 10;
const SAY_EVERY: Duration = Duration::from_secs(30);

/// What fails for a reason that may pass is tried again: no answer, 5xx, a connection that is refused or cut.
/// Each try is limited.
#[derive(Clone, Copy, Debug)]
pub struct Tries {
    answer_within: Duration,
    /// After this, none begins.
    begin_within: Duration,
    pauses_max: Duration,
    tries_max: usize,
}

impl Tries {
    /// For a caller that tries again by itself, and sees a signal only then; and for a place that has not
    /// answered yet.
    pub const BRIEF: Tries = Tries {
        answer_within: ANSWER_WITHIN,
        begin_within: Duration::from_secs(5),
        pauses_max: Duration::from_secs(1),
        tries_max: 10,
    };
    /// For one that would have to begin anew. A request is signed once, for 15 minutes.
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

    /// Time until the head of the answer.
    fn limit(self, request: &HttpRequest) -> Duration {
        let is_of_upload = request.uri().query().is_some_and(|query| query.contains("uploadId="));
        if request.method() == Method::POST && is_of_upload {
            return self.answer_within * COMPLETE_FACTOR;
        }
        let bytes = request.body().content_length() as u64;
        self.answer_within + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN)
    }
}

impl HttpConnector for Tries {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient, Error> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(LimitedClient { tries: *self, client, said: Mutex::default() }))
    }
}

/// Makes one try.
#[derive(Debug)]
struct LimitedClient {
    tries: Tries,
    client: HttpClient,
    /// When the last line about a failed try was written.
    said: Mutex<Option<Instant>>,
}

impl HttpService for LimitedClient {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let host = request.uri().authority().map(ToString::to_string).unwrap_or_default();
            let answered = within(self.tries.limit(&request), self.client.execute(request)).await;
            match &answered {
                Ok(answer) if !answer.status().is_server_error() => {}
                Ok(answer) => self.say(&host, &answer.status().to_string()),
                Err(error) => self.say(&host, &causes(error)),
            }
            let (head, body) = answered?.into_parts();
            let limit = self.tries.answer_within;
            let frames = stream::try_unfold(body, move |mut body| async move {
                let frame = within(limit, async { body.frame().await.transpose() }).await?;
                Ok(frame.map(|frame| (frame, body)))
            });
            Ok(HttpResponse::from_parts(head, HttpResponseBody::new(StreamBody::new(frames))))
        })
    }
}

impl LimitedClient {
    /// Who waits for minutes should know what for.
    fn say(&self, host: &str, reason: &str) {
        let mut said = self.said.lock().expect("nothing panics with it");
        if self.tries.tries_max > Tries::BRIEF.tries_max && said.is_none_or(|at| at.elapsed() > SAY_EVERY) {
            *said = Some(Instant::now());
            say(&format!("{host}: {reason}: trying for up to {:?}", self.tries.begin_within));
        }
    }
}

/// What comes in time.
async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, HttpError>>,
) -> Result<T, HttpError> {
    let late = |_| std::io::Error::other(format!("no answer within {limit:?}"));
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
