//! OpenTelemetry traces of gRPC calls, by etcd's flags.
//!
//! ```text
//!   headers of a call ── traceparent, or chance ──▶ CallSpan ──▶ bounded queue ──▶ own thread ── OTLP ──▶ collector
//!                                                      └── a span for each stage that is timed
//! ```
//!
//! * A call is traced if its client's `traceparent` is sampled. Without one, a configured share of the
//!   calls is traced.
//! * A span has names, times and the status of the call. It has no key, value or user, since third parties
//!   may operate the collector.
//! * At most 2048 spans are queued, and up to 512 of them are sent every 5 s; excess spans are dropped.
//!   Calls never wait for the collector. A batch that is not accepted within 10 s is lost, even if a
//!   response has started.
//! * With tracing disabled, a call costs one branch.
//!
//! The library implements sampling, the queue and the protocol. This module does not interpret stages.

mod export; // export of span batches

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::Method;
use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;
use tonic::Code;

use export::BoundedExporter;

/// The scope of the spans.
const SCOPE: &str = "kv-server";
/// Length of `tracestate` that the standard requires to propagate. A longer one is dropped, as its bytes
/// would wait in the queue.
const STATE_BYTES_MAX: usize = 512;
/// Maximum length of a parsed `traceparent`; a regular one has 55 bytes.
const PARENT_BYTES_MAX: usize = 128;
/// Limits the delay of process exit by an unresponsive collector.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Sampling and destination of traces.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSettings {
    /// `HOST:PORT` of a collector for OTLP over gRPC, without TLS as in etcd.
    pub address: String,
    pub service_name: String,
    /// Identifies this member.
    pub instance_id: Option<String>,
    /// Share of the calls to trace although their client did not request it, from 0 to 1.
    pub sampled: f64,
}

#[derive(Debug, thiserror::Error)]
#[error("--distributed-tracing-address={address}")]
pub struct TraceError {
    address: String,
    source: ExporterBuildError,
}

/// Starts spans; by default for no call. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Exporting>>);

#[derive(Debug)]
struct Exporting {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// Calls may be sampled even if their client did not request it.
    by_chance: bool,
}

impl Traces {
    /// Starts exporting to the collector of `settings`. Must be called inside the runtime for the
    /// connection. An unreachable collector is no error: it may start later.
    pub fn start(settings: &TraceSettings) -> Result<Traces, TraceError> {
        let exporter =
            SpanExporter::builder().with_tonic().with_endpoint(format!("http://{}", settings.address));
        let exporter =
            exporter.build().map_err(|source| TraceError { address: settings.address.clone(), source })?;
        let exporter = BoundedExporter::new(exporter, Handle::current());
        let mut resource = Resource::builder_empty().with_service_name(settings.service_name.clone());
        if let Some(id) = &settings.instance_id {
            resource = resource.with_attribute(KeyValue::new("service.instance.id", id.clone()));
        }
        let by_chance = settings.sampled > 0.0;
        let unasked =
            if by_chance { Sampler::TraceIdRatioBased(settings.sampled) } else { Sampler::AlwaysOff };
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .with_sampler(Sampler::ParentBased(Box::new(unasked)))
            .build();
        let tracer = provider.tracer(SCOPE);
        Ok(Traces(Some(Arc::new(Exporting { provider, tracer, by_chance }))))
    }

    /// Returns the span of a call with these headers, if it is traced.
    pub fn begin(&self, method: Method, headers: &HeaderMap) -> Option<Arc<CallSpan>> {
        let exporting = self.0.as_ref()?;
        let parent =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &TraceHeaders(headers));
        let is_sampled = {
            let span = parent.span();
            let parent = span.span_context();
            if parent.is_valid() { parent.is_sampled() } else { exporting.by_chance }
        };
        if !is_sampled {
            return None;
        }
        let name = &method.path()[1..];
        let attributes = [KeyValue::new("rpc.method", name), KeyValue::new("rpc.system.name", "grpc")];
        let span =
            exporting.tracer.span_builder(name).with_kind(SpanKind::Server).with_attributes(attributes);
        let span = exporting.tracer.build_with_context(span, &parent);
        let context = Context::new().with_span(span);
        let is_recording = context.span().is_recording();
        is_recording.then(|| Arc::new(CallSpan { tracer: exporting.tracer.clone(), context }))
    }

    /// Flushes the queue and stops exporting. Takes at most 2 s. Must not be called on a runtime thread.
    pub fn close(&self) {
        let Some(exporting) = &self.0 else { return };
        if let Err(error) = exporting.provider.shutdown_with_timeout(CLOSE_TIMEOUT) {
            tracing::warn!(%error, "last traces were not sent");
        }
    }
}

/// The call's header fields that carry trace context.
struct TraceHeaders<'h>(&'h HeaderMap);

impl Extractor for TraceHeaders<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let value = self.0.get(name)?;
        let bytes_max = if name == "tracestate" { STATE_BYTES_MAX } else { PARENT_BYTES_MAX };
        if value.len() <= bytes_max { value.to_str().ok() } else { None }
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

/// Span of a call. Completed on drop at the latest.
#[derive(Debug)]
pub struct CallSpan {
    tracer: SdkTracer,
    context: Context,
}

impl CallSpan {
    /// Records a stage that completed just now and lasted `took`.
    pub fn stage(&self, name: &'static str, took: Duration) {
        let began = SystemTime::now().checked_sub(took).unwrap_or(SystemTime::UNIX_EPOCH);
        let stage = self.tracer.span_builder(name).with_start_time(began);
        drop(self.tracer.build_with_context(stage, &self.context));
    }

    /// Completes the span with the status of the call.
    pub fn end(&self, code: Code) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("rpc.response.status_code", canonical(code)));
        if is_the_servers(code) {
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

/// Reports whether a code is a server error, by OpenTelemetry's rules for spans of servers.
fn is_the_servers(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// Returns the name of a code in gRPC's protocol, such as `NOT_FOUND`.
fn canonical(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_are_too_long_are_not_looked_at() {
        let parent = "00-11111111111111111111111111111111-2222222222222222-01";
        let of = |parent: &str, state: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", parent.parse().unwrap());
            headers.insert("tracestate", state.parse().unwrap());
            let context = TraceContextPropagator::new().extract(&TraceHeaders(&headers));
            let span = context.span();
            let span = span.span_context();
            (span.is_valid(), span.trace_state().header())
        };
        assert_eq!(of(parent, "a=b"), (true, "a=b".to_owned()));
        assert_eq!(of(parent, &format!("a={}", "b".repeat(STATE_BYTES_MAX))), (true, String::new()));
        // A later version may have more fields.
        let later = parent.replace("00-", "01-");
        assert!(of(&format!("{later}-{}", "-".repeat(10)), "").0);
        assert!(!of(&format!("{later}-{}", "-".repeat(64 * 1024)), "").0);
        for odd in ["", "-", "00", "00-", "ff-1-1-01", "00-\u{7f}", &"0".repeat(55)] {
            assert!(odd.parse::<http::HeaderValue>().is_err() || !of(odd, "").0, "{odd:?}");
        }
    }
}
