//! A gRPC client for raw bytes, which neither encodes nor decodes. Several calls may be open at a time.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::recording::Outcome;

/// Time limit of a response. Longer than the shortest lease on a slow machine, but short enough to detect a
/// missing response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of unread responses: more than any script receives. Beyond it, the stream blocks.
const ARRIVALS_MAX: usize = 4096;
/// Maximum number of unsent requests: scripts expect a response after a few. Beyond it, the test fails.
const REQUESTS_MAX: usize = 64;

#[derive(Clone)]
pub struct Client {
    grpc: tonic::client::Grpc<Channel>,
    metadata: Option<(&'static str, AsciiMetadataValue)>,
}

impl Client {
    pub async fn connect(port: u16) -> Result<Self, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?;
        let channel = endpoint.connect().await?;
        let grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(usize::MAX);
        Ok(Self { grpc, metadata: None })
    }

    /// Returns the same connection with this token, or without a token if it is empty.
    pub fn with_token(&self, token: &str) -> Self {
        let metadata = (!token.is_empty()).then(|| ("token", token.parse().expect("a token is ASCII")));
        Self { grpc: self.grpc.clone(), metadata }
    }

    /// Returns the same connection with `hasleader: true`.
    pub fn with_has_leader(&self) -> Self {
        let metadata = Some(("hasleader", AsciiMetadataValue::from_static("true")));
        Self { grpc: self.grpc.clone(), metadata }
    }

    /// Sends a request and waits until the call is finished.
    pub async fn call(&self, method: &str, request: Bytes) -> Outcome {
        self.open(method, Some(request), Requests::One).end().await
    }

    pub fn open(&self, method: &str, request: Option<Bytes>, requests: Requests) -> Stream {
        let path: PathAndQuery = method.parse().expect("recorded methods are paths");
        let (sender, to_send) = mpsc::channel(REQUESTS_MAX);
        let (arrived, arrivals) = mpsc::channel(ARRIVALS_MAX);
        let (mut grpc, metadata) = (self.grpc.clone(), self.metadata.clone());
        let task = tokio::spawn(async move {
            let ended = exchange(&mut grpc, path, metadata, to_send, &arrived).await;
            let status = ended.err().unwrap_or_else(|| Status::new(Code::Ok, ""));
            // Fails only if the script is finished.
            let _ = arrived.send(Arrival::End(status)).await;
        });
        let mut stream = Stream { requests: Some(sender), arrivals, task };
        if let Some(request) = request {
            stream.send(request);
        }
        if requests == Requests::One {
            stream.close();
        }
        stream
    }
}

/// Number of requests of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requests {
    One,
    Any,
}

/// A response, or the final status.
enum Arrival {
    Answer(Bytes),
    End(Status),
}

/// An open call. Responses are queued until they are taken.
pub struct Stream {
    requests: Option<mpsc::Sender<Bytes>>,
    arrivals: mpsc::Receiver<Arrival>,
    task: JoinHandle<()>,
}

impl Stream {
    /// Sends a request. Does not fail if the server has closed the call: the status follows the responses.
    pub fn send(&mut self, request: Bytes) {
        let requests = self.requests.as_ref().expect("scripts send nothing after a half-close");
        let full = matches!(requests.try_send(request), Err(TrySendError::Full(_)));
        assert!(!full, "a script sends more than {REQUESTS_MAX} requests that the server does not take");
    }

    pub fn close(&mut self) {
        self.requests = None;
    }

    pub fn cancel(&self) {
        self.task.abort();
    }

    /// Takes `count` responses, or fewer and the status if the call is closed before.
    pub async fn take(&mut self, count: usize) -> Outcome {
        let mut outcome = Outcome::default();
        while outcome.answers.len() < count && self.take_one(&mut outcome).await {}
        outcome
    }

    /// Takes the remaining responses and the status.
    pub async fn end(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        while self.take_one(&mut outcome).await {}
        outcome
    }

    /// Takes the responses received so far, without waiting.
    pub fn arrived(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        while let Ok(arrival) = self.arrivals.try_recv() {
            outcome.add(arrival);
        }
        outcome
    }

    async fn take_one(&mut self, outcome: &mut Outcome) -> bool {
        match tokio::time::timeout(ANSWER_TIMEOUT, self.arrivals.recv()).await {
            Ok(Some(arrival)) => outcome.add(arrival),
            Ok(None) => outcome.add(Arrival::End(Status::unknown("the call ended before"))),
            Err(_) => {
                let text = format!("no answer and no end of the call in {ANSWER_TIMEOUT:?}");
                outcome.add(Arrival::End(Status::deadline_exceeded(text)))
            }
        }
    }
}

impl Outcome {
    /// Returns false after the final status.
    fn add(&mut self, arrival: Arrival) -> bool {
        match arrival {
            Arrival::Answer(answer) => {
                self.answers.push(answer);
                true
            }
            Arrival::End(status) => {
                self.code = code_name(status.code());
                // Go's protobuf varies the space in its errors between builds; clients do not compare them.
                self.message = status.message().replace('\u{a0}', " ");
                false
            }
        }
    }
}

/// Runs any call as a bidirectional stream, since a single message is also a stream.
async fn exchange(
    grpc: &mut tonic::client::Grpc<Channel>,
    path: PathAndQuery,
    metadata: Option<(&'static str, AsciiMetadataValue)>,
    to_send: mpsc::Receiver<Bytes>,
    arrived: &mpsc::Sender<Arrival>,
) -> Result<(), Status> {
    grpc.ready().await.map_err(|error| Status::unavailable(format!("connection: {error}")))?;
    let mut requests = Request::new(ReceiverStream::new(to_send));
    if let Some((name, value)) = metadata {
        requests.metadata_mut().insert(name, value);
    }
    let mut messages = grpc.streaming(requests, path, PassThrough).await?.into_inner();
    while let Some(message) = messages.message().await? {
        if arrived.send(Arrival::Answer(message)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Returns the names used by gRPC's Go implementation, which the recordings contain.
fn code_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    }
}

struct PassThrough;

impl Codec for PassThrough {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for PassThrough {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for PassThrough {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }
}
