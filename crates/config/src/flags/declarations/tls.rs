//! TLS flags of the client and peer ports.

use clap::ArgAction::Set;
use clap::Args;

use crate::flags::values::{switch, unsigned};

/// TLS flags.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsFlags {
    /// Server certificate file of the client port.
    #[arg(long)]
    pub cert_file: Option<String>,
    /// Private key file of --cert-file.
    #[arg(long)]
    pub key_file: Option<String>,
    /// Client certificate file for requests to a client port; validated only.
    #[arg(long)]
    pub client_cert_file: Option<String>,
    /// Private key file of --client-cert-file.
    #[arg(long)]
    pub client_key_file: Option<String>,
    /// Require client certificates signed by a trusted CA.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub client_cert_auth: bool,
    /// Revocation list (CRL) of client certificates.
    #[arg(long)]
    pub client_crl_file: Option<String>,
    /// Allowed common names of client certificates.
    #[arg(long)]
    pub client_cert_allowed_cn: Option<String>,
    /// Allowed host names of client certificates.
    #[arg(long)]
    pub client_cert_allowed_hostname: Option<String>,
    /// CA bundle used to verify client certificates; requires client certificates.
    #[arg(long)]
    pub trusted_ca_file: Option<String>,
    /// Serve a self-signed certificate to clients.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub auto_tls: bool,
    /// Server certificate file of the peer port.
    #[arg(long)]
    pub peer_cert_file: Option<String>,
    /// Private key file of --peer-cert-file.
    #[arg(long)]
    pub peer_key_file: Option<String>,
    /// Client certificate file for requests to peers [default: --peer-cert-file].
    #[arg(long)]
    pub peer_client_cert_file: Option<String>,
    /// Private key file of --peer-client-cert-file.
    #[arg(long)]
    pub peer_client_key_file: Option<String>,
    /// Require peer certificates signed by a trusted CA.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub peer_client_cert_auth: bool,
    /// CA bundle used to verify peer certificates; requires peer certificates.
    #[arg(long)]
    pub peer_trusted_ca_file: Option<String>,
    /// Allowed common names of peer certificates.
    #[arg(long)]
    pub peer_cert_allowed_cn: Option<String>,
    /// Allowed host names of peer certificates.
    #[arg(long)]
    pub peer_cert_allowed_hostname: Option<String>,
    /// Revocation list (CRL) of peer certificates.
    #[arg(long)]
    pub peer_crl_file: Option<String>,
    /// Serve a self-signed certificate to peers, without authenticating them.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub peer_auto_tls: bool,
    /// Skip checking the SANs of peer client certificates against their addresses.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub peer_skip_client_san_verification: bool,
    /// Validity of self-signed certificates in years.
    #[arg(long, default_value = "1", value_parser = unsigned)]
    pub self_signed_cert_validity: u64,
    /// TLS 1.2 cipher suites, by Go's names [default: all secure suites].
    #[arg(long)]
    pub cipher_suites: Option<String>,
    /// Minimum TLS version: TLS1.2 or TLS1.3.
    #[arg(long, default_value = "TLS1.2")]
    pub tls_min_version: String,
    /// Maximum TLS version: TLS1.2 or TLS1.3.
    #[arg(long, default_value = "TLS1.3")]
    pub tls_max_version: String,
}
