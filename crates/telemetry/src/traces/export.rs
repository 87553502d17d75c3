//! Export of span batches to the collector.
//!
//! The library cancels an export without a response in time, but not one with a partial response: a
//! collector that sends headers, or messages without end, would block the exporter thread forever.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::runtime::Handle;

/// The default timeout of OTLP clients. Includes connecting.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits each batch to [`EXPORT_TIMEOUT`]. Logs when the collector starts and stops failing.
#[derive(Debug)]
pub struct BoundedExporter<E> {
    inner: E,
    /// Runtime for the timer: the exporter thread does not belong to one.
    runtime: Handle,
    is_failing: AtomicBool,
}

impl<E> BoundedExporter<E> {
    pub fn new(inner: E, runtime: Handle) -> BoundedExporter<E> {
        BoundedExporter { inner, runtime, is_failing: AtomicBool::new(false) }
    }

    fn note(&self, result: &OTelSdkResult) {
        match result {
            Ok(()) if self.is_failing.swap(false, Ordering::Relaxed) => {
                tracing::info!("trace collector is reachable again");
            }
            Err(error) if !self.is_failing.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "trace collector unavailable; pending traces are lost");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

impl<E: SpanExporter> SpanExporter for BoundedExporter<E> {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        let sending = {
            let _inside = self.runtime.enter();
            tokio::time::timeout(EXPORT_TIMEOUT, self.inner.export(batch))
        };
        async move {
            let result = sending.await.unwrap_or(Err(OTelSdkError::Timeout(EXPORT_TIMEOUT)));
            self.note(&result);
            result
        }
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exports every other batch successfully.
    #[derive(Debug, Default)]
    struct Hesitant(AtomicBool);

    impl SpanExporter for Hesitant {
        async fn export(&self, _batch: Vec<SpanData>) -> OTelSdkResult {
            if self.0.fetch_not(Ordering::Relaxed) { Ok(()) } else { std::future::pending().await }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_whose_answer_never_ends_is_given_up() {
        let exporter = BoundedExporter::new(Hesitant::default(), Handle::current());
        let began = tokio::time::Instant::now();
        let given_up = exporter.export(Vec::new()).await;
        assert!(matches!(given_up, Err(OTelSdkError::Timeout(EXPORT_TIMEOUT))), "{given_up:?}");
        assert!(began.elapsed() >= EXPORT_TIMEOUT && exporter.is_failing.load(Ordering::Relaxed));
        exporter.export(Vec::new()).await.unwrap();
        assert!(!exporter.is_failing.load(Ordering::Relaxed));
    }
}
