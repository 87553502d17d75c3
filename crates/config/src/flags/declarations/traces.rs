//! Flags of OpenTelemetry traces.

use clap::Args;

use crate::flags::values::{signed, switch};

/// What was said about traces; `None` where nothing was.
#[derive(Clone, Debug, Default, Args)]
pub struct TraceFlags {
    /// Send OpenTelemetry traces of gRPC calls to a collector [default: false].
    #[arg(long, value_parser = switch, num_args = 0..=1)]
    #[arg(default_missing_value = "true", require_equals = true)]
    pub enable_distributed_tracing: Option<bool>,
    /// HOST:PORT of the collector, which takes OTLP over gRPC [default: localhost:4317].
    #[arg(long)]
    pub distributed_tracing_address: Option<String>,
    /// Name of the service in traces; the same for all members [default: etcd].
    #[arg(long)]
    pub distributed_tracing_service_name: Option<String>,
    /// The name of this member in traces, different from the others' [default: none].
    #[arg(long)]
    pub distributed_tracing_instance_id: Option<String>,
    /// Calls in a million that are traced though their clients do not ask for it [default: 0].
    #[arg(long, value_parser = signed, allow_hyphen_values = true)]
    pub distributed_tracing_sampling_rate: Option<i64>,
}
