//! Bodies that pass every frame on and let an observer see it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

/// What happens to a body as its frames go past.
pub trait FrameObserver: Send + Unpin + 'static {
    fn data(&mut self, data: &Bytes);

    fn trailers(&mut self, _: &HeaderMap) {}

    /// The body ended without trailers, or with an error.
    fn ended(&mut self, _: Option<&Status>) {}
}

pub struct ObservedBody<O> {
    pub body: Body,
    pub observer: O,
}

impl<O: FrameObserver> http_body::Body for ObservedBody<O> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.observer.data(data);
                } else if let Some(trailers) = frame.trailers_ref() {
                    self.observer.trailers(trailers);
                }
            }
            Some(Err(status)) => self.observer.ended(Some(status)),
            None => self.observer.ended(None),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
