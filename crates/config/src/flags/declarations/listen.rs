//! Flags of listeners, other than the addresses of clients and peers.

use clap::Args;

use crate::flags::values::switch;
use crate::url::Urls;

/// What was said about listeners; `None` where nothing was.
#[derive(Clone, Debug, Default, Args)]
pub struct ListenFlags {
    /// Where to listen for HTTP of clients; --listen-client-urls serves gRPC alone then [default: none].
    #[arg(long, value_parser = Urls::parse_any)]
    pub listen_client_http_urls: Option<Urls>,
    /// Where to listen for /metrics, /health, /livez and /readyz alone [default: none].
    #[arg(long, value_parser = Urls::parse_any)]
    pub listen_metrics_urls: Option<Urls>,
    /// Other processes may listen on the same ports: SO_REUSEPORT [default: false].
    #[arg(long, value_parser = switch, num_args = 0..=1)]
    #[arg(default_missing_value = "true", require_equals = true)]
    pub socket_reuse_port: Option<bool>,
    /// Listen on a port that was in use a moment ago: SO_REUSEADDR, which is always set [default: false].
    #[arg(long, value_parser = switch, num_args = 0..=1)]
    #[arg(default_missing_value = "true", require_equals = true)]
    pub socket_reuse_address: Option<bool>,
}
