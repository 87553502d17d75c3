//! Flags of OpenTelemetry traces.

use clap::ArgAction::Set;
use clap::Args;

use crate::flags::values::{signed, switch};

/// What was said about traces, with the defaults of the rest.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Metrics and traces")]
pub struct TraceFlags {
    /// Send OpenTelemetry traces of gRPC calls to a collector.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub enable_distributed_tracing: bool,
    /// HOST:PORT of the collector, which takes OTLP over gRPC.
    #[arg(long, default_value = "localhost:4317")]
    pub distributed_tracing_address: String,
    /// Name of the service in traces; the same for all members.
    #[arg(long, default_value = "etcd")]
    pub distributed_tracing_service_name: String,
    /// The name of this member in traces, different from the others' [default: none].
    #[arg(long)]
    pub distributed_tracing_instance_id: Option<String>,
    /// Calls in a million that are traced though their clients do not ask for it.
    #[arg(long, default_value = "0", value_parser = signed, allow_hyphen_values = true)]
    pub distributed_tracing_sampling_rate: i64,
}
