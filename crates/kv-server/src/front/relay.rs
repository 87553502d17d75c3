//! Every call that is not hot: handed to the gRPC services as an ordinary HTTP request, one task per call.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use tonic::body::Body;
use tower::ServiceExt;

/// Anything that answers gRPC requests: tonic's routes, with or without layers.
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

/// Answers one call in a task of its own. The client's reset ends the task.
pub(super) fn spawn<S: GrpcService>(
    services: S,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    tokio::spawn(async move {
        let request = request.map(|stream| Body::new(Incoming { stream }));
        let answered = {
            let mut answering = pin!(services.oneshot(request));
            // A call whose client is gone is dropped here, at whatever it was waiting for.
            poll_fn(|context| {
                if respond.poll_reset(context).is_ready() {
                    return Poll::Ready(None);
                }
                answering.as_mut().poll(context).map(Some)
            })
            .await
        };
        if let Some(Ok(response)) = answered {
            // A failure to send means that the client is gone, which nobody has to hear of.
            drop(send(respond, response).await);
        }
    });
}

/// Sends the response as fast as the client takes it.
async fn send(mut respond: SendResponse<Bytes>, response: Response<Body>) -> Result<(), h2::Error> {
    let (parts, body) = response.into_parts();
    if body.is_end_stream() {
        return respond.send_response(Response::from_parts(parts, ()), true).map(drop);
    }
    let mut stream = respond.send_response(Response::from_parts(parts, ()), false)?;
    let mut body = pin!(body);
    loop {
        let frame = poll_fn(|context| {
            if stream.poll_reset(context).is_ready() {
                return Poll::Ready(None);
            }
            body.as_mut().poll_frame(context)
        });
        match frame.await {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => send_data(&mut stream, data).await?,
                Err(frame) => {
                    let trailers: HeaderMap = frame.into_trailers().unwrap_or_default();
                    return stream.send_trailers(trailers);
                }
            },
            Some(Err(status)) => {
                return stream.send_trailers(status.into_http::<()>().into_parts().0.headers);
            }
            None => return stream.send_data(Bytes::new(), true),
        }
    }
}

/// Sends data no faster than the client takes it, so that a slow one costs no more than its window.
pub(super) async fn send_data(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), h2::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let granted = match poll_fn(|context| stream.poll_capacity(context)).await {
            Some(granted) => granted?,
            None => return Err(Reason::CANCEL.into()),
        };
        let part = data.split_to(granted.min(data.len()));
        stream.send_data(part, false)?;
    }
    Ok(())
}

/// A request body as the services expect it. Window is given back as the parts are taken.
struct Incoming {
    stream: RecvStream,
}

impl http_body::Body for Incoming {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match ready!(self.stream.poll_data(context)) {
            Some(Ok(data)) => {
                // Only fails when the stream is closed, which the next read says better.
                drop(self.stream.flow_control().release_capacity(data.len()));
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => {
                Poll::Ready(ready!(self.stream.poll_trailers(context))?.map(|map| Ok(Frame::trailers(map))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
