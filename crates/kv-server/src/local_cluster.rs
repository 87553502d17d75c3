//! `--local-cluster N`: the same command in N terminals forms a cluster on this machine.
//!
//! ```text
//!   slot  clients  peers   directory
//!   m1     2379     2380   local-cluster-N.kv-server/m1
//!   m2    22379    22380   local-cluster-N.kv-server/m2
//!   m3    32379    32380   …
//! ```
//!
//! A process takes the first slot with an unlocked directory, so that a killed member resumes its identity
//! when the command is repeated.

use std::path::{Path, PathBuf};

use config::Flags;
use config::Urls;
use config::{Settings, SettingsError};
use data_dir::{Directory, DirectoryError};

/// Client ports of the slots, continuing the series in etcd's examples. Each peer port is the next number.
const PORTS: [u16; 5] = [2379, 22379, 32379, 42379, 52379];

#[derive(Debug, thiserror::Error)]
pub enum LocalClusterError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("all {members} members of the local cluster in {} are running", parent.display())]
    Full { members: usize, parent: PathBuf },
}

/// Takes a slot. Returns its member's settings and its locked directory.
pub fn take_slot(flags: &Flags, members: u64) -> Result<(Settings, Directory), LocalClusterError> {
    let members = check(flags, members)?;
    let default = || format!("local-cluster-{members}.kv-server");
    let parent = PathBuf::from(flags.data_dir.clone().unwrap_or_else(default));
    for slot in 0..members {
        let settings = Settings::from_flags(&slot_flags(flags, &parent, slot, members))?;
        match Directory::open(&settings.data_dir, None) {
            Ok(directory) => return Ok((settings, directory)),
            Err(DirectoryError::Locked(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(LocalClusterError::Full { members, parent })
}

fn check(flags: &Flags, members: u64) -> Result<usize, SettingsError> {
    let chosen = [
        "name",
        "wal-dir",
        "listen-client-urls",
        "advertise-client-urls",
        "listen-peer-urls",
        "initial-advertise-peer-urls",
        "initial-cluster",
        "initial-cluster-state",
    ];
    if let Some(name) = chosen.iter().find(|name| flags.is_given(name)) {
        return Err(SettingsError::LocalCluster(name));
    }
    match members {
        1 => Ok(1),
        3 => Ok(3),
        5 => Ok(5),
        other => Err(SettingsError::LocalClusterSize(other)),
    }
}

fn name(slot: usize) -> String {
    format!("m{}", slot + 1)
}

fn urls(port: u16) -> Urls {
    Urls::parse(&format!("http://127.0.0.1:{port}")).expect("an address and a port are a URL")
}

/// Returns the flags of this slot, in the form in which a user would pass them.
fn slot_flags(flags: &Flags, parent: &Path, slot: usize, members: usize) -> Flags {
    let (client, peer) = (urls(PORTS[slot]), urls(PORTS[slot] + 1));
    let cluster: Vec<String> = PORTS[..members]
        .iter()
        .enumerate()
        .map(|(slot, port)| format!("{}=http://127.0.0.1:{}", name(slot), port + 1))
        .collect();
    Flags {
        name: name(slot),
        data_dir: Some(parent.join(name(slot)).to_string_lossy().into_owned()),
        listen_client_urls: client.clone(),
        advertise_client_urls: client,
        listen_peer_urls: peer.clone(),
        initial_advertise_peer_urls: peer,
        initial_cluster: Some(cluster.join(",")),
        given: vec!["name".to_owned()],
        ..flags.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::flags::{ParsedFlags, parse};

    fn take(line: &str, members: u64) -> Result<(Settings, Directory), LocalClusterError> {
        match parse(line.split_whitespace().map(Into::into), []) {
            Ok(ParsedFlags::Flags(flags, _)) => take_slot(&flags, members),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn each_process_takes_the_first_free_slot() {
        let dir = tempfile::tempdir().unwrap();
        let line = format!("--data-dir {}", dir.path().display());
        let (m1, held1) = take(&line, 3).unwrap();
        let (m2, _held2) = take(&line, 3).unwrap();
        let (m3, _held3) = take(&line, 3).unwrap();
        let ports: Vec<String> =
            [&m1, &m2, &m3].iter().map(|member| member.listen_client_urls.to_string()).collect();
        assert_eq!(ports, ["http://127.0.0.1:2379", "http://127.0.0.1:22379", "http://127.0.0.1:32379"]);
        assert_eq!(
            m2.initial.cluster,
            "m1=http://127.0.0.1:2380,m2=http://127.0.0.1:22380,m3=http://127.0.0.1:32380"
        );
        assert!(matches!(take(&line, 3), Err(LocalClusterError::Full { members: 3, .. })));
        drop(held1);
        assert_eq!(take(&line, 3).unwrap().0.name, "m1");
    }

    #[test]
    fn it_chooses_names_urls_and_sizes_itself() {
        let cases = [
            ("--name x", 3, "--local-cluster chooses names, URLs and directories: omit --name"),
            ("", 2, "--local-cluster must be 1, 3 or 5, not 2"),
        ];
        for (line, members, wanted) in cases {
            assert_eq!(take(line, members).expect_err(line).to_string(), wanted);
        }
    }
}
