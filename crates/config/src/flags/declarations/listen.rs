//! Flags of listeners, other than the addresses of clients and peers.

use clap::ArgAction::Set;
use clap::Args;

use crate::flags::values::switch;
use crate::url::Urls;

/// What was said about listeners, with the defaults of the rest.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Clients")]
pub struct ListenFlags {
    /// Where to listen for HTTP of clients; --listen-client-urls serves gRPC alone then [default: none].
    #[arg(long, value_parser = Urls::parse_any)]
    pub listen_client_http_urls: Option<Urls>,
    /// Where to listen for /metrics, /health, /livez and /readyz alone [default: none].
    #[arg(long, help_heading = "Metrics and traces", value_parser = Urls::parse_any)]
    pub listen_metrics_urls: Option<Urls>,
    /// Other processes may listen on the same ports: SO_REUSEPORT.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub socket_reuse_port: bool,
    /// Listen on a port that was in use a moment ago: SO_REUSEADDR, which is always set.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub socket_reuse_address: bool,
}
