//! A gRPC client that neither encodes nor decodes: bytes in, bytes out.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::recording::{Outcome, Step};

/// Long enough for a slow machine, short enough that a call without an answer is found out.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Client(tonic::client::Grpc<Channel>);

impl Client {
    pub async fn connect(port: u16) -> Result<Self, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?;
        let channel = endpoint.connect().await?;
        Ok(Self(tonic::client::Grpc::new(channel).max_decoding_message_size(usize::MAX)))
    }

    /// Sends the recorded request and waits for the end of the call.
    pub async fn call(&mut self, step: &Step) -> Outcome {
        let mut answers = Vec::new();
        let ended = match tokio::time::timeout(CALL_TIMEOUT, self.exchange(step, &mut answers)).await {
            Ok(ended) => ended,
            Err(_) => Err(Status::deadline_exceeded(format!("no end of the call in {CALL_TIMEOUT:?}"))),
        };
        let status = ended.err().unwrap_or_else(|| Status::new(Code::Ok, ""));
        // Go's protobuf spells the space in its errors differently from build to build, so that programs do
        // not compare them.
        let message = status.message().replace('\u{a0}', " ");
        Outcome { code: code_name(status.code()), message, answers }
    }

    /// Every call is taken as one that streams: a single answer is a stream of one message.
    async fn exchange(&mut self, step: &Step, answers: &mut Vec<Bytes>) -> Result<(), Status> {
        let path: PathAndQuery = step.method.parse().expect("recorded methods are paths");
        self.0.ready().await.map_err(|error| Status::unavailable(format!("connection: {error}")))?;
        let response = self.0.server_streaming(Request::new(step.request_bytes()), path, PassThrough).await?;
        let mut messages = response.into_inner();
        while let Some(message) = messages.message().await? {
            answers.push(message);
        }
        Ok(())
    }
}

/// Codes as gRPC's Go implementation prints them, which the recordings use.
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
