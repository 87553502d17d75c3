//! Configuration of a member: parses and validates flags and environment variables.

pub mod url;

mod audit;
pub mod auth;
mod corruption;
pub mod flags;
mod log;
mod retention; // automatic compaction
pub mod tls;
mod traces;

mod discovery;

pub mod settings;

pub use audit::{AuditLevel, AuditSettings, AuditTarget};
pub use auth::{AuthSettings, JwtOptions, TokenKind};
pub use corruption::CorruptionChecks;
pub use discovery::{Discovery, DiscoveryCluster, DiscoverySrv};
pub use flags::{ClusterState, FeatureGate, Flags, read_file, shown};
pub use log::log_settings;
pub use retention::Retention;
pub use settings::{MemberLimits, Reconfiguration, Settings, SettingsError};
pub use tls::{KeyPair, PortTls};
pub use url::{Scheme, Url, UrlError, Urls};
