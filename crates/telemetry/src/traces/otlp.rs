//! Messages to OTLP's trace service: the fields in use, with the numbers of
//! `opentelemetry/proto/trace/v1/trace.proto`. A test of the server decodes them with OpenTelemetry's types.

pub const PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

pub const KIND_INTERNAL: i32 = 1;
pub const KIND_SERVER: i32 = 2;
pub const STATUS_ERROR: i32 = 2;
/// Flags of a sampled span with a parent in this process or without one.
pub const FLAGS_LOCAL_PARENT: u32 = 0x101;
/// Flags of a sampled span with a parent in the client.
pub const FLAGS_REMOTE_PARENT: u32 = 0x301;

#[derive(Clone, PartialEq, prost::Message)]
pub struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// The response, which is not evaluated.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExportResponse {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Scope {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    pub flags: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Status {
    #[prost(int32, tag = "3")]
    pub code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<Text>,
}

/// OTLP's `AnyValue`, of which this server sends strings only.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Text {
    #[prost(string, optional, tag = "1")]
    pub text: Option<String>,
}

impl KeyValue {
    pub fn new(key: &str, text: &str) -> KeyValue {
        KeyValue { key: key.to_owned(), value: Some(Text { text: Some(text.to_owned()) }) }
    }
}
