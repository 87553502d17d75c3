//! Limit of file descriptors, and its division among files and connections.
//!
//! ```text
//!   limit ──▶ OWN ──▶ files: 2 x 1600, at most half of the rest
//!                ├──▶ peer connections: 256, at most an eighth of the rest
//!                └──▶ client connections: the remainder, at most 32768
//! ```
//!
//! Invariant: connections and files have separate quotas. Connections never use a descriptor that a file may
//! need. Exhaustion therefore makes clients wait, but never fails a checkpoint or the log, which would stop
//! the process.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for other uses. Log, catalog, its sequence number, locks, listeners, epoll, signals and stderr
/// use 20; `--listen-metrics-urls` connections at most 32. A few more are opened temporarily: directories to
/// sync, segments read for a lagging follower, and three connections to each other member.
const OWN: u64 = 96;
/// Descriptors for block files, all of which stay open. A store of 100 GiB has 1600 files of 64 MiB. A store
/// received from the leader is written next to it, with the same number of files.
const FILES: u64 = 2 * (100 << 30) / (64 << 20);
/// Maximum number of client connections. Each may hold a request and its response.
const CLIENTS_MAX: u64 = 32_768;
/// Minimum limit: below it, a quota would be zero.
const LIMIT_MIN: u64 = OWN + 32;

/// Descriptor quotas of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    pub limit: u64,
    /// Open block files.
    pub files: u64,
    /// Incoming peer connections.
    pub peers: u32,
    /// Client connections, including HTTP/1.
    pub clients: u32,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the open file limit (ulimit -n) is {limit}; a member needs at least {LIMIT_MIN}: raise it, or \
     LimitNOFILE of the systemd unit"
)]
pub struct TooFew {
    limit: u64,
}

impl Descriptors {
    /// Raises the soft limit to the hard limit, and divides it into quotas.
    pub fn claim(peers_max: u32) -> Result<Descriptors, TooFew> {
        raise();
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let shares = Descriptors::divide(limit, peers_max)?;
        let Descriptors { files, peers, clients, .. } = shares;
        tracing::debug!(
            limit,
            block_files = files,
            peer_connections = peers,
            client_connections = clients,
            "divided the file descriptors"
        );
        if files < FILES {
            tracing::warn!(
                limit,
                store_gib_max = files / 16,
                "open file limit (ulimit -n) is low; a larger store cannot be opened"
            );
        }
        Ok(shares)
    }

    fn divide(limit: u64, peers_max: u32) -> Result<Descriptors, TooFew> {
        if limit < LIMIT_MIN {
            return Err(TooFew { limit });
        }
        let rest = limit - OWN;
        let files = FILES.min(rest / 2);
        let peers = u64::from(peers_max).min(rest / 8);
        let clients = CLIENTS_MAX.min(rest - files - peers);
        let count = |value: u64| u32::try_from(value).expect("both shares have maxima below 2^32");
        Ok(Descriptors { limit, files, peers: count(peers), clients: count(clients) })
    }
}

/// Returns the hard limit of open files.
pub fn limit_max() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Raises the soft limit of open files to the hard limit. Logs a warning if that fails.
pub fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let raised: Result<(), Errno> = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if let Err(error) = raised {
        tracing::warn!(%error, ?current, ?maximum, "open file limit was not raised");
    }
}

/// Disables core files by setting their soft limit to 0.
///
/// Memory contains values, passwords and tokens of requests. Go programs write no core file by default
/// either. The hard limit is unchanged: `prlimit --core=unlimited --pid PID` enables core files.
pub fn forbid_core_file() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Core);
    if let Err(error) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum }) {
        tracing::warn!(
            %error,
            "core file limit was not lowered; core files would contain passwords and tokens"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_fits_the_limit() {
        for limit in (LIMIT_MIN..2000).chain([20_000, 40_000, 1 << 20, u64::MAX]) {
            let shares = Descriptors::divide(limit, 256).unwrap();
            let connections = u64::from(shares.peers) + u64::from(shares.clients);
            assert!(OWN + shares.files + connections <= limit, "{limit}: {shares:?}");
            assert!(shares.files >= 16 && shares.peers >= 4 && shares.clients >= 12, "{limit}: {shares:?}");
        }
    }

    #[test]
    fn common_limits() {
        let shares = |limit| Descriptors::divide(limit, 256).map(|it| (it.files, it.peers, it.clients)).ok();
        assert_eq!(shares(127), None);
        assert_eq!(shares(200), Some((52, 13, 39)));
        assert_eq!(shares(1024), Some((464, 116, 348)));
        assert_eq!(shares(20_000), Some((3200, 256, 16_448)));
        assert_eq!(shares(1 << 20), Some((3200, 256, 32_768)));
    }
}
