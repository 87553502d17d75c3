//! One JSON document of a member, for its status page and for `kv-server top`.
//!
//! * A member describes itself and what it knows of the others. It asks no other member.
//! * Figures that grow are since the start: who reads two documents has rates and percentiles of the time
//!   between them.
//! * One document is made in a second at most, however many readers there are.
//! * It is bounded: 64 members and alarms, texts of 128 characters, and the entries of `--metrics-top`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::etcdserverpb::AlarmType;
use bytes::Bytes;
use raft_node::{Role, Status};
use state_machine::LeaseTable;
use tokio::sync::Mutex;

use crate::member::Member;
use api::version;
use telemetry::metrics::{cpu_seconds, resident_bytes};
use telemetry::status::*;

/// Readers within this time get the same document.
const KEPT: Duration = Duration::from_secs(1);
/// The driver answers in microseconds, unless its turn is long.
const PROGRESS_WITHIN: Duration = Duration::from_millis(200);
/// Members and alarms that are listed.
const LISTED_MAX: usize = 64;
/// Characters of a name.
const NAME_MAX: usize = 128;

/// Where the document comes from. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StatusSource(Arc<StatusShared>);

struct StatusShared {
    member: Arc<Member>,
    leases: LeaseTable,
    started: Instant,
    made: Mutex<Option<(Instant, Bytes)>>,
}

impl StatusSource {
    pub fn new(member: Arc<Member>, leases: LeaseTable) -> StatusSource {
        StatusSource(Arc::new(StatusShared {
            member,
            leases,
            started: Instant::now(),
            made: Mutex::new(None),
        }))
    }

    /// The document as JSON, at most a second old. One reader makes it, the others wait for it.
    pub async fn json(&self) -> Bytes {
        let mut made = self.0.made.lock().await;
        if let Some((at, json)) = &*made
            && at.elapsed() < KEPT
        {
            return json.clone();
        }
        let document = self.0.document().await;
        let json: Bytes = serde_json::to_vec(&document).expect("strings and numbers are JSON").into();
        *made = Some((Instant::now(), json.clone()));
        json
    }
}

fn hex(id: u64) -> String {
    format!("{id:x}")
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

impl StatusShared {
    async fn document(&self) -> Document {
        let member = &self.member;
        let status = member.status();
        let members = self.members(&status).await;
        let own = members.iter().find(|one| one.is_self);
        let (name, is_learner) = own.map_or((String::new(), false), |own| (own.name.clone(), own.is_learner));
        let role = match status.role {
            Role::Leader => "leader",
            Role::Candidate => "candidate",
            Role::Follower if is_learner => "learner",
            Role::Follower => "follower",
        };
        let (watch, admission) = (member.watching.stats(), &member.admission);
        let reads = [admission.turns.gauges(), admission.hashes.gauges()];
        let waiting = admission.answers.gauges().1 + admission.places.gauges().1;
        Document {
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            version: version::OWN.to_owned(),
            etcd_version: version::ETCD.to_owned(),
            name,
            id: hex(member.ids.member),
            cluster: hex(member.ids.cluster),
            leader: status.leader.map(hex).unwrap_or_default(),
            role: role.to_owned(),
            members,
            raft: RaftStatus {
                term: status.term.0,
                commit: status.commit.0,
                applied: status.applied.0,
                last_index: status.last_index.0,
                proposals_pending: status.proposals_pending as u64,
            },
            counters: self.counters(watch.events),
            calls: member.metrics.calls.counts(),
            space: self.space(),
            alarms: self.alarms(),
            watch: WatchStatus {
                streams: watch.streams as u64,
                watchers: watch.watchers as u64,
                lagging: watch.lagging as u64,
            },
            leases: self.leases.len() as u64,
            queues: Queues {
                reads_running: reads.iter().map(|(running, _)| *running).sum(),
                reads_waiting: (waiting + reads[0].1 + reads[1].1) as u64,
                commands_waiting: admission.commands.gauges().1 as u64,
            },
            top: member.usage.as_ref().map(|usage| usage.rows()),
        }
    }

    async fn members(&self, status: &Status) -> Vec<MemberStatus> {
        let mut members = Vec::new();
        // The roster does not learn the names that members publish when they start.
        let published = self.member.members().unwrap_or_default();
        let published = |id| published.iter().find(|one| one.id == id && !one.name.is_empty());
        for one in self.member.roster.members().iter().take(LISTED_MAX) {
            let is_self = one.id == self.member.ids.member;
            let linked = if is_self { None } else { self.member.reach.active_since(one.id) };
            members.push(MemberStatus {
                id: hex(one.id),
                name: published(one.id).map_or(&one.name, |it| &it.name).chars().take(NAME_MAX).collect(),
                is_self,
                is_leader: status.leader == Some(one.id),
                is_learner: one.is_learner,
                linked_s: linked.map(|since| since.elapsed().as_secs()),
                lag: None,
            });
        }
        // One that is stuck must not cost the time of all.
        let lags = async {
            for (at, one) in self.member.roster.members().iter().take(LISTED_MAX).enumerate() {
                if let Some(listed) = members.get_mut(at).filter(|listed| listed.id == hex(one.id)) {
                    listed.lag = self.lag(one.id, status).await;
                }
            }
        };
        let _later = tokio::time::timeout(PROGRESS_WITHIN, lags).await;
        members
    }

    /// Of this member: what is committed and not applied. Of another one: what it has not acknowledged.
    async fn lag(&self, id: u64, status: &Status) -> Option<u64> {
        if id == self.member.ids.member {
            return Some(status.commit.entries_since(status.applied));
        }
        if status.role != Role::Leader {
            return None;
        }
        let progress = self.member.raft.progress_of(id).await?;
        Some(progress.last_index.entries_since(progress.matched))
    }

    fn counters(&self, events: u64) -> Counters {
        let metrics = &self.member.metrics;
        let (keys, disk) = (&metrics.keys, &metrics.disk);
        let (received_bytes, sent_bytes) = metrics.calls.bytes();
        Counters {
            puts: keys.puts.get(),
            deletes: keys.deletes.get(),
            ranges: keys.ranges.get(),
            txns: keys.txns.get(),
            received_bytes,
            sent_bytes,
            log_bytes: disk.log_written_bytes.get(),
            store_bytes: disk.store_bytes(),
            command_bytes: disk.command_bytes.get(),
            events,
            leader_changes: metrics.raft.leader_changes.get(),
            cpu_seconds: cpu_seconds(),
        }
    }

    fn space(&self) -> Space {
        let member = &self.member;
        let size = member.store.size();
        Space {
            quota_bytes: unsigned(member.limits.quota_bytes),
            store_bytes: size.allocated,
            in_use_bytes: size.in_use,
            resident_bytes: resident_bytes().unwrap_or_default(),
            keys: unsigned(member.live_keys()),
            revision: unsigned(member.store.revision()),
            compact_revision: unsigned(member.store.compact_revision()),
        }
    }

    fn alarms(&self) -> Vec<Alarm> {
        let alarms = self.member.alarms().unwrap_or_default();
        let named = alarms.into_iter().take(LISTED_MAX).map(|alarm| Alarm {
            member: hex(alarm.member_id),
            alarm: match AlarmType::try_from(alarm.alarm) {
                Ok(AlarmType::Nospace) => "NOSPACE",
                Ok(AlarmType::Corrupt) => "CORRUPT",
                Ok(AlarmType::None) | Err(_) => "UNKNOWN",
            }
            .to_owned(),
        });
        named.collect()
    }
}
