//! Serves one stream of a client.

use std::time::Duration;

use api::etcdserverpb::WatchRequest as Message;
use api::etcdserverpb::watch_request::RequestUnion;
use api::grpc::PREFIX_BYTES;
use api::{CODE_NAMES, Method};
use bytes::Buf;
use futures_util::future::OptionFuture;
use prost::Message as _;
use state_machine::{KeyAccess, Need};
use tokio::sync::watch::Receiver;
use tonic::{Code, Status};
use watch::{CreateRequest, Encoder};

use crate::audit::AuditSubject;
use crate::member::{Member, WatchRequest, WatchStopped, WatchStream};
use ::auth::Requester;
use grpc_server::http2::{Replies, Requests, StreamGone};

/// Maximum size of a chunk to encode: a socket takes it in one write, after which the task yields.
const CHUNK_BYTES: usize = 64 << 10;

/// Time until the first request of a stream with a bad token is canceled, as by etcd.
const REJECTED_AFTER: Duration = Duration::from_secs(2);

/// Serves a stream until the client disconnects or sends an invalid request. A stream with a bad token is
/// closed soon.
pub async fn serve(member: &Member, requester: &Requester, requests: Requests, replies: Replies) -> Status {
    // In a box, and only if it may be bad: the future of every other stream stays small.
    let rejection =
        member.auth.caller(&requester.identity).err().map(|_| Box::pin(reject(member, requester)));
    let stream = match member.watching.open(requester.client()).await {
        Ok(stream) => stream,
        Err(WatchStopped) => return grpc_errors::stopped(),
    };
    tokio::select! {
        biased;
        status = forward(member, requester, &stream, requests) => status,
        status = review(member, requester, &stream) => status,
        Some(status) = OptionFuture::from(rejection) => status,
        status = deliver(&stream, encoder(member), || member.status().term.0, replies) => status,
    }
}

/// Returns the rejection of a token that names no user, [`REJECTED_AFTER`] it has turned out. Never, if it
/// names one.
async fn reject(member: &Member, requester: &Requester) -> Status {
    match member.caller(requester).await {
        Err(status) if status.code() == Code::Unauthenticated => {
            tokio::time::sleep(REJECTED_AFTER).await;
            status
        }
        Ok(_) | Err(_) => std::future::pending().await,
    }
}

fn encoder(member: &Member) -> Encoder {
    Encoder::new(member.ids.cluster, member.ids.member, member.limits.message_bytes_max())
}

/// Rechecks the watchers after users or roles change, if the member is configured to do so.
async fn review(member: &Member, requester: &Requester, stream: &WatchStream) -> Status {
    let mut changes = member.auth.changes.clone();
    loop {
        changed(&mut changes).await;
        if let Err(WatchStopped) = review_now(member, requester, stream).await {
            return grpc_errors::stopped();
        }
    }
}

/// Returns when users or roles have changed; never, if watchers are not rechecked.
pub async fn changed(changes: &mut Option<Receiver<()>>) {
    let has_changed = match changes {
        Some(changes) => changes.changed().await.is_ok(),
        None => false,
    };
    if !has_changed {
        std::future::pending().await
    }
}

pub async fn review_now(
    member: &Member,
    requester: &Requester,
    stream: &WatchStream,
) -> Result<(), WatchStopped> {
    stream.review(member.auth.user_of(&requester.identity)).await
}

/// Passes requests to the hub. Returns when the stream has to be closed, but not when the request side is.
async fn forward(
    member: &Member,
    requester: &Requester,
    stream: &WatchStream,
    mut requests: Requests,
) -> Status {
    loop {
        stream.place().await;
        let known = auth_version(member);
        let request = loop {
            let mut message = match requests.next().await {
                Some(Ok(message)) => message,
                Some(Err(status)) => return status,
                None => return std::future::pending().await,
            };
            message.advance(PREFIX_BYTES);
            match Message::decode(message) {
                Ok(Message { request_union: Some(union) }) => break request(member, requester, union).await,
                Ok(Message { request_union: None }) => {}
                Err(_) => return grpc_errors::malformed(grpc_errors::RequestForm::Stream),
            }
        };
        if let Err(WatchStopped) = stream.request(request).await {
            return grpc_errors::stopped();
        }
        // A concurrent review may have run before the new watcher was added.
        if member.auth.changes.is_some()
            && known != auth_version(member)
            && let Err(WatchStopped) = review_now(member, requester, stream).await
        {
            return grpc_errors::stopped();
        }
    }
}

/// Returns a version of users, roles, and the state of authentication.
fn auth_version(member: &Member) -> (u64, bool) {
    (member.auth.table.revision(), member.auth.is_enabled())
}

/// Returns the request for the hub. A watcher on keys that the caller may not read is rejected in the
/// stream.
async fn request(member: &Member, requester: &Requester, union: RequestUnion) -> WatchRequest {
    match union {
        RequestUnion::CreateRequest(request) => {
            let request = CreateRequest::from(request);
            if request.start_revision < 0 {
                return WatchRequest::Create(request); // The hub rejects it. etcd checks this first.
            }
            let checked = check(member, requester, &request).await;
            if let Some(call) = member.audited(requester, Method::Watch) {
                call.end_of(
                    AuditSubject::read(&request.key, &request.range_end),
                    checked.as_ref().map(|()| None),
                );
            }
            match checked {
                Ok(()) => WatchRequest::Create(request),
                Err(status) => WatchRequest::Refuse { reason: in_words(&status) },
            }
        }
        RequestUnion::CancelRequest(request) => WatchRequest::Cancel { watch_id: request.watch_id },
        RequestUnion::ProgressRequest(_) => WatchRequest::Progress,
    }
}

/// Checks the keys that the hub will watch. A watcher keeps its permission, as in etcd, unless the member
/// is configured to recheck watchers.
async fn check(member: &Member, requester: &Requester, request: &CreateRequest) -> Result<(), Status> {
    let caller = member.caller(requester).await?;
    let need = Need::Keys(KeyAccess::Read, request.keys());
    caller.check(&member.store, need).map_err(grpc_errors::refused)
}

/// Formats a status like Go, which is the text that etcd sends as a reason.
fn in_words(status: &Status) -> String {
    let code = CODE_NAMES.get(status.code() as usize).copied().unwrap_or_default();
    format!("rpc error: code = {code} desc = {}", status.message())
}

/// Like [`send`], until the hub closes the stream.
pub(super) async fn deliver(
    stream: &WatchStream,
    encoder: Encoder,
    term: impl Fn() -> u64,
    replies: Replies,
) -> Status {
    tokio::select! {
        biased;
        status = send(stream, encoder, term, replies) => status,
        () = stream.ended() => grpc_errors::watch_broken(),
    }
}

/// Sends the hub's responses at the client's pace. Returns when the client disconnects, or the rest of a
/// response was compacted.
async fn send(
    stream: &WatchStream,
    mut encoder: Encoder,
    term: impl Fn() -> u64,
    mut replies: Replies,
) -> Status {
    let mut frames = Vec::new();
    loop {
        if encoder.is_empty() {
            stream.read(encoder.queue()).await;
        }
        // Encodes no more than the client takes now, and one message: the rest stays within the hub's
        // limits.
        let bytes_max = match replies.room(encoder.bytes_up_to(CHUNK_BYTES)).await {
            Ok(granted) => granted,
            Err(StreamGone) => return grpc_errors::cancelled(),
        };
        encoder.encode(term(), bytes_max, &mut frames);
        for bytes in frames.drain(..) {
            if let Err(StreamGone) = replies.send(bytes).await {
                return grpc_errors::cancelled();
            }
        }
        if encoder.is_broken() {
            return grpc_errors::watch_broken();
        }
    }
}
