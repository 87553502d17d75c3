//! A call in progress. It counts as `Canceled` if its client disconnects before its status.

use std::sync::Arc;
use std::time::Instant;

use api::Method;
use tonic::Code;

use super::counters::Metrics;
use crate::traces::CallSpan;

/// A started call; its completion is counted once, on drop at the latest.
pub struct CallInProgress {
    metrics: Arc<Metrics>,
    method: Method,
    began: Instant,
    /// Set if the call is traced.
    span: Option<Arc<CallSpan>>,
    ended: bool,
}

impl CallInProgress {
    /// Starts counting a call. `span` is set if the call is traced.
    pub fn begin(metrics: &Arc<Metrics>, method: Method, span: Option<Arc<CallSpan>>) -> CallInProgress {
        metrics.calls.started(method);
        CallInProgress { metrics: Arc::clone(metrics), method, began: Instant::now(), span, ended: false }
    }

    /// Counts a sent message of `bytes`.
    pub fn sent(&self, bytes: usize) {
        self.metrics.calls.sent(self.method, bytes);
    }

    pub fn end(&mut self, code: Code) {
        if !std::mem::replace(&mut self.ended, true) {
            self.metrics.calls.handled(self.method, code);
            self.metrics.calls.handled_within(self.method, self.began.elapsed(), code == Code::Ok);
            if let Some(span) = &self.span {
                span.end(code);
            }
        }
    }
}

impl Drop for CallInProgress {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

/// Counts the messages of a stream.
#[derive(Clone)]
pub struct MessageCounter {
    metrics: Arc<Metrics>,
    method: Method,
}

impl MessageCounter {
    pub fn new(metrics: &Arc<Metrics>, method: Method) -> MessageCounter {
        MessageCounter { metrics: Arc::clone(metrics), method }
    }

    /// Counts a received message.
    pub fn received(&self, bytes: usize) {
        self.metrics.calls.received(self.method, bytes);
    }

    /// Counts sent bytes, and the messages that started in them.
    pub fn sent(&self, messages: usize, bytes: usize) {
        self.metrics.calls.sent_many(self.method, messages, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_call_ends_once() {
        let metrics = Arc::new(Metrics::default());
        let method = Method::KvPut;
        let mut call = CallInProgress::begin(&metrics, method, None);
        call.end(Code::Ok);
        drop(call);
        drop(CallInProgress::begin(&metrics, method, None));
        let row = &metrics.calls.rows[method.number()];
        let handled = |code: Code| row.handled[code as usize].load(Ordering::Relaxed);
        assert_eq!(
            (row.started.load(Ordering::Relaxed), handled(Code::Ok), handled(Code::Cancelled)),
            (2, 1, 1)
        );
    }
}
