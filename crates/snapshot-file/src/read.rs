//! Import of etcd's database file into the store of a new cluster.
//!
//! * Keys retain their revisions, versions, history and leases. Leases start with their full TTL, like
//!   after a restart of etcd. Alarms and members are not imported.
//! * Users, roles and the authentication switch are imported. Files do not contain tokens.
//! * The store starts a new history that continues the history named in the file.
//! * A compaction that etcd had scheduled is repeated by the store.
//! * Opening the store, the last step of the import, verifies that the changes of each key are
//!   consistent.

use std::sync::Arc;

use crate::bbolt::{Bucket, BucketCursor, Database, PageSource};
use api::authpb::{Permission, Role, User, permission::Type};
use api::mvccpb::KeyValue;
use mvcc::{Backend, Change, Import, ImportedState, KeyValueRef, LogPosition, Revision, StoreOptions};
use prost::Message;
use state_machine::{AuthState, Genesis, Lineage, TTL_MAX};

use super::record::{self, StoredLease};

/// Maximum revision after a bump. Half of the revision range remains for later changes.
pub const BUMPED_REVISION_MAX: i64 = 1 << 62;

/// Reasons to reject a file, and I/O errors.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotReadError {
    #[error("the file is corrupt")]
    Damaged(#[from] crate::bbolt::Error),
    #[error("the file has no bucket \"{0}\": not an etcd database")]
    NoBucket(&'static str),
    #[error("bucket \"{bucket}\", key {key}: {what}")]
    Record { bucket: &'static str, key: String, what: &'static str },
    #[error("bucket \"{bucket}\", key {key}")]
    Refused { bucket: &'static str, key: String, source: mvcc::Error },
    #[error("revision {newest} cannot be increased by {bump}: the maximum is {BUMPED_REVISION_MAX}")]
    Bump { newest: i64, bump: i64 },
    #[error("write the store")]
    Store(#[from] mvcc::Error),
}

/// Adjustments of the imported revisions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Revisions {
    /// Amount to add to the latest revision.
    pub bump: i64,
    /// True to compact the latest revision.
    pub is_compacted: bool,
}

/// Summary of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportResult {
    pub revision: i64,
    pub compact_revision: i64,
    pub changes: u64,
    pub leases: u64,
}

/// Imports the file into `backend`, which must be empty. The membership of the new cluster is part of
/// the store from the first entry, so a member that receives this store as a snapshot takes the
/// membership from it. `applied` is the position of the resulting store.
pub fn import<S: PageSource>(
    database: &Database<S>,
    backend: Box<dyn Backend>,
    revisions: Revisions,
    members: &Genesis,
    applied: LogPosition,
) -> Result<ImportResult, SnapshotReadError> {
    let file = BucketFile { database, buckets: database.buckets()? };
    file.check_all_but_keys()?;
    let auth = file.auth()?;
    let compacted = file.compact_revision()?;
    let lineage = file.lineage()?.item();
    let mut import = Import::begin(backend, &StoreOptions::default())?;
    for (key, value) in auth {
        import.item(&key, &value)?;
    }
    if let Some((key, value)) = lineage {
        import.item(key, &value)?;
    }
    let stored = file.leases()?;
    let leases = stored.len() as u64;
    for (key, value) in state_machine::lease_items(stored) {
        import.item(&key, &value)?;
    }
    for (key, value) in state_machine::member_items(members) {
        import.item(&key, &value)?;
    }
    let (newest, changes) = file.changes(&mut import)?;
    let newest = newest.max(compacted).max(1);
    let revision = match newest.checked_add(revisions.bump) {
        Some(raised) if revisions.bump == 0 || raised <= BUMPED_REVISION_MAX => raised,
        Some(_) | None => return Err(SnapshotReadError::Bump { newest, bump: revisions.bump }),
    };
    let compact_revision = if revisions.is_compacted { revision } else { compacted };
    import.finish(ImportedState { applied, revision, compact_revision })?;
    Ok(ImportResult { revision, compact_revision, changes, leases })
}

/// Returns the latest revision of a file. Reads all keys.
pub fn newest_revision<S: PageSource>(database: &Database<S>) -> Result<i64, SnapshotReadError> {
    let file = BucketFile { database, buckets: database.buckets()? };
    let mut newest = file.compact_revision()?.max(1);
    let mut cursor = file.cursor("key")?.ok_or(SnapshotReadError::NoBucket("key"))?;
    while let Some((key, _)) = cursor.next_pair()? {
        let (revision, _) = record::read_change_key(key).ok_or_else(|| bad("key", key, "not a revision"))?;
        newest = newest.max(revision.main);
    }
    Ok(newest)
}

/// Returns the lineage stored in a file. etcd preserves the record unchanged, so it may have added
/// revisions.
pub fn lineage<S: PageSource>(database: &Database<S>) -> Result<Lineage, SnapshotReadError> {
    BucketFile { database, buckets: database.buckets()? }.lineage()
}

/// Returns all leases of a file with their TTLs in seconds.
pub fn leases<S: PageSource>(database: &Database<S>) -> Result<Vec<(i64, i64)>, SnapshotReadError> {
    BucketFile { database, buckets: database.buckets()? }.leases()
}

/// Passes the changes of the latest `count` revisions that are not compacted to `take`, or all changes
/// that compaction has left if `count` is `None`. Reads all keys twice.
pub fn newest_changes<S: PageSource>(
    database: &Database<S>,
    count: Option<usize>,
    mut take: impl FnMut(&Change<'_>),
) -> Result<(), SnapshotReadError> {
    let file = BucketFile { database, buckets: database.buckets()? };
    let after = match count {
        Some(count) => {
            file.compact_revision()?.max(newest_revision(database)?.saturating_sub_unsigned(count as u64))
        }
        None => 0,
    };
    let mut cursor = file.cursor("key")?.ok_or(SnapshotReadError::NoBucket("key"))?;
    while let Some((key, value)) = cursor.next_pair()? {
        let (revision, is_tombstone) =
            record::read_change_key(key).ok_or_else(|| bad("key", key, "not a revision"))?;
        if revision.main > after && !value.is_empty() {
            let stored = stored(key, value)?;
            take(&change(key, revision, is_tombstone, &stored)?);
        }
    }
    Ok(())
}

fn stored(key: &[u8], value: &[u8]) -> Result<KeyValue, SnapshotReadError> {
    KeyValue::decode(value).map_err(|_| bad("key", key, "not a key-value pair"))
}

fn change<'s>(
    key: &[u8],
    revision: Revision,
    is_tombstone: bool,
    stored: &'s KeyValue,
) -> Result<Change<'s>, SnapshotReadError> {
    match is_tombstone {
        true => Ok(Change::Delete { revision, key: &stored.key }),
        false => put(revision, stored).ok_or_else(|| bad("key", key, "the revision differs from the key's")),
    }
}

struct BucketFile<'d, S> {
    database: &'d Database<S>,
    buckets: Vec<Bucket>,
}

impl<S: PageSource> BucketFile<'_, S> {
    fn cursor(&self, name: &'static str) -> Result<Option<BucketCursor<'_, S>>, SnapshotReadError> {
        let bucket = self.buckets.iter().find(|bucket| bucket.name() == name.as_bytes());
        Ok(bucket.map(|bucket| self.database.cursor(bucket)).transpose()?)
    }

    /// Reads all small buckets, even those not imported, to reject a file with any corrupt page.
    fn check_all_but_keys(&self) -> Result<(), SnapshotReadError> {
        for bucket in self.buckets.iter().filter(|bucket| bucket.name() != record::KEY) {
            let mut cursor = self.database.cursor(bucket)?;
            while cursor.next_pair()?.is_some() {}
        }
        Ok(())
    }

    fn auth(&self) -> Result<record::Pairs, SnapshotReadError> {
        let mut state = AuthState::default();
        if let Some(mut auth) = self.cursor("auth")? {
            while let Some((key, value)) = auth.next_pair()? {
                if key == record::AUTH_ENABLED {
                    state.enabled = value == [1];
                } else if key == record::AUTH_REVISION {
                    let revision = value.try_into().map_err(|_| bad("auth", key, "not a revision"))?;
                    // A cluster that never had users has 0 or 1.
                    state.revision = u64::from_be_bytes(revision).max(1);
                }
            }
        }
        // Lookups and listings require order, but old versions of etcd did not sort these.
        self.each("authUsers", |name, mut user: User| {
            user.roles.sort_unstable();
            drop(Arc::make_mut(&mut state.users).insert(name, Arc::new(user)))
        })?;
        self.each("authRoles", |name, mut role: Role| {
            role.key_permission = one_for_each_range(std::mem::take(&mut role.key_permission));
            drop(Arc::make_mut(&mut state.roles).insert(name, Arc::new(role)))
        })?;
        let too_large = |_| bad("authRoles", b"", "a name above 246 bytes, or a role or user above 64 KiB");
        state_machine::auth_items(&state).map_err(too_large)
    }

    /// Decodes the messages of a bucket, in order of their names.
    fn each<M: Message + Default>(
        &self,
        bucket: &'static str,
        mut take: impl FnMut(String, M),
    ) -> Result<(), SnapshotReadError> {
        let Some(mut cursor) = self.cursor(bucket)? else { return Ok(()) };
        while let Some((key, value)) = cursor.next_pair()? {
            let name = String::from_utf8(key.to_vec());
            let name = name.map_err(|_| bad(bucket, key, "a name that is not text"))?;
            take(name, M::decode(value).map_err(|_| bad(bucket, key, "not a user or a role"))?);
        }
        Ok(())
    }

    fn lineage(&self) -> Result<Lineage, SnapshotReadError> {
        let Some(mut meta) = self.cursor("meta")? else { return Ok(Lineage::default()) };
        while let Some((key, value)) = meta.next_pair()? {
            if key == record::LINEAGE {
                let lineage = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                return lineage.ok_or_else(|| bad("meta", key, "not a history ID"));
            }
        }
        Ok(Lineage::default())
    }

    /// Returns the revision of etcd's last finished or scheduled compaction, or -1 if there is none.
    fn compact_revision(&self) -> Result<i64, SnapshotReadError> {
        let mut meta = self.cursor("meta")?.ok_or(SnapshotReadError::NoBucket("meta"))?;
        let mut compacted = -1;
        while let Some((key, value)) = meta.next_pair()? {
            if key == record::FINISHED_COMPACT || key == record::SCHEDULED_COMPACT {
                let revision = record::read_change_key(value);
                let revision = revision.ok_or_else(|| bad("meta", key, "not a revision"))?;
                compacted = compacted.max(revision.0.main);
            }
        }
        // etcd writes 0 if it never compacted.
        Ok(if compacted > 0 { compacted } else { -1 })
    }

    fn leases(&self) -> Result<Vec<(i64, i64)>, SnapshotReadError> {
        let mut leases = Vec::new();
        let Some(mut cursor) = self.cursor("lease")? else { return Ok(leases) };
        while let Some((key, value)) = cursor.next_pair()? {
            let lease = StoredLease::decode(value).map_err(|_| bad("lease", key, "not a lease"))?;
            if key != lease.id.to_be_bytes() || lease.id == 0 {
                return Err(bad("lease", key, "the lease differs from the key's"));
            }
            if lease.ttl > TTL_MAX {
                return Err(bad("lease", key, "a TTL beyond etcd's maximum"));
            }
            leases.push((lease.id, lease.ttl.max(1)));
        }
        Ok(leases)
    }

    /// Adds all changes to `import`. Returns the latest revision and the number of changes.
    fn changes(&self, import: &mut Import) -> Result<(i64, u64), SnapshotReadError> {
        let mut cursor = self.cursor("key")?.ok_or(SnapshotReadError::NoBucket("key"))?;
        let (mut newest, mut count) = (1, 0);
        while let Some((key, value)) = cursor.next_pair()? {
            let revision = record::read_change_key(key);
            let (revision, is_tombstone) = revision.ok_or_else(|| bad("key", key, "not a revision"))?;
            let stored = stored(key, value)?;
            newest = newest.max(revision.main);
            if value.is_empty() {
                continue; // A marker of `etcdutl snapshot restore --bump-revision`: a revision without a change.
            }
            let change = change(key, revision, is_tombstone, &stored)?;
            import.change(change).map_err(|source| refused(key, source))?;
            count += 1;
        }
        Ok((newest, count))
    }
}

/// Returns the change of a stored pair, or `None` if its revision differs.
fn put(revision: Revision, stored: &KeyValue) -> Option<Change<'_>> {
    let kv = KeyValueRef {
        key: &stored.key,
        value: &stored.value,
        create_revision: stored.create_revision,
        mod_revision: stored.mod_revision,
        version: stored.version,
        lease: stored.lease,
    };
    (stored.mod_revision == revision.main).then_some(Change::Put { revision, kv })
}

fn bad(bucket: &'static str, key: &[u8], what: &'static str) -> SnapshotReadError {
    SnapshotReadError::Record { bucket, key: key.escape_ascii().to_string(), what }
}

/// Separates changes that the store rejects, a fault of the file, from I/O errors.
fn refused(key: &[u8], source: mvcc::Error) -> SnapshotReadError {
    match source {
        mvcc::Error::Refused { .. } => {
            SnapshotReadError::Refused { bucket: "key", key: key.escape_ascii().to_string(), source }
        }
        other => SnapshotReadError::Store(other),
    }
}

/// Merges permissions on the same range. etcd may have several for a range, and all of them apply.
fn one_for_each_range(mut permissions: Vec<Permission>) -> Vec<Permission> {
    permissions.sort_by(|a, b| (&a.key, &a.range_end).cmp(&(&b.key, &b.range_end)));
    permissions.dedup_by(|next, kept| {
        let is_same = (&next.key, &next.range_end) == (&kept.key, &kept.range_end);
        if is_same {
            kept.perm_type = match (Type::try_from(kept.perm_type), Type::try_from(next.perm_type)) {
                (Ok(one), Ok(other)) if one != other => Type::Readwrite.into(),
                // An unknown type grants no permission.
                (Err(_), Ok(known)) => known.into(),
                (Ok(_), Ok(_)) | (_, Err(_)) => kept.perm_type,
            };
        }
        is_same
    });
    permissions
}

#[cfg(test)]
mod tests {
    use mvcc::{MemoryBackend, REVISION_MAX};

    use super::*;

    fn file(main: i64) -> Vec<u8> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let kv = KeyValueRef {
            key: b"a",
            value: b"1",
            create_revision: main,
            mod_revision: main,
            version: 1,
            lease: 0,
        };
        let change = Change::Put { revision: Revision::first_of(main), kv };
        record::put_change_key(&change, &mut key);
        record::put_change_value(&change, &mut value);
        let mut planner = crate::bbolt::Planner::default();
        planner.begin_bucket(record::KEY);
        planner.add(&key, value.len());
        planner.begin_bucket(record::META);
        let mut writer = crate::bbolt::FileWriter::new(planner.finish());
        writer.begin_bucket(record::KEY);
        writer.add(&key, &value);
        writer.begin_bucket(record::META);
        writer.finish();
        writer.take()
    }

    #[test]
    fn permissions_of_one_range_become_one_that_permits_all_of_theirs() {
        let made = |perm_type, key: &str| Permission {
            perm_type,
            key: key.to_owned().into(),
            range_end: "b".into(),
        };
        for (types, wanted) in [
            (&[0][..], 0),
            (&[1, 1], 1),
            (&[1, 0], 2),
            (&[0, 2], 2),
            (&[1, 0, 1], 2),
            (&[7, 1], 1),
            (&[0, 7], 0),
        ] {
            let role = types.iter().map(|&perm_type| made(perm_type, "a")).chain([made(0, "A")]).collect();
            assert_eq!(one_for_each_range(role), [made(0, "A"), made(wanted, "a")], "{types:?}");
        }
    }

    #[test]
    fn a_revision_is_raised_while_enough_of_them_are_left() {
        for (newest, bump, wanted) in [
            (7, 0, Some(7)),
            (7, 1_000_000_000, Some(1_000_000_007)),
            (7, BUMPED_REVISION_MAX - 7, Some(BUMPED_REVISION_MAX)),
            (7, BUMPED_REVISION_MAX - 6, None),
            (7, 9_223_372_036_854_775_801, None),
            (7, REVISION_MAX - 7, None),
            (7, i64::MAX, None),
            (REVISION_MAX, 0, Some(REVISION_MAX)),
            (REVISION_MAX, 1, None),
            (i64::MAX, 0, None),
        ] {
            let bytes = file(newest);
            let database = Database::open(&bytes[..], bytes.len() as u64).unwrap();
            let backend = MemoryBackend::new();
            let revisions = Revisions { bump, is_compacted: bump > 0 };
            let imported = import(
                &database,
                Box::new(backend.clone()),
                revisions,
                &Genesis::default(),
                LogPosition::new(1, 1),
            );
            let found = imported.ok().map(|imported| imported.revision);
            assert_eq!(found, wanted, "{newest} + {bump}");
            if found.is_some() {
                mvcc::open(Box::new(backend), StoreOptions::default()).unwrap();
            }
        }
    }
}
