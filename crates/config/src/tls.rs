//! TLS settings of the client and peer ports: files, allowed certificates, and protocol versions.
//!
//! * A port with `https` URLs has a certificate, or a flag to create one.
//! * Errors carry etcd's texts.
//!
//! Does not read files.

use std::path::PathBuf;

use tokio_rustls::rustls::SupportedCipherSuite;
use tokio_rustls::rustls::crypto::ring::cipher_suite as suite;

use super::flags::TlsFlags;
use super::url::{Scheme, Url, Urls};

/// TLS settings of both ports.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// None if no client URL is `https`.
    pub client: Option<PortTls>,
    /// None if no peer URL is `https` and no peer TLS flag is set.
    pub peer: Option<PortTls>,
    pub self_signed_years: u64,
}

/// TLS of a listener, and of outgoing connections to ports of that kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortTls {
    /// Server certificate.
    pub shown: Option<KeyPair>,
    /// Client certificate of outgoing connections, if different from `shown`.
    pub own: Option<KeyPair>,
    /// True if a self-signed certificate is created because none was given.
    pub is_self_signed: bool,
    /// True if clients must present a certificate.
    pub requires_certificate: bool,
    /// Trusted authorities; None means the system's.
    pub trusted_ca_file: Option<PathBuf>,
    pub crl_file: Option<PathBuf>,
    /// Allowed common names; empty allows any.
    pub allowed_common_names: Vec<String>,
    pub allowed_hostnames: Vec<String>,
    /// True if a certificate must be valid for the remote address.
    pub compares_address: bool,
    pub protocol: TlsProtocol,
}

/// Files of a certificate and its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// TLS versions and cipher suites.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsProtocol {
    pub tls12: bool,
    pub tls13: bool,
    /// TLS 1.2 cipher suites; empty means all.
    pub suites: Vec<SupportedCipherSuite>,
}

impl Default for TlsProtocol {
    fn default() -> TlsProtocol {
        TlsProtocol { tls12: true, tls13: true, suites: Vec::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsSettingsError {
    #[error("TLS key/cert (--cert-file, --key-file) must be provided for client url {0} with HTTPS scheme")]
    ClientUrl(String),
    #[error("client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url")]
    MetricsUrl,
    #[error(
        "cannot listen on TLS for {0}: KeyFile and CertFile are not presented; set --peer-cert-file and \
         --peer-key-file, or write http"
    )]
    PeerUrl(String),
    #[error(
        "KeyFile and CertFile must both be present[key: {key}, cert: {certificate}]: set both flags, or \
         neither"
    )]
    Pair { key: String, certificate: String },
    #[error(
        "ClientKeyFile and ClientCertFile must both be present or both absent: key: {key}, cert: {certificate}]"
    )]
    OwnPair { key: String, certificate: String },
    #[error("unexpected TLS cipher suite {0:?}")]
    CipherSuite(String),
    #[error(
        "kv-server offers none of --cipher-suites={0}: use TLS_ECDHE_* with AES-GCM or ChaCha20-Poly1305"
    )]
    NoCipherSuite(String),
    #[error("unexpected TLS version {0:?} (must be one of: TLS1.2, TLS1.3)")]
    Version(String),
    #[error("min version ({min}) is greater than max version ({max})")]
    VersionOrder { min: String, max: String },
    #[error("cipher suites cannot be configured when only TLS1.3 is enabled")]
    CipherSuitesOfTls13,
    #[error(
        "AllowedCNs and AllowedHostnames are mutually exclusive (cns={names:?}, hostnames={hostnames:?})"
    )]
    AllowedTwice { names: Vec<String>, hostnames: Vec<String> },
    #[error("selfSignedCertValidity is invalid,it should be greater than 0")]
    Validity,
}

/// Listen URLs of a member, by purpose.
#[derive(Clone, Copy, Debug)]
pub struct ListenerKind<'a> {
    pub client: &'a Urls,
    pub client_http: &'a Urls,
    pub metrics: &'a Urls,
    pub peer: &'a Urls,
}

impl<'a> ListenerKind<'a> {
    /// Returns the listeners that use the certificate of the client port.
    fn of_clients(&self) -> impl Iterator<Item = &'a Url> {
        self.client.iter().chain(self.client_http.iter()).chain(self.metrics.iter())
    }
}

impl TlsSettings {
    /// Builds and validates the settings. `dials_https` is true if a peer has an `https` URL.
    pub fn from_flags(
        flags: &TlsFlags,
        listened: ListenerKind<'_>,
        dials_https: bool,
    ) -> Result<TlsSettings, TlsSettingsError> {
        let protocol = protocol(flags)?;
        let client = PortTls { protocol: protocol.clone(), ..client_port(flags) };
        let peer = PortTls { protocol, ..peer_port(flags) };
        let is_client_used = listened.of_clients().any(|url| url.scheme().is_secure());
        let is_peer_used = dials_https || listened.peer.iter().any(|url| url.scheme().is_secure());
        let wants_peer = is_peer_used || peer.shown.is_some() || peer.trusted_ca_file.is_some();
        for (urls, port, given) in [(listened.client, &client, "client"), (listened.peer, &peer, "peer")] {
            warn_of_plain(urls, port, given);
        }
        let years = flags.self_signed_cert_validity;
        let settings = TlsSettings {
            client: if is_client_used { Some(client) } else { None },
            peer: if wants_peer { Some(peer) } else { None },
            self_signed_years: years,
        };
        settings.check(&listened)?;
        Ok(settings)
    }

    fn check(&self, listened: &ListenerKind<'_>) -> Result<(), TlsSettingsError> {
        for port in self.client.iter().chain(&self.peer) {
            if port.is_self_signed && self.self_signed_years == 0 {
                return Err(TlsSettingsError::Validity);
            }
            port.check()?;
        }
        let secure = |urls: &Urls| urls.iter().find(|url| url.scheme().is_secure()).cloned();
        let has_pair = |port: &Option<PortTls>| {
            port.as_ref().is_some_and(|port| port.shown.is_some() || port.is_self_signed)
        };
        let of_clients = secure(listened.client).or_else(|| secure(listened.client_http));
        if let Some(url) = of_clients.filter(|_| !has_pair(&self.client)) {
            return Err(TlsSettingsError::ClientUrl(url.to_string()));
        }
        if secure(listened.metrics).is_some() && !has_pair(&self.client) {
            return Err(TlsSettingsError::MetricsUrl);
        }
        if let Some(url) = secure(listened.peer).filter(|_| !has_pair(&self.peer)) {
            return Err(TlsSettingsError::PeerUrl(url.authority()));
        }
        Ok(())
    }
}

impl PortTls {
    fn check(&self) -> Result<(), TlsSettingsError> {
        let texts = |pair: &KeyPair| (pair.key.display().to_string(), pair.certificate.display().to_string());
        if let Some((key, certificate)) = self.shown.as_ref().filter(|pair| pair.is_half()).map(texts) {
            return Err(TlsSettingsError::Pair { key, certificate });
        }
        if let Some((key, certificate)) = self.own.as_ref().filter(|pair| pair.is_half()).map(texts) {
            return Err(TlsSettingsError::OwnPair { key, certificate });
        }
        if !self.allowed_common_names.is_empty() && !self.allowed_hostnames.is_empty() {
            let (names, hostnames) = (self.allowed_common_names.clone(), self.allowed_hostnames.clone());
            return Err(TlsSettingsError::AllowedTwice { names, hostnames });
        }
        Ok(())
    }
}

impl KeyPair {
    /// Returns None if both file names are empty.
    pub(super) fn from_flags(certificate: &Option<String>, key: &Option<String>) -> Option<KeyPair> {
        let path = |text: &Option<String>| PathBuf::from(text.clone().unwrap_or_default());
        let pair = KeyPair { certificate: path(certificate), key: path(key) };
        let is_empty = pair.certificate.as_os_str().is_empty() && pair.key.as_os_str().is_empty();
        if is_empty { None } else { Some(pair) }
    }

    fn is_half(&self) -> bool {
        self.certificate.as_os_str().is_empty() || self.key.as_os_str().is_empty()
    }
}

fn client_port(flags: &TlsFlags) -> PortTls {
    let shown = KeyPair::from_flags(&flags.cert_file, &flags.key_file);
    let trusted_ca_file = file(&flags.trusted_ca_file);
    PortTls {
        is_self_signed: is_self_signed("client", flags.auto_tls, shown.as_ref()),
        shown,
        own: KeyPair::from_flags(&flags.client_cert_file, &flags.client_key_file),
        requires_certificate: flags.client_cert_auth || trusted_ca_file.is_some(),
        trusted_ca_file,
        crl_file: file(&flags.client_crl_file),
        allowed_common_names: list(&flags.client_cert_allowed_cn),
        allowed_hostnames: list(&flags.client_cert_allowed_hostname),
        compares_address: false,
        protocol: TlsProtocol::default(),
    }
}

fn peer_port(flags: &TlsFlags) -> PortTls {
    let shown = KeyPair::from_flags(&flags.peer_cert_file, &flags.peer_key_file);
    let trusted_ca_file = file(&flags.peer_trusted_ca_file);
    PortTls {
        is_self_signed: is_self_signed("peer", flags.peer_auto_tls, shown.as_ref()),
        shown,
        own: KeyPair::from_flags(&flags.peer_client_cert_file, &flags.peer_client_key_file),
        requires_certificate: flags.peer_client_cert_auth || trusted_ca_file.is_some(),
        trusted_ca_file,
        crl_file: file(&flags.peer_crl_file),
        allowed_common_names: list(&flags.peer_cert_allowed_cn),
        allowed_hostnames: list(&flags.peer_cert_allowed_hostname),
        compares_address: !flags.peer_skip_client_san_verification,
        protocol: TlsProtocol::default(),
    }
}

/// Reports whether to create a certificate. As in etcd, a configured one takes precedence.
fn is_self_signed(port: &str, auto: bool, given: Option<&KeyPair>) -> bool {
    if auto && given.is_some() {
        tracing::warn!(port, "ignoring auto TLS since certs given");
    }
    auto && given.is_none()
}

fn warn_of_plain(urls: &Urls, tls: &PortTls, port: &str) {
    for url in urls.iter().filter(|url| matches!(url.scheme(), Scheme::Http | Scheme::Unix)) {
        if tls.shown.is_some() {
            let url = url.as_str();
            tracing::warn!(
                port,
                url,
                "scheme is HTTP while key and cert files are present; ignoring key and cert files"
            );
        } else if tls.requires_certificate {
            let url = url.as_str();
            tracing::warn!(
                port,
                url,
                "scheme is HTTP while certificates are required; ignoring that for this URL"
            );
        }
    }
}

fn file(text: &Option<String>) -> Option<PathBuf> {
    text.as_ref().filter(|text| !text.is_empty()).map(PathBuf::from)
}

fn list(text: &Option<String>) -> Vec<String> {
    let text = text.as_deref().unwrap_or_default();
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn protocol(flags: &TlsFlags) -> Result<TlsProtocol, TlsSettingsError> {
    let named = |text: &str| match text {
        "" => Ok(None),
        "TLS1.2" => Ok(Some(2)),
        "TLS1.3" => Ok(Some(3)),
        other => Err(TlsSettingsError::Version(other.to_owned())),
    };
    let (min, max) = (named(&flags.tls_min_version)?, named(&flags.tls_max_version)?);
    let (low, high) = (min.unwrap_or(2), max.unwrap_or(3));
    if low > high {
        let text = |minor: i32| format!("TLS1.{minor}");
        return Err(TlsSettingsError::VersionOrder { min: text(low), max: text(high) });
    }
    // As in etcd, an empty name is an invalid suite.
    let names = flags.cipher_suites.iter().flat_map(|names| names.split(','));
    let names: Vec<String> = names.map(|name| name.trim().to_owned()).collect();
    if low == 3 && !names.is_empty() {
        return Err(TlsSettingsError::CipherSuitesOfTls13);
    }
    Ok(TlsProtocol { tls12: low == 2, tls13: high == 3, suites: suites(&names)? })
}

/// Go's TLS 1.2 suites that rustls supports. Go has two names for two of them.
const SUITES: [(&str, SupportedCipherSuite); 8] = [
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Suites that Go supports and rustls does not, because they lack forward secrecy or authenticated
/// encryption. They are skipped with a warning.
const NOT_OFFERED: [&str; 14] = [
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
];
const NOT_OFFERED_SHA256: [&str; 2] =
    ["TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256"];
/// TLS 1.3 suites. As in Go they are not configurable, so naming them has no effect.
const OF_TLS13: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

fn suites(names: &[String]) -> Result<Vec<SupportedCipherSuite>, TlsSettingsError> {
    let mut suites = Vec::new();
    for name in names.iter().map(String::as_str) {
        if let Some((_, suite)) = SUITES.iter().find(|(known, _)| *known == name) {
            if !suites.contains(suite) {
                suites.push(*suite);
            }
        } else if NOT_OFFERED.contains(&name) || NOT_OFFERED_SHA256.contains(&name) {
            tracing::warn!(cipher_suite = name, "kv-server does not offer this cipher suite");
        } else if !OF_TLS13.contains(&name) {
            return Err(TlsSettingsError::CipherSuite(name.to_owned()));
        }
    }
    if suites.is_empty() && names.iter().any(|name| !OF_TLS13.contains(&name.as_str())) {
        return Err(TlsSettingsError::NoCipherSuite(names.join(",")));
    }
    Ok(suites)
}
