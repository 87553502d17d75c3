//! Calls other than hot ones: relayed to the gRPC services as ordinary HTTP requests, one task per call.
//!
//! * There are at most as many tasks as the connection has streams: a reset cancels its task. A large head
//!   counts like a body until the call has a response.
//! * The next part of a response is produced when the connection has capacity for it. A response that holds
//!   admitted memory, in its extensions, is not delayed, since other calls wait for that memory.
//! * An incomplete body counts against the bounds of `account` and has [`BODY_TIMEOUT`] to arrive. A body
//!   that is not gRPC may be an endless stream: its reader counts and bounds the bytes it holds.
//! * A call with a complete response and an incomplete request has [`REST_TIMEOUT`] to complete the
//!   request, and is reset then. Bytes that arrive in that time are discarded.
//! * When the member stops, a call with a partial response fails with UNAVAILABLE immediately, since a
//!   stream may be endless. A call without any part of its response may finish.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::http2::{EndOfBody, ErrorCode, StreamEnded};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::Status;
use tonic::body::Body;
use tower::{BoxError, ServiceExt};

use super::account::{Account, Body as Counted, RelayedCall, Room};
use super::grpc::{is_call, send_data, send_status, send_status_after_headers};
use super::long::unless_reset;
use super::shared::{ConnectionShared, stopped_for_requests};
use super::unary::BODY_TIMEOUT;
use super::wire::{BodyReader, RequestHead, StreamWriter, response_block, trailers_block};

/// Time for the rest of a request after its response. A reset together with the response makes some clients
/// drop the response: curl 7.88 does in one of seven calls.
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// Any server of gRPC requests: tonic's routes, with or without layers.
pub trait GrpcService:
    tower::Service<Request<Body>, Response = Response<Body>, Error = std::convert::Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> GrpcService for S where
    S: tower::Service<
            Request<Body>,
            Response = Response<Body>,
            Error = std::convert::Infallible,
            Future: Send,
        > + Clone
        + Send
        + 'static
{
}

/// Serves one call in a separate task, which the client's reset cancels. `user` is as in
/// [`super::HotMethods::user`].
pub(super) fn spawn<S: GrpcService>(
    services: &S,
    (head, counted_head): (&RequestHead, Option<Box<Counted>>),
    user: Option<u64>,
    (reader, mut writer): (BodyReader, StreamWriter),
    shared: &ConnectionShared,
) {
    let relayed = match RelayedCall::new(&shared.account) {
        Ok(relayed) => relayed,
        Err(status) => {
            let _client_is_gone = send_status(&mut writer, status);
            return;
        }
    };
    let (services, stop) = (services.clone(), shared.stop.clone());
    let counted = is_call(&head.headers).then(|| (Counted::new(relayed.account()), user));
    let mut request = head.request(Body::new(RelayedBody::new(reader, counted, stop.clone())));
    request.extensions_mut().insert(Room(&shared.account).for_parts());
    tokio::spawn(async move {
        // A call with a disconnected client is dropped here, while it waits.
        let answered = unless_reset(services.oneshot(request), &mut writer).await;
        drop(counted_head);
        if let Ok(Ok(response)) = answered {
            // A send error means that the client disconnected, so it is not reported.
            if send(&mut writer, response, &relayed, stop.clone()).await.is_ok() {
                wait_for_end(&mut writer, stop).await;
            }
        }
    });
}

/// Keeps the stream open after the response until its request is complete, for [`REST_TIMEOUT`] or until
/// `stop`.
async fn wait_for_end(writer: &mut StreamWriter, mut stop: watch::Receiver<bool>) {
    tokio::select! {
        biased;
        () = poll_fn(|context| writer.poll_request_end(context)) => {}
        () = sleep(REST_TIMEOUT) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Sends the response at the client's pace, until `stop`.
async fn send(
    writer: &mut StreamWriter,
    response: Response<Body>,
    relayed: &RelayedCall,
    mut stop: watch::Receiver<bool>,
) -> Result<(), StreamEnded> {
    let (mut parts, body) = response.into_parts();
    // Resources of the response, such as admitted memory, held until it was sent.
    let held = std::mem::take(&mut parts.extensions);
    let head = response_block(&Response::from_parts(parts, ()));
    if body.is_end_stream() {
        return writer.send_head(&head, EndOfBody::Stream);
    }
    writer.send_head(&head, EndOfBody::More)?;
    let mut body = pin!(body);
    loop {
        let frame = tokio::select! {
            biased;
            frame = next_frame(writer, body.as_mut(), relayed.account(), held.is_empty()) => frame?,
            _ = stop.wait_for(|stop| *stop) => Some(Err(grpc_errors::stopped())),
        };
        match frame {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    let sending = send_data(writer, data, relayed.account());
                    let stopped = tokio::select! {
                        biased;
                        sent = sending => { sent?; false }
                        _ = stop.wait_for(|stop| *stop) => true,
                    };
                    if stopped {
                        // A status cannot follow an incomplete message. Clients interpret this as
                        // UNAVAILABLE.
                        writer.send_reset(ErrorCode::REFUSED_STREAM);
                        return Ok(());
                    }
                }
                Err(frame) => {
                    let trailers: HeaderMap = frame.into_trailers().unwrap_or_default();
                    return writer.send_trailers(&trailers_block(&trailers));
                }
            },
            Some(Err(status)) => {
                return send_status_after_headers(writer, status);
            }
            None => return writer.send_data(Bytes::new(), EndOfBody::Stream),
        }
    }
}

/// Returns the next part of a response. If `waits`, it is requested only while the connection has capacity.
async fn next_frame(
    writer: &mut StreamWriter,
    mut body: Pin<&mut Body>,
    account: &Account,
    waits: bool,
) -> Result<Option<Result<Frame<Bytes>, Status>>, StreamEnded> {
    loop {
        // Checked on every poll: capacity may have been used up while the stream waited for its next
        // message.
        let next = poll_fn(|context| match waits && account.is_full() {
            true => Poll::Ready(None),
            false => body.as_mut().poll_frame(context).map(Some),
        });
        if let Some(frame) = unless_reset(next, writer).await? {
            return Ok(frame);
        }
        unless_reset(account.room(), writer).await?;
    }
}

/// A request body for the services. The window is returned as the parts are taken.
struct RelayedBody {
    reader: BodyReader,
    /// Accounting, with the user, if authenticated. None for bodies other than gRPC's.
    counted: Option<(Counted, Option<u64>)>,
    stop: watch::Receiver<bool>,
    /// Runs while the body waits for more.
    deadline: Option<Pin<Box<dyn Future<Output = Status> + Send>>>,
}

/// Returns the reason when the rest of a body is no longer waited for. Bodies of users are exempt from the
/// share of their address.
async fn too_late(counted: Option<(Arc<Account>, bool)>, stop: watch::Receiver<bool>) -> Status {
    let stopped = stopped_for_requests(stop);
    let Some((account, is_users)) = counted else {
        stopped.await;
        return grpc_errors::stopped();
    };
    tokio::select! {
        () = account.over_share(), if !is_users => grpc_errors::too_many_request_bytes(),
        () = sleep(BODY_TIMEOUT) => grpc_errors::incomplete_too_long(),
        () = stopped => grpc_errors::stopped(),
    }
}

impl RelayedBody {
    fn new(
        mut reader: BodyReader,
        counted: Option<(Counted, Option<u64>)>,
        stop: watch::Receiver<bool>,
    ) -> RelayedBody {
        reader.discard_when_dropped();
        RelayedBody { reader, counted, stop, deadline: None }
    }

    /// Counts a part of the body, or rejects it.
    fn count(&mut self, bytes: usize) -> Result<(), Status> {
        self.counted.as_mut().map_or(Ok(()), |(counted, user)| counted.add(bytes, *user))
    }

    /// Pending, or an error once the body has taken too long.
    fn wait<T>(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, BoxError>>> {
        let RelayedBody { stop, deadline, counted, .. } = self;
        let deadline = deadline.get_or_insert_with(|| {
            let counted = counted.as_ref().map(|(body, user)| (Arc::clone(body.account()), user.is_some()));
            Box::pin(too_late(counted, stop.clone()))
        });
        let status = ready!(deadline.as_mut().poll(context));
        Poll::Ready(Some(Err(status.into())))
    }
}

impl http_body::Body for RelayedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.reader.poll_data(context) {
            Poll::Pending => self.wait(context),
            Poll::Ready(Some(Ok(data))) => {
                self.reader.release(data.len());
                let counted = self.count(data.len());
                Poll::Ready(Some(counted.map(|()| Frame::data(data)).map_err(BoxError::from)))
            }
            Poll::Ready(Some(Err(gone))) => Poll::Ready(Some(Err(gone.into()))),
            Poll::Ready(None) => {
                Poll::Ready(self.reader.take_trailers().map(|trailers| Ok(Frame::trailers(trailers))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.reader.is_end()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
