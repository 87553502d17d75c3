//! OpenTelemetry traces of gRPC calls, by etcd's flags.
//!
//! ```text
//!   headers of a call ── traceparent, or chance ──▶ CallSpan ──▶ bounded queue ──▶ task ── OTLP ──▶ collector
//!                                                      └── a span for each stage that is timed
//! ```
//!
//! * A call is traced if its client's `traceparent` is sampled. Without one, a configured share of the
//!   calls is traced.
//! * A span has names, times and the status of the call. It has no key, value or user, since third parties
//!   may operate the collector.
//! * At most 2048 spans are queued; excess spans are dropped. Calls never wait for the
//!   collector. A batch that is not accepted in time is lost.
//! * With tracing disabled, a call costs one branch.

mod otlp; // messages of the protocol

mod export; // batches of spans to the collector
mod parent; // the trace of the client

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::Method;
use http::HeaderMap;
use parking_lot::Mutex;
use tonic::Code;

use export::Exporter;
use otlp::{KeyValue, Span, Status};
use parent::Parent;

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
    source: tonic::transport::Error,
}

/// Starts spans; by default for no call. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Exporting>>);

#[derive(Debug)]
struct Exporting {
    exporter: Exporter,
    /// Share of the calls to trace although their client did not request it.
    sampled: f64,
}

impl Traces {
    /// Starts exporting to the collector of `settings`. Must be called inside the runtime for the
    /// connection. An unreachable collector is no error: it may start later.
    pub fn start(settings: &TraceSettings) -> Result<Traces, TraceError> {
        let mut attributes = vec![KeyValue::new("service.name", &settings.service_name)];
        attributes.extend(settings.instance_id.iter().map(|id| KeyValue::new("service.instance.id", id)));
        let exporter = Exporter::start(&settings.address, attributes)
            .map_err(|source| TraceError { address: settings.address.clone(), source })?;
        Ok(Traces(Some(Arc::new(Exporting { exporter, sampled: settings.sampled }))))
    }

    /// Returns the span of a call with these headers, if it is traced.
    pub fn begin(&self, method: Method, headers: &HeaderMap) -> Option<Arc<CallSpan>> {
        let exporting = self.0.as_ref()?;
        let parent = Parent::of(headers);
        let is_sampled = match &parent {
            Some(parent) => parent.is_sampled,
            None => exporting.sampled > 0.0 && rand::random::<f64>() < exporting.sampled,
        };
        if !is_sampled {
            return None;
        }
        let name = &method.path()[1..];
        let span = Span {
            trace_id: match &parent {
                Some(parent) => parent.trace_id.to_vec(),
                None => rand::random::<[u8; 16]>().to_vec(),
            },
            span_id: rand::random::<[u8; 8]>().to_vec(),
            parent_span_id: parent.as_ref().map_or(Vec::new(), |parent| parent.span_id.to_vec()),
            flags: if parent.is_some() { otlp::FLAGS_REMOTE_PARENT } else { otlp::FLAGS_LOCAL_PARENT },
            trace_state: parent.map_or(String::new(), |parent| parent.state),
            name: name.to_owned(),
            kind: otlp::KIND_SERVER,
            start_time_unix_nano: nanoseconds(SystemTime::now()),
            attributes: vec![KeyValue::new("rpc.method", name), KeyValue::new("rpc.system.name", "grpc")],
            ..Span::default()
        };
        Some(Arc::new(CallSpan { exporting: exporting.clone(), span: Mutex::new(Some(span)) }))
    }

    /// Flushes the queue and stops exporting. Takes at most 2 s. Must not be called on a runtime thread.
    pub fn close(&self) {
        let Some(exporting) = &self.0 else { return };
        if !exporting.exporter.close(CLOSE_TIMEOUT) {
            tracing::warn!("the last traces were not sent");
        }
    }
}

/// Span of a call. Completed on drop at the latest.
#[derive(Debug)]
pub struct CallSpan {
    exporting: Arc<Exporting>,
    /// None once the span is completed.
    span: Mutex<Option<Span>>,
}

impl CallSpan {
    /// Records a stage that completed just now and lasted `took`.
    pub fn stage(&self, name: &'static str, took: Duration) {
        let end = SystemTime::now();
        let stage = match &*self.span.lock() {
            Some(call) => Span {
                trace_id: call.trace_id.clone(),
                span_id: rand::random::<[u8; 8]>().to_vec(),
                parent_span_id: call.span_id.clone(),
                trace_state: call.trace_state.clone(),
                flags: otlp::FLAGS_LOCAL_PARENT,
                name: name.to_owned(),
                kind: otlp::KIND_INTERNAL,
                start_time_unix_nano: nanoseconds(end.checked_sub(took).unwrap_or(SystemTime::UNIX_EPOCH)),
                end_time_unix_nano: nanoseconds(end),
                ..Span::default()
            },
            None => return,
        };
        self.exporting.exporter.send(stage);
    }

    /// Completes the span with the status of the call.
    pub fn end(&self, code: Code) {
        self.complete(Some(code));
    }

    fn complete(&self, code: Option<Code>) {
        let Some(mut span) = self.span.lock().take() else { return };
        if let Some(code) = code {
            span.attributes.push(KeyValue::new("rpc.response.status_code", canonical(code)));
            if is_the_servers(code) {
                span.status = Some(Status { code: otlp::STATUS_ERROR });
            }
        }
        span.end_time_unix_nano = nanoseconds(SystemTime::now());
        self.exporting.exporter.send(span);
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        self.complete(None);
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
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
