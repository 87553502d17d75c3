//! One call under way. A call whose client goes away before its end counts as `Canceled`.

use std::sync::Arc;

use tonic::Code;

use super::calls::MethodId;
use super::counters::Metrics;

/// A call that has begun; its end is counted once, however it ends.
pub struct CallInProgress {
    metrics: Arc<Metrics>,
    id: MethodId,
    ended: bool,
}

impl CallInProgress {
    pub fn begin(metrics: &Arc<Metrics>, id: MethodId) -> CallInProgress {
        metrics.calls.started(id);
        CallInProgress { metrics: Arc::clone(metrics), id, ended: false }
    }

    /// One message of `bytes` went out.
    pub fn sent(&self, bytes: usize) {
        self.metrics.calls.sent(self.id, bytes);
    }

    pub fn end(&mut self, code: Code) {
        if !std::mem::replace(&mut self.ended, true) {
            self.metrics.calls.handled(self.id, code);
        }
    }
}

impl Drop for CallInProgress {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_call_ends_once() {
        let metrics = Arc::new(Metrics::default());
        let id = crate::metrics::CallMetrics::find("/etcdserverpb.KV/Put").unwrap();
        let mut call = CallInProgress::begin(&metrics, id);
        call.end(Code::Ok);
        drop(call);
        drop(CallInProgress::begin(&metrics, id));
        let row = &metrics.calls.rows[id.0];
        let handled = |code: Code| row.handled[code as usize].load(Ordering::Relaxed);
        assert_eq!(
            (row.started.load(Ordering::Relaxed), handled(Code::Ok), handled(Code::Cancelled)),
            (2, 1, 1)
        );
    }
}
