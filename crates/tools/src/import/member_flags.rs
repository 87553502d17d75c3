//! Flags of a new data directory: which member of which cluster it belongs to.

use std::ffi::OsString;

use clap::Args;

use config::flags::{self, FlagError, ParsedFlags};
use config::{Settings, SettingsError};

/// A member that does not exist yet.
#[derive(Clone, Debug, Args)]
pub struct MemberFlags {
    /// Directory to make.
    #[arg(long)]
    pub data_dir: String,
    /// Directory of the log, if it shall not lie in the data directory.
    #[arg(long)]
    pub wal_dir: Option<String>,
    /// Name of the member.
    #[arg(long, default_value = "default")]
    pub name: String,
    /// All members of the new cluster, as NAME=URL,... [default: this member alone].
    #[arg(long)]
    pub initial_cluster: Option<String>,
    /// Mixed into the ids of the new cluster.
    #[arg(long, default_value = "etcd-cluster")]
    pub initial_cluster_token: String,
    /// Where other members dial this one.
    #[arg(long, default_value = "http://localhost:2380")]
    pub initial_advertise_peer_urls: String,
}

/// Why they describe no member.
#[derive(Debug, thiserror::Error)]
pub enum MemberFlagsError {
    #[error(transparent)]
    Flags(#[from] FlagError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

impl MemberFlags {
    /// The settings of the member's first start, as far as they decide its identity.
    pub fn settings(&self) -> Result<Settings, MemberFlagsError> {
        let mut given = vec![
            format!("--name={}", self.name),
            format!("--data-dir={}", self.data_dir),
            format!("--initial-cluster-token={}", self.initial_cluster_token),
            format!("--initial-advertise-peer-urls={}", self.initial_advertise_peer_urls),
        ];
        given.extend(self.wal_dir.iter().map(|dir| format!("--wal-dir={dir}")));
        given.extend(self.initial_cluster.iter().map(|cluster| format!("--initial-cluster={cluster}")));
        // The environment is that of the server, and not meant for this command.
        match flags::parse(given.into_iter().map(OsString::from), std::iter::empty())? {
            ParsedFlags::Flags(flags, _notices) => Ok(Settings::from_flags(&flags)?),
            ParsedFlags::Help { .. } => unreachable!("no flag asks for help"),
        }
    }
}
