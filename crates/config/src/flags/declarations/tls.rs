//! TLS flags of the client and peer ports.

use clap::ArgAction::Set;
use clap::Args;

use crate::flags::values::{switch, unsigned};

/// What was said about TLS, with the defaults of the rest.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsFlags {
    /// File of the certificate that clients are shown.
    #[arg(long)]
    pub cert_file: Option<String>,
    /// File of its private key.
    #[arg(long)]
    pub key_file: Option<String>,
    /// File of the certificate with which this member would call a client port; checked only.
    #[arg(long)]
    pub client_cert_file: Option<String>,
    /// File of its private key.
    #[arg(long)]
    pub client_key_file: Option<String>,
    /// Clients must show a certificate of a trusted authority.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub client_cert_auth: bool,
    /// File of revoked client certificates.
    #[arg(long)]
    pub client_crl_file: Option<String>,
    /// Common names, one of which a client certificate must have.
    #[arg(long)]
    pub client_cert_allowed_cn: Option<String>,
    /// Host names, one of which a client certificate must be valid for.
    #[arg(long)]
    pub client_cert_allowed_hostname: Option<String>,
    /// File of the authorities that client certificates lead to; requires client certificates.
    #[arg(long)]
    pub trusted_ca_file: Option<String>,
    /// Show clients a self-made certificate.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub auto_tls: bool,
    /// File of the certificate that other members are shown.
    #[arg(long)]
    pub peer_cert_file: Option<String>,
    /// File of its private key.
    #[arg(long)]
    pub peer_key_file: Option<String>,
    /// File of the certificate to call other members with, if not the one above.
    #[arg(long)]
    pub peer_client_cert_file: Option<String>,
    /// File of its private key.
    #[arg(long)]
    pub peer_client_key_file: Option<String>,
    /// Other members must show a certificate of a trusted authority.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub peer_client_cert_auth: bool,
    /// File of the authorities that certificates of members lead to; requires certificates.
    #[arg(long)]
    pub peer_trusted_ca_file: Option<String>,
    /// Common names, one of which a calling member's certificate must have.
    #[arg(long)]
    pub peer_cert_allowed_cn: Option<String>,
    /// Host names, one of which a calling member's certificate must be valid for.
    #[arg(long)]
    pub peer_cert_allowed_hostname: Option<String>,
    /// File of revoked certificates of members.
    #[arg(long)]
    pub peer_crl_file: Option<String>,
    /// Show other members a self-made certificate; they are not authenticated.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub peer_auto_tls: bool,
    /// Do not compare the names in a calling member's certificate with its address.
    #[arg(long, value_parser = switch, default_value = "false", action = Set)]
    pub peer_skip_client_san_verification: bool,
    /// Years for which self-made certificates are valid.
    #[arg(long, default_value = "1", value_parser = unsigned)]
    pub self_signed_cert_validity: u64,
    /// Cipher suites of TLS 1.2, by Go's names [default: all that are safe].
    #[arg(long)]
    pub cipher_suites: Option<String>,
    /// TLS1.2 or TLS1.3.
    #[arg(long, default_value = "TLS1.2")]
    pub tls_min_version: String,
    /// TLS1.2 or TLS1.3.
    #[arg(long, default_value = "TLS1.3")]
    pub tls_max_version: String,
}
