//! A hot call among the open ones of its connection.
//!
//! A call that waits ends when its client resets it. It could leave its waker with its stream, which costs a
//! lock and an entry each time the call waits. So the waker stays here, and the connection wakes all of its
//! calls when a stream was reset, which is rare. Each then asks about its own stream.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pin_project_lite::pin_project;

pin_project! {
    /// See the module's head.
    pub(super) struct OpenCall<F> {
        #[pin]
        work: F,
        // Set while it waits.
        waker: Option<Waker>,
    }
}

impl<F> OpenCall<F> {
    pub(super) fn new(work: F) -> OpenCall<F> {
        OpenCall { work, waker: None }
    }

    fn wake(self: Pin<&mut Self>) {
        if let Some(waker) = self.project().waker {
            waker.wake_by_ref();
        }
    }
}

/// Open calls of one kind. An empty `FuturesUnordered` allocates room for one future, so it is created with
/// the first call and dropped when the connection is idle.
pub(super) struct OpenCalls<F>(Option<FuturesUnordered<F>>);

impl<F: Future> OpenCalls<F> {
    pub(super) fn none() -> OpenCalls<F> {
        OpenCalls(None)
    }

    pub(super) fn push(&mut self, future: F) {
        self.0.get_or_insert_default().push(future);
    }

    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, FuturesUnordered::len)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The output of one of them; None if there are none.
    pub(super) async fn next(&mut self) -> Option<F::Output> {
        self.0.as_mut()?.next().await
    }

    /// Frees the memory of an empty set.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            self.0 = None;
        }
    }
}

impl<F> OpenCalls<OpenCall<F>> {
    /// Has all calls polled again.
    pub(super) fn wake_all(&mut self) {
        if let Some(calls) = &mut self.0 {
            Pin::new(calls).iter_pin_mut().for_each(OpenCall::wake);
        }
    }
}

impl<F: Future> Future for OpenCall<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let polled = this.work.poll(context);
        if polled.is_pending() && !this.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *this.waker = Some(context.waker().clone());
        }
        polled
    }
}
