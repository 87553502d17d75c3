//! The configuration of one member: flags and environment variables, made whole and checked.

pub(crate) mod url; // addresses as flags give them

mod audit; // the audit log
pub(crate) mod auth; // passwords and tokens
mod corruption; // when hashes are compared
pub(crate) mod flags; // the command line
mod log; // where log lines go
mod retention; // what automatic compaction keeps
pub(crate) mod tls; // certificates and versions
mod traces; // what is traced, and where it goes

mod discovery; // who is asked for the members of a new cluster

pub(crate) mod settings; // what one member runs with

pub(crate) use audit::{AuditLevel, AuditSettings, AuditTarget};
pub(crate) use auth::{AuthSettings, JwtOptions, TokenKind};
pub(crate) use corruption::CorruptionChecks;
pub(crate) use discovery::{Discovery, DiscoveryCluster, DiscoverySrv};
pub(crate) use flags::{ClusterState, FeatureGate, Flags, read_file, shown};
pub(crate) use log::log_settings;
pub(crate) use retention::Retention;
pub(crate) use settings::{MemberLimits, Reconfiguration, Settings, SettingsError};
pub(crate) use tls::{KeyPair, PortTls};
pub(crate) use url::{Scheme, Url, UrlError, Urls};
