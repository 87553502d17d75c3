//! Export of a history to etcd's database file.
//!
//! * The first pass counts pages, the second one writes them. See docs/decisions/0043.
//! * A compaction that etcd has scheduled appears finished in the file, because the history has no
//!   other records.

use crate::bbolt::{FileLayout, FileWriter, Planner};
use mvcc::{HistoryReader, Meter, Revision};
use prost::Message;
use state_machine::{ApplyError, Lineage};

use super::record::{self, StoredLease};
use api::version;

/// Errors of an export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("read the history")]
    History(#[from] mvcc::Error),
    #[error("read the state")]
    State(#[from] ApplyError),
}

/// Database file of a history, written in parts.
pub struct SnapshotFile {
    history: HistoryReader,
    contents: ExportContents,
    plan: FileLayout,
    writer: FileWriter,
    progress: ExportProgress,
}

enum ExportProgress {
    /// Changes from this revision on are pending.
    Changes(Revision),
    Ended,
}

/// A small bucket: name, and sorted keys and values.
type SmallBucket = (&'static [u8], Vec<(Vec<u8>, Vec<u8>)>);

struct ExportContents {
    /// Buckets before `key` and, in `after`, those after `lease`, by name.
    before: Vec<SmallBucket>,
    /// Ids and TTLs, sorted by unsigned id.
    leases: Vec<(u64, i64)>,
    after: Vec<SmallBucket>,
}

impl SnapshotFile {
    /// Plans the file, which reads the whole history. Calls `meter` after each block to learn whether to
    /// continue.
    pub fn plan(history: HistoryReader, meter: &dyn Meter) -> Result<Self, ExportError> {
        let contents = ExportContents::of(&history)?;
        let mut planner = Planner::default();
        for (name, pairs) in &contents.before {
            planner.begin_bucket(name);
            pairs.iter().for_each(|(key, value)| planner.add(key, value.len()));
        }
        planner.begin_bucket(record::KEY);
        let (mut next, mut key) = (HistoryReader::START, Vec::new());
        while let Some(part) = history.part_from(next)? {
            meter.check()?;
            for change in part.changes() {
                key.clear();
                record::put_change_key(&change, &mut key);
                planner.add(&key, record::change_value_bytes(&change));
            }
            next = part.next();
        }
        planner.begin_bucket(record::LEASE);
        for (id, ttl) in &contents.leases {
            let (key, value) = stored_lease(*id, *ttl);
            planner.add(&key, value.encoded_len());
        }
        for (name, pairs) in &contents.after {
            planner.begin_bucket(name);
            pairs.iter().for_each(|(key, value)| planner.add(key, value.len()));
        }
        let plan = planner.finish();
        let mut writer = FileWriter::new(plan);
        for (name, pairs) in &contents.before {
            writer.begin_bucket(name);
            pairs.iter().for_each(|(key, value)| writer.add(key, value));
        }
        writer.begin_bucket(record::KEY);
        Ok(SnapshotFile {
            history,
            contents,
            plan,
            writer,
            progress: ExportProgress::Changes(HistoryReader::START),
        })
    }

    /// Returns the size of the file.
    pub fn bytes(&self) -> u64 {
        self.plan.bytes()
    }

    /// Returns the next bytes of the file: at least `bytes_min`, and at most a block more, except for the
    /// last call. `None` at the end of the file.
    pub fn next(&mut self, bytes_min: usize, meter: &dyn Meter) -> Result<Option<Vec<u8>>, ExportError> {
        let mut value = Vec::new();
        while self.writer.pending() < bytes_min {
            meter.check()?;
            let ExportProgress::Changes(next) = self.progress else { break };
            match self.history.part_from(next)? {
                Some(part) => {
                    for change in part.changes() {
                        value.clear();
                        record::put_change_key(&change, &mut value);
                        let key_bytes = value.len();
                        record::put_change_value(&change, &mut value);
                        let (key, value) = value.split_at(key_bytes);
                        self.writer.add(key, value);
                    }
                    self.progress = ExportProgress::Changes(part.next());
                }
                None => self.end(),
            }
        }
        Ok(Some(self.writer.take()).filter(|bytes| !bytes.is_empty()))
    }

    /// Writes the buckets after the changes: 30 bytes per lease.
    fn end(&mut self) {
        self.writer.begin_bucket(record::LEASE);
        for (id, ttl) in &self.contents.leases {
            let (key, value) = stored_lease(*id, *ttl);
            self.writer.add(&key, &value.encode_to_vec());
        }
        for (name, pairs) in &self.contents.after {
            self.writer.begin_bucket(name);
            pairs.iter().for_each(|(key, value)| self.writer.add(key, value));
        }
        self.writer.finish();
        self.progress = ExportProgress::Ended;
    }
}

fn stored_lease(id: u64, ttl: i64) -> ([u8; 8], StoredLease) {
    (id.to_be_bytes(), StoredLease { id: id.cast_signed(), ttl, remaining_ttl: 0 })
}

impl ExportContents {
    fn of(history: &HistoryReader) -> Result<Self, ApplyError> {
        let items = history.items();
        let mut leases: Vec<_> = state_machine::leases(items.iter().cloned())?
            .into_iter()
            .map(|(id, lease)| (id.cast_unsigned(), lease.ttl))
            .filter(|_| !base::mutant("snapshot-without-leases"))
            .collect();
        leases.sort_unstable();
        let mut alarms: Vec<_> = state_machine::active_alarms_in(items)?
            .iter()
            .map(|alarm| (alarm.encode_to_vec(), Vec::new()))
            .filter(|(key, _)| !key.is_empty())
            .collect();
        alarms.sort_unstable();
        let members = state_machine::members_in(items)?;
        let mut stored_members: Vec<_> = members.iter().map(record::member).collect();
        stored_members.sort_unstable();
        let version = version::CLUSTER.as_bytes().to_vec();
        let auth = state_machine::auth_in(items)?;
        let before = vec![
            (record::ALARM, alarms),
            (record::AUTH, record::auth(&auth)),
            (record::AUTH_ROLES, record::named(&auth.roles)),
            (record::AUTH_USERS, record::named(&auth.users)),
            (record::CLUSTER, vec![(record::CLUSTER_VERSION.to_vec(), version.clone())]),
        ];
        let applied = history.applied();
        let number = |number: u64| number.to_be_bytes().to_vec();
        let mut meta = vec![
            (record::CONF_STATE.to_vec(), record::conf_state(&members)),
            // etcd interprets 0 as unknown.
            (record::CONSISTENT_INDEX.to_vec(), number(applied.index.0.max(1))),
            (record::STORAGE_VERSION.to_vec(), version),
            (record::TERM.to_vec(), number(applied.term.0.max(1))),
        ];
        if history.compact_revision() > 0 {
            let compacted = record::revision_key(Revision { main: history.compact_revision(), sub: 0 });
            for name in [record::FINISHED_COMPACT, record::SCHEDULED_COMPACT] {
                meta.push((name.to_vec(), compacted.to_vec()));
            }
        }
        let lineage = Lineage::of_items(items)?.ended_at(history.revision());
        if lineage.is_known() {
            meta.push((record::LINEAGE.to_vec(), lineage.to_string().into_bytes()));
        }
        meta.sort_unstable();
        let after = vec![
            (record::MEMBERS, stored_members),
            (record::MEMBERS_REMOVED, Vec::new()),
            (record::META, meta),
        ];
        Ok(ExportContents { before, leases, after })
    }
}
