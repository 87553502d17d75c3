//! A watch stream: requests are queued, responses are read sequentially.
//!
//! Its connection is driven elsewhere.

use crate::client::call::{body_of, broken};
use crate::client::endpoint::Endpoint;
use crate::client::failure::CallFailure;
use crate::client::link;
use crate::client::reply::verdict;
use crate::workload::frame::Template;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use api::grpc::Prefix;
use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use prost::Message;

const PATH: &str = "/etcdserverpb.Watch/Watch";

pub struct ClientWatchStream {
    requests: SendStream<Bytes>,
    responses: Responses,
    /// Received part of the next message.
    buffer: BytesMut,
}

enum Responses {
    Awaited(ResponseFuture),
    Body(RecvStream),
}

impl ClientWatchStream {
    /// Opens a stream once the server permits it.
    pub async fn open(endpoint: &Endpoint, connection: &SendRequest<Bytes>) -> Result<Self, CallFailure> {
        let request =
            link::request(endpoint, PATH).map_err(|error| CallFailure::unavailable(error.to_string()))?;
        let mut connection = connection.clone().ready().await.map_err(|error| broken(&error))?;
        let (response, requests) = connection.send_request(request, false).map_err(|error| broken(&error))?;
        Ok(Self { requests, responses: Responses::Awaited(response), buffer: BytesMut::new() })
    }

    /// Queues the creation of a watcher.
    pub fn create(&mut self, request: WatchCreateRequest) -> Result<(), CallFailure> {
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(request)) };
        let frame = Template::constant(&request).fill(|_, _, _| ());
        self.requests.send_data(frame, false).map_err(|error| broken(&error))
    }

    /// Returns the next response. Fails if the server closed the stream.
    pub async fn next(&mut self) -> Result<WatchResponse, CallFailure> {
        loop {
            if let Some(message) = self.take_message()? {
                let decoded = WatchResponse::decode(message);
                return decoded.map_err(|error| CallFailure::protocol(format!("watch response: {error}")));
            }
            self.read().await?;
        }
    }

    /// Returns the first message in the buffer if it is complete.
    fn take_message(&mut self) -> Result<Option<Bytes>, CallFailure> {
        if Prefix::of(&self.buffer).is_some_and(|prefix| prefix.format != 0) {
            return Err(CallFailure::protocol("watch response is compressed, which was not asked for"));
        }
        Ok(api::grpc::take(&mut self.buffer).map(|(_, message)| message))
    }

    /// Reads the next piece of the body into the buffer.
    async fn read(&mut self) -> Result<(), CallFailure> {
        let body = match &mut self.responses {
            Responses::Body(body) => body,
            Responses::Awaited(response) => {
                let response = response.await.map_err(|error| broken(&error))?;
                self.responses = Responses::Body(body_of(response)?);
                return Ok(());
            }
        };
        match body.data().await {
            Some(Ok(piece)) => {
                self.buffer.extend_from_slice(&piece);
                // Fails only on a closed stream, which needs no window.
                let _ = body.flow_control().release_capacity(piece.len());
                Ok(())
            }
            Some(Err(error)) => Err(broken(&error)),
            None => {
                let trailers = body.trailers().await.map_err(|error| broken(&error))?;
                trailers.as_ref().map_or(Ok(()), verdict)?;
                Err(CallFailure::unavailable("the server ended the watch stream"))
            }
        }
    }
}
