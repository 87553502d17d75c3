//! One stream of a client.

use api::etcdserverpb::WatchRequest as Message;
use api::etcdserverpb::watch_request::RequestUnion;
use bytes::Buf;
use prost::Message as _;
use tonic::Status;
use watch::Encoder;

use crate::admission::ClientId;
use crate::errors;
use crate::member::{Member, WatchRequest, WatchStopped, WatchStream};
use crate::net::http2::{PREFIX_BYTES, Replies, Requests, StreamGone};

/// Bytes that are encoded at once, at most: a socket takes them in one write, and others have their turn
/// after it.
const CHUNK_BYTES: usize = 64 << 10;

/// Serves a stream until the client sends something wrong or is gone.
pub async fn serve(member: &Member, client: ClientId, requests: Requests, replies: Replies) -> Status {
    let stream = match member.watching.open(client).await {
        Ok(stream) => stream,
        Err(WatchStopped) => return errors::stopped(),
    };
    tokio::select! {
        biased;
        status = forward(&stream, requests) => status,
        StreamGone = send(member, &stream, replies) => errors::cancelled(),
    }
}

/// Hands requests to the hub. Returns when the stream has to end; the end of the requests is none.
async fn forward(stream: &WatchStream, mut requests: Requests) -> Status {
    loop {
        stream.place().await;
        let request = loop {
            let mut message = match requests.next().await {
                Some(Ok(message)) => message,
                Some(Err(status)) => return status,
                None => return std::future::pending().await,
            };
            message.advance(PREFIX_BYTES);
            match Message::decode(message) {
                Ok(Message { request_union: Some(union) }) => break request(union),
                Ok(Message { request_union: None }) => {}
                Err(_) => return errors::malformed(errors::Reading::Stream),
            }
        };
        if let Err(WatchStopped) = stream.request(request).await {
            return errors::stopped();
        }
    }
}

fn request(union: RequestUnion) -> WatchRequest {
    match union {
        RequestUnion::CreateRequest(request) => WatchRequest::Create(request.into()),
        RequestUnion::CancelRequest(request) => WatchRequest::Cancel { watch_id: request.watch_id },
        RequestUnion::ProgressRequest(_) => WatchRequest::Progress,
    }
}

/// Sends what the hub delivers, as fast as the client takes it.
async fn send(member: &Member, stream: &WatchStream, mut replies: Replies) -> StreamGone {
    let fragment_bytes = member.limits.message_bytes_max();
    let mut encoder = Encoder::new(member.ids.cluster, member.ids.member, fragment_bytes);
    let mut frames = Vec::new();
    loop {
        if encoder.is_empty() {
            stream.read(encoder.queue()).await;
        }
        // No more than the client takes now, and one message: what waits is in the hub's bounds.
        let bytes_max = match replies.room(CHUNK_BYTES).await {
            Ok(granted) => granted,
            Err(gone) => return gone,
        };
        encoder.encode(member.status().term, bytes_max, &mut frames);
        for bytes in frames.drain(..) {
            if let Err(gone) = replies.send(bytes).await {
                return gone;
            }
        }
    }
}
