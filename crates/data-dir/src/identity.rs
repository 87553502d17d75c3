//! Identity of the member, written once on the first start.
//!
//! * The file is written atomically. It changes only when `--force-new-cluster` makes the member
//!   the only one.
//! * It takes precedence over every `--initial-…` flag: those only apply to the first start.
//! * The log stores the same two ids, and the identity a digest of the log's salt, so replacing
//!   either of them is detected, even with that of a member with equal flags.

use std::io;
use std::path::{Path, PathBuf};

use api::etcdserverpb::Member as MemberEntry;
use serde::{Deserialize, Serialize};
use state_machine::Genesis;

use process::files;

/// Version of the data directory format. Other versions are rejected.
pub const FORMAT: u32 = 1;

/// Identity of a member, as of its first start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub format: u32,
    #[serde(with = "hex")]
    pub cluster_id: u64,
    #[serde(with = "hex")]
    pub member_id: u64,
    pub name: String,
    /// Members of the cluster at the first start, including this one, ordered by id. For a member
    /// of a new cluster these are the initial members.
    pub members: Vec<FirstMember>,
    /// True if this member joined a running cluster, so the state before its log is unknown. It
    /// must receive a state from another member before it applies an entry.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joined: bool,
    /// Index of the log entry by which `--force-new-cluster` made this member the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced: Option<u64>,
    /// Digest of the store created by an import or a restore; 0: the member started without one, or
    /// a version without digests created it.
    #[serde(default, skip_serializing_if = "is_none", with = "hex")]
    pub imported: u64,
    /// Digest of the salt of the log created with this identity; 0: created by an earlier version.
    #[serde(default, skip_serializing_if = "is_none", with = "hex")]
    pub log: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_none(digest: &u64) -> bool {
    *digest == 0
}

/// A member as of the time at which an identity was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstMember {
    #[serde(with = "hex")]
    pub id: u64,
    pub name: String,
    pub peer_urls: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_learner: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("{attempt} {}", path.display())]
    Io { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error("{} has no identity: restore the file from a copy, or replace the member", path.display())]
    Malformed { path: PathBuf, source: serde_json::Error },
    #[error(
        "{} has format {found}, this version reads format {FORMAT}: start the version that wrote it",
        path.display()
    )]
    Format { path: PathBuf, found: u32 },
}

impl Identity {
    /// Returns the identity that the log repeats in each segment.
    pub fn log_identity(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.cluster_id.to_be_bytes());
        bytes[8..].copy_from_slice(&self.member_id.to_be_bytes());
        bytes
    }

    pub fn read(path: &Path) -> Result<Option<Identity>, IdentityError> {
        let bytes = match files::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(IdentityError::Io { attempt: "read", path: path.into(), source }),
        };
        let malformed = |source| IdentityError::Malformed { path: path.into(), source };
        // Check the format first: later ones may have different fields.
        let format: Format = serde_json::from_slice(&bytes).map_err(malformed)?;
        if format.format != FORMAT {
            return Err(IdentityError::Format { path: path.into(), found: format.format });
        }
        serde_json::from_slice(&bytes).map(Some).map_err(malformed)
    }

    /// Writes the identity atomically with respect to power failures.
    pub fn write(&self, path: &Path) -> Result<(), IdentityError> {
        let bytes = serde_json::to_vec_pretty(self).expect("an identity has only text and numbers");
        let failed = |source| IdentityError::Io { attempt: "write", path: path.into(), source };
        files::replace(path, &bytes).map_err(failed)
    }
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Serializes ids in hexadecimal, as tools print them, which also prevents readers from parsing
/// them as floats.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(id: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{id:x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
    }
}

/// Returns ids and peer URLs of the initial members. Each member publishes its name and client URLs
/// itself.
pub fn genesis(identity: &Identity) -> Genesis {
    let entry = |member: &FirstMember| MemberEntry {
        id: member.id,
        peer_ur_ls: member.peer_urls.clone(),
        is_learner: member.is_learner,
        ..MemberEntry::default()
    };
    Genesis { members: identity.members.iter().map(entry).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        let member = |id, name: &str| FirstMember {
            id,
            name: name.to_owned(),
            peer_urls: vec![format!("http://{name}:2380")],
            is_learner: false,
        };
        Identity {
            format: FORMAT,
            cluster_id: 0xcdf8_1819_4e3a_8c32,
            member_id: 0x8e9e_05c5_2164_694d,
            name: "a".to_owned(),
            members: vec![member(0x8e9e_05c5_2164_694d, "a"), member(0xffff_ffff_ffff_ffff, "b")],
            ..Identity::default()
        }
    }

    #[test]
    fn what_was_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity.json");
        assert_eq!(Identity::read(&path).unwrap(), None);
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(matches!(Identity::read(&path), Err(IdentityError::Io { .. })));
        identity().write(&path).unwrap();
        assert_eq!(Identity::read(&path).unwrap(), Some(identity()));
        let mut joined =
            Identity { joined: true, forced: Some(7), imported: 0xa0, log: u64::MAX, ..identity() };
        joined.members[1].is_learner = true;
        joined.write(&path).unwrap();
        assert_eq!(Identity::read(&path).unwrap(), Some(joined));
        assert!(!path.with_extension("tmp").exists());
    }

    #[test]
    fn the_file_looks_as_it_always_did() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity.json");
        identity().write(&path).unwrap();
        let wanted = r#"{
  "format": 1,
  "cluster_id": "cdf818194e3a8c32",
  "member_id": "8e9e05c52164694d",
  "name": "a",
  "members": [
    {
      "id": "8e9e05c52164694d",
      "name": "a",
      "peer_urls": [
        "http://a:2380"
      ]
    },
    {
      "id": "ffffffffffffffff",
      "name": "b",
      "peer_urls": [
        "http://b:2380"
      ]
    }
  ]
}"#;
        assert_eq!(std::fs::read_to_string(&path).unwrap(), wanted);
    }

    #[test]
    fn another_format_and_a_damaged_file_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity.json");
        for (text, wanted) in [
            (r#"{"format": 2, "later": true}"#, "has format 2, this version reads format 1"),
            (r#"{"format": 1"#, "has no identity"),
            ("", "has no identity"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Identity::read(&path).expect_err(text).to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
