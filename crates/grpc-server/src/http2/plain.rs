//! Requests that are not gRPC calls: passed to an HTTP service, in a separate task each.
//!
//! * There are at most as many tasks as the connection has streams: a reset cancels its task. A large head
//!   counts like a body until the request has a response.
//! * The next part of a response is produced when the connection has capacity for it.
//! * A body may be an endless stream: its reader counts and bounds the bytes it holds.
//! * A request with a complete response and an incomplete body has [`REST_TIMEOUT`] to complete the body,
//!   and is reset then. Bytes that arrive in that time are discarded.
//! * When the member stops, a request with a partial response fails immediately, since a response may be
//!   endless. A request without any part of its response may finish.

use std::future::poll_fn;
use std::pin::{Pin, pin};
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

use super::account::{Account, Body as Counted, PlainRequest};
use super::grpc::{send_data, send_status, send_status_after_headers};
use super::long::unless_reset;
use super::shared::{ConnectionShared, stopped_for_requests};
use super::wire::{BodyReader, RequestHead, StreamWriter, response_block, trailers_block};

/// Time for the rest of a request after its response. A reset together with the response makes some clients
/// drop the response: curl 7.88 does in one of seven requests.
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// Any HTTP service, with or without layers.
pub trait HttpService:
    tower::Service<Request<Body>, Response = Response<Body>, Error = std::convert::Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> HttpService for S where
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

/// Serves one request in a separate task, which the client's reset cancels.
pub(super) fn spawn<S: HttpService>(
    service: &S,
    (head, counted_head): (&RequestHead, Option<Box<Counted>>),
    (reader, mut writer): (BodyReader, StreamWriter),
    shared: &ConnectionShared,
) {
    let open = match PlainRequest::new(&shared.account) {
        Ok(open) => open,
        Err(status) => {
            let _client_is_gone = send_status(&mut writer, status);
            return;
        }
    };
    let (service, stop) = (service.clone(), shared.stop.clone());
    let request = head.request(Body::new(PlainBody::new(reader, stop.clone())));
    tokio::spawn(async move {
        // Dropped when the client disconnects.
        let answered = unless_reset(service.oneshot(request), &mut writer).await;
        drop(counted_head);
        if let Ok(Ok(response)) = answered {
            // A send error means that the client disconnected, so it is not reported.
            if send(&mut writer, response, &open, stop.clone()).await.is_ok() {
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
    open: &PlainRequest,
    mut stop: watch::Receiver<bool>,
) -> Result<(), StreamEnded> {
    let (parts, body) = response.into_parts();
    let head = response_block(&Response::from_parts(parts, ()));
    if body.is_end_stream() {
        return writer.send_head(&head, EndOfBody::Stream);
    }
    writer.send_head(&head, EndOfBody::More)?;
    let mut body = pin!(body);
    loop {
        let frame = tokio::select! {
            biased;
            frame = next_frame(writer, body.as_mut(), open.account()) => frame?,
            _ = stop.wait_for(|stop| *stop) => Some(Err(grpc_errors::stopped())),
        };
        match frame {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    let sending = send_data(writer, data, open.account());
                    let stopped = tokio::select! {
                        biased;
                        sent = sending => { sent?; false }
                        _ = stop.wait_for(|stop| *stop) => true,
                    };
                    if stopped {
                        // Clients interpret this as a failure that they may retry.
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

/// Returns the next part of a response. It is requested only while the connection has capacity.
async fn next_frame(
    writer: &mut StreamWriter,
    mut body: Pin<&mut Body>,
    account: &Account,
) -> Result<Option<Result<Frame<Bytes>, Status>>, StreamEnded> {
    loop {
        // Checked on every poll: capacity may have been used up while the response waited for its next
        // part.
        let next = poll_fn(|context| match account.is_full() {
            true => Poll::Ready(None),
            false => body.as_mut().poll_frame(context).map(Some),
        });
        if let Some(frame) = unless_reset(next, writer).await? {
            return Ok(frame);
        }
        unless_reset(account.room(), writer).await?;
    }
}

/// A request body for the service. The window is returned as the parts are taken.
struct PlainBody {
    reader: BodyReader,
    stop: watch::Receiver<bool>,
    /// Completes when a stopping member no longer reads requests. Created when the body is pending.
    stopped: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl PlainBody {
    fn new(mut reader: BodyReader, stop: watch::Receiver<bool>) -> PlainBody {
        reader.discard_when_dropped();
        PlainBody { reader, stop, stopped: None }
    }
}

impl http_body::Body for PlainBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.reader.poll_data(context) {
            Poll::Pending => {
                let PlainBody { stop, stopped, .. } = &mut *self;
                let stopped = stopped.get_or_insert_with(|| Box::pin(stopped_for_requests(stop.clone())));
                ready!(stopped.as_mut().poll(context));
                Poll::Ready(Some(Err(grpc_errors::stopped().into())))
            }
            Poll::Ready(Some(Ok(data))) => {
                self.reader.release(data.len());
                Poll::Ready(Some(Ok(Frame::data(data))))
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
