//! A hot call among the open ones of its connection.
//!
//! A call that waits ends when its client resets it. It could leave its waker with its stream, which costs a
//! lock and an entry each time the call waits. So the waker stays here, and the connection wakes all of its
//! calls when a stream was reset, which is rare. Each then asks about its own stream.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

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

/// Has all calls polled again.
pub(super) fn wake_all<F>(calls: &mut FuturesUnordered<OpenCall<F>>) {
    Pin::new(calls).iter_pin_mut().for_each(OpenCall::wake);
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
