//! Handshake configuration from a port's files: rustls configurations and certificate checks.

mod contents; // the files
mod self_signed; // certificates of --auto-tls

mod checks; // names, addresses, revocation
mod loaded; // rustls's configurations
mod lookups; // addresses of the names

mod live; // the latest configuration

pub(super) use checks::common_name;
pub(super) use live::{Live, Reload};
pub(super) use loaded::PortKind;
pub(super) use lookups::Lookups;
pub(super) use self_signed::with_self_signed;

pub use contents::TlsError;

#[cfg(test)]
mod tests; // decisions of etcd
