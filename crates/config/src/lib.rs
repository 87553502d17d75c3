//! The configuration of one member: flags and environment variables, made whole and checked.

pub mod url; // addresses as flags give them

mod audit; // the audit log
pub mod auth; // passwords and tokens
mod corruption; // when hashes are compared
pub mod flags; // the command line
mod log; // where log lines go
mod retention; // what automatic compaction keeps
pub mod tls; // certificates and versions
mod traces; // what is traced, and where it goes

mod discovery; // who is asked for the members of a new cluster

pub mod settings; // what one member runs with

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
