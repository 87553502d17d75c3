//! Keys and values of etcd's buckets.
//!
//! * `key`: a revision, 17 bytes: main big endian, `_`, sub big endian; a tombstone has one more byte, `t`.
//!   The value is a protobuf `KeyValue` with fields in order and without zeros; a tombstone has its key only.
//! * `lease`: the id as eight bytes, big endian. The value is a protobuf `Lease`.
//! * `members`: the id in hexadecimal digits. The value is JSON.
//! * `auth`: names. `authUsers`, `authRoles`: the name. The value is a protobuf `User` or `Role`.
//! * `meta`: names. The values are eight bytes big endian, a revision, text or JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::etcdserverpb::Member;
use mvcc::{Change, Revision};
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};
use serde::Serialize;
use state_machine::AuthState;

pub const ALARM: &[u8] = b"alarm";
pub const AUTH: &[u8] = b"auth";
pub const AUTH_ROLES: &[u8] = b"authRoles";
pub const AUTH_USERS: &[u8] = b"authUsers";
pub const CLUSTER: &[u8] = b"cluster";
pub const KEY: &[u8] = b"key";
pub const LEASE: &[u8] = b"lease";
pub const MEMBERS: &[u8] = b"members";
pub const MEMBERS_REMOVED: &[u8] = b"members_removed";
pub const META: &[u8] = b"meta";

pub const AUTH_ENABLED: &[u8] = b"authEnabled";
pub const AUTH_REVISION: &[u8] = b"authRevision";
pub const CLUSTER_VERSION: &[u8] = b"clusterVersion";
pub const CONF_STATE: &[u8] = b"confState";
pub const CONSISTENT_INDEX: &[u8] = b"consistent_index";
/// Name of the lineage record. etcd's programs preserve it but do not read it.
pub const LINEAGE: &[u8] = b"kvServerHistory";
pub const FINISHED_COMPACT: &[u8] = b"finishedCompactRev";
pub const SCHEDULED_COMPACT: &[u8] = b"scheduledCompactRev";
pub const STORAGE_VERSION: &[u8] = b"storageVersion";
pub const TERM: &[u8] = b"term";

const REVISION_BYTES: usize = 17;

/// A lease as etcd stores it.
#[derive(Clone, PartialEq, Message)]
pub struct StoredLease {
    #[prost(int64, tag = "1")]
    pub id: i64,
    #[prost(int64, tag = "2")]
    pub ttl: i64,
    #[prost(int64, tag = "3")]
    pub remaining_ttl: i64,
}

/// A small bucket, sorted.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns the bucket with the authentication switch and the auth revision.
pub fn auth(state: &AuthState) -> Pairs {
    let revision = (AUTH_REVISION.to_vec(), state.revision.to_be_bytes().to_vec());
    match state.enabled {
        true => vec![(AUTH_ENABLED.to_vec(), vec![1]), revision],
        false => vec![revision],
    }
}

/// Returns users or roles, by name.
pub fn named<M: Message>(all: &BTreeMap<String, Arc<M>>) -> Pairs {
    all.iter().map(|(name, message)| (name.clone().into_bytes(), message.encode_to_vec())).collect()
}

/// Encodes a revision.
pub fn revision_key(revision: Revision) -> [u8; REVISION_BYTES] {
    let mut key = [b'_'; REVISION_BYTES];
    key[..8].copy_from_slice(&revision.main.to_be_bytes());
    key[9..].copy_from_slice(&revision.sub.to_be_bytes());
    key
}

/// Appends the key of a change.
pub fn put_change_key(change: &Change<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&revision_key(change.revision()));
    if matches!(change, Change::Delete { .. }) {
        out.push(b't');
    }
}

/// Decodes the revision of a stored key, and whether it is a tombstone. `None` if the key is not a
/// revision.
pub fn read_change_key(key: &[u8]) -> Option<(Revision, bool)> {
    let (revision, mark) = key.split_first_chunk::<REVISION_BYTES>()?;
    let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| i64::from_be_bytes(*bytes));
    let revision_read = Revision { main: number(&revision[..8])?, sub: number(&revision[9..])? };
    let is_tombstone = mark == b"t";
    let is_revision = revision[8] == b'_' && (mark.is_empty() || is_tombstone);
    let is_in_range = revision_read.main >= 0 && revision_read.sub >= 0;
    (is_revision && is_in_range).then_some((revision_read, is_tombstone))
}

/// Returns the number of bytes that `put_change_value` appends.
pub fn change_value_bytes(change: &Change<'_>) -> usize {
    let bytes = |bytes: &[u8]| match bytes.len() {
        0 => 0,
        length => 1 + encoded_len_varint(length as u64) + length,
    };
    let number = |number: i64| if number == 0 { 0 } else { 1 + encoded_len_varint(number as u64) };
    match change {
        Change::Delete { key, .. } => bytes(key),
        Change::Put { kv, .. } => {
            let numbers = [kv.create_revision, kv.mod_revision, kv.version, kv.lease];
            bytes(kv.key) + bytes(kv.value) + numbers.into_iter().map(number).sum::<usize>()
        }
    }
}

/// Appends the value of a change.
pub fn put_change_value(change: &Change<'_>, out: &mut Vec<u8>) {
    put_bytes(out, 1, change.key());
    if let Change::Put { kv, .. } = change {
        put_number(out, 2, kv.create_revision);
        put_number(out, 3, kv.mod_revision);
        put_number(out, 4, kv.version);
        put_bytes(out, 5, kv.value);
        put_number(out, 6, kv.lease);
    }
}

fn put_number(out: &mut Vec<u8>, field: u8, value: i64) {
    if value != 0 {
        out.push(field << 3);
        encode_varint(value as u64, out);
    }
}

fn put_bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    if !value.is_empty() {
        out.push(field << 3 | 2);
        encode_varint(value.len() as u64, out);
        out.extend_from_slice(value);
    }
}

/// Returns the key and value of a member.
pub fn member(member: &Member) -> (Vec<u8>, Vec<u8>) {
    #[derive(Serialize)]
    struct StoredMember<'m> {
        id: u64,
        #[serde(rename = "peerURLs")]
        peer_urls: &'m [String],
        #[serde(rename = "isLearner", skip_serializing_if = "std::ops::Not::not")]
        is_learner: bool,
        #[serde(skip_serializing_if = "str::is_empty")]
        name: &'m str,
        #[serde(rename = "clientURLs", skip_serializing_if = "<[String]>::is_empty")]
        client_urls: &'m [String],
    }
    let stored = StoredMember {
        id: member.id,
        peer_urls: &member.peer_ur_ls,
        is_learner: member.is_learner,
        name: &member.name,
        client_urls: &member.client_ur_ls,
    };
    let value = serde_json::to_vec(&stored).expect("a member has only text and numbers");
    (format!("{:x}", member.id).into_bytes(), value)
}

/// Returns Raft's configuration as stored by etcd.
pub fn conf_state(members: &[Member]) -> Vec<u8> {
    #[derive(Serialize)]
    struct StoredMembership {
        voters: Vec<u64>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        learners: Vec<u64>,
        auto_leave: bool,
    }
    let ids = |is_learner: bool| {
        let mut ids: Vec<u64> =
            members.iter().filter(|member| member.is_learner == is_learner).map(|member| member.id).collect();
        ids.sort_unstable();
        ids
    };
    let stored = StoredMembership { voters: ids(false), learners: ids(true), auto_leave: false };
    serde_json::to_vec(&stored).expect("a membership has only numbers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mvcc::KeyValueRef;

    fn put<'a>(revision: Revision, key: &'a [u8], value: &'a [u8], lease: i64) -> Change<'a> {
        let (create_revision, mod_revision, version) = (2, revision.main, 129);
        Change::Put {
            revision,
            kv: KeyValueRef { key, value, create_revision, mod_revision, version, lease },
        }
    }

    fn stored(change: &Change<'_>) -> String {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        put_change_key(change, &mut key);
        put_change_value(change, &mut value);
        assert_eq!(value.len(), change_value_bytes(change));
        let is_delete = matches!(change, Change::Delete { .. });
        assert_eq!(read_change_key(&key), Some((change.revision(), is_delete)));
        format!("{} => {}", key.escape_ascii(), value.escape_ascii())
    }

    #[test]
    fn changes_are_stored_as_etcd_stores_them() {
        let revision = Revision { main: 300, sub: 1 };
        let key = r"\x00\x00\x00\x00\x00\x00\x01,_\x00\x00\x00\x00\x00\x00\x00\x01";
        for (change, wanted) in [
            (put(revision, b"k", b"v", 0), format!(r"{key} => \n\x01k\x10\x02\x18\xac\x02 \x81\x01*\x01v")),
            (put(revision, b"k", b"", 7), format!(r"{key} => \n\x01k\x10\x02\x18\xac\x02 \x81\x010\x07")),
            (Change::Delete { revision, key: b"k" }, format!(r"{key}t => \n\x01k")),
        ] {
            assert_eq!(stored(&change), wanted);
        }
    }

    #[test]
    fn what_is_not_a_revision_is_refused() {
        let good = revision_key(Revision { main: 5, sub: 0 });
        let changed = |at: usize, byte: u8| {
            let mut key = good.to_vec();
            key[at] = byte;
            key
        };
        for key in [
            good[..16].to_vec(),
            changed(8, b'-'),
            changed(0, 0x80),
            changed(9, 0x80),
            [&good[..], b"x"].concat(),
            [&good[..], b"tt"].concat(),
            Vec::new(),
        ] {
            assert_eq!(read_change_key(&key), None, "{key:?}");
        }
    }

    #[test]
    fn members_are_stored_as_etcd_stores_them() {
        let started = Member {
            id: 0x99bc_a5ff_d3b6_b513,
            name: "default".into(),
            peer_ur_ls: vec!["http://127.0.0.1:27380".into()],
            client_ur_ls: vec!["http://127.0.0.1:27379".into()],
            is_learner: false,
        };
        let learner = Member { id: 7, is_learner: true, ..Member::default() };
        let text = |(key, value): (Vec<u8>, Vec<u8>)| {
            format!("{} => {}", String::from_utf8(key).unwrap(), String::from_utf8(value).unwrap())
        };
        assert_eq!(
            text(member(&started)),
            r#"99bca5ffd3b6b513 => {"id":11077911701611787539,"peerURLs":["http://127.0.0.1:27380"],"name":"default","clientURLs":["http://127.0.0.1:27379"]}"#
        );
        assert_eq!(text(member(&learner)), r#"7 => {"id":7,"peerURLs":[],"isLearner":true}"#);
        let conf_state = |members: &[Member]| String::from_utf8(conf_state(members)).unwrap();
        assert_eq!(
            conf_state(std::slice::from_ref(&started)),
            r#"{"voters":[11077911701611787539],"auto_leave":false}"#
        );
        assert_eq!(
            conf_state(&[started, learner]),
            r#"{"voters":[11077911701611787539],"learners":[7],"auto_leave":false}"#
        );
    }
}
