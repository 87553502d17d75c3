//! JSON status document of a member, used by its status page and by `kvctl top`.
//!
//! * A member describes itself and its view of its peers. When the cluster page is viewed it fetches the
//!   documents and histories of its peers, bounds their size, and accepts from each peer only data about
//!   that peer.
//! * Counters are cumulative since the start; readers derive rates and percentiles from two documents.
//! * A document is built at most once per second, for all readers together, even if building it takes
//!   longer.
//! * It is bounded: 64 members and alarms, texts of 128 characters, 50 slow calls, and the entries of
//!   `--metrics-top`.
//! * A sample of its metrics is stored every 5 seconds for plots of the last 10 minutes and 6 hours: 22 KiB
//!   in total.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::etcdserverpb::AlarmType;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use parking_lot as sync;
use raft_node::{Role, Status};
use serde::Serialize;
use state_machine::LeaseTable;
use tokio::time::{Instant, MissedTickBehavior};

use crate::member::{Figures, Member};
use crate::shared_evaluation::SharedEvaluation;
use api::version;
use telemetry::health;
use telemetry::history::{self, StatsHistory};
use telemetry::metrics::{From, To, cpu_seconds, resident_bytes};
use telemetry::status::*;
use transport::tls::ShownAddress;

/// Lifetime of a cached document.
const KEPT: Duration = Duration::from_secs(1);
/// Timeout for the driver's progress report. The driver replies in microseconds unless its step is long.
const PROGRESS_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum size of a peer's document; one with all members and methods is smaller.
const DOCUMENT_BYTES_MAX: usize = 256 << 10;
/// Maximum total size of the peers' documents. With more than 8 peers, each one's limit shrinks.
const DOCUMENTS_BYTES_MAX: usize = 2 << 20;
/// Maximum number of listed members, and of listed alarms.
const LISTED_MAX: usize = 64;
/// Maximum characters of a name.
const NAME_MAX: usize = 128;

/// Builds and caches the status document. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StatusSource(Arc<StatusShared>);

/// A cached value with its creation time; concurrent readers share one evaluation.
struct Kept<T> {
    last: sync::Mutex<Option<(Instant, T)>>,
    running: SharedEvaluation<T>,
}

struct StatusShared {
    member: Arc<Member>,
    leases: LeaseTable,
    certificates: ShownAddress,
    started: Instant,
    /// JSON of the document, and the health it contains.
    made: Arc<Kept<(Bytes, Health)>>,
    of_others: Arc<Kept<(Bytes, Vec<Health>)>>,
    history: sync::Mutex<StatsHistory>,
    /// Histories as JSON, for this member and for peers with viewed plots.
    histories: sync::Mutex<HashMap<u64, Arc<Kept<Option<Bytes>>>>>,
    /// Time since which each peer has been disconnected.
    down: sync::Mutex<HashMap<u64, Instant>>,
}

impl StatusSource {
    /// Creates the source and starts sampling, which stops when the last clone is dropped. Must be called
    /// inside the runtime.
    pub fn new(member: Arc<Member>, leases: LeaseTable, certificates: ShownAddress) -> StatusSource {
        let shared = Arc::new(StatusShared {
            member,
            leases,
            certificates,
            started: Instant::now(),
            made: Arc::default(),
            of_others: Arc::default(),
            history: sync::Mutex::default(),
            histories: sync::Mutex::default(),
            down: sync::Mutex::default(),
        });
        tokio::spawn(follow(Arc::downgrade(&shared)));
        let own = Arc::downgrade(&shared);
        shared.member.reach.serve_figures(Box::new(move |figures| {
            let own = own.clone();
            Box::pin(async move {
                let own = StatusSource(own.upgrade()?);
                match figures {
                    Figures::Now => Some(own.json().await),
                    Figures::History => own.history(own.0.member.ids.member).await,
                }
            })
        }));
        StatusSource(shared)
    }

    pub fn own_id(&self) -> u64 {
        self.0.member.ids.member
    }

    /// Returns a member's metrics of the last hours as JSON. None if it does not respond or does not
    /// publish any.
    pub async fn history(&self, member: u64) -> Option<Bytes> {
        let others: Vec<u64> = self.0.member.roster.others().iter().map(|other| other.id).collect();
        let own = self.own_id();
        if member != own && !others.contains(&member) {
            return None;
        }
        let place = {
            let mut histories = self.0.histories.lock();
            histories.retain(|id, _| *id == own || others.contains(id));
            Arc::clone(histories.entry(member).or_default())
        };
        let shared = Arc::clone(&self.0);
        kept(&place, async move {
            if member == own {
                return Some(json(&shared.history.lock().json()));
            }
            let answer = shared.member.reach.ask_figures(member, Figures::History).await?;
            let is_fit = answer.len() <= DOCUMENT_BYTES_MAX && history::is_one(&answer);
            is_fit.then_some(answer)
        })
        .await
    }

    /// Returns the document as JSON, at most a second old. Concurrent readers share one evaluation.
    pub async fn json(&self) -> Bytes {
        self.made().await.0
    }

    async fn made(&self) -> (Bytes, Health) {
        let shared = Arc::clone(&self.0);
        let make = async move {
            let document = shared.document().await;
            (json(&document), document.health)
        };
        kept(&self.0.made, make).await
    }

    /// Returns the peers' documents by id, at most a second old; null for peers that do not respond.
    pub async fn of_others(&self) -> Bytes {
        self.asked().await.0
    }

    async fn asked(&self) -> (Bytes, Vec<Health>) {
        let shared = Arc::clone(&self.0);
        let ask = async move {
            let documents = shared.documents_of_others().await;
            let json = json(&documents);
            (json, documents.into_values().flatten().map(|document| document.health).collect())
        };
        kept(&self.0.of_others, ask).await
    }

    /// Returns one sentence about the health of all members that respond.
    pub async fn health(&self) -> String {
        let ((_, own), (_, others)) = (self.made().await, self.asked().await);
        health::of_cluster(&own, &others).text
    }
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Kept { last: sync::Mutex::default(), running: SharedEvaluation::default() }
    }
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("strings and numbers are JSON").into()
}

/// Returns the cached value, or evaluates `make` once for all concurrent callers. A slow evaluation is as
/// fresh as any when it completes, so its waiters do not evaluate again one after another.
async fn kept<T>(place: &Arc<Kept<T>>, make: impl Future<Output = T> + Send + 'static) -> T
where
    T: Clone + Send + Sync + 'static,
{
    if let Some((at, made)) = &*place.last.lock()
        && at.elapsed() < KEPT
    {
        return made.clone();
    }
    let start = || {
        let place = Arc::clone(place);
        async move {
            let made = make.await;
            *place.last.lock() = Some((Instant::now(), made.clone()));
            made
        }
        .boxed()
    };
    let made = place.running.join(start);
    made.await
}

/// Milliseconds since the epoch by this machine's clock.
fn clock_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// Minimum clock offset of a document's sender. The document was built at most [`KEPT`] before the request,
/// since it may be cached, and before the response.
fn clock_off_ms(of: i64, asked: i64, answered: i64) -> i64 {
    let earliest = asked - i64::try_from(KEPT.as_millis()).unwrap_or_default();
    (of - answered).max(0) + (of - earliest).min(0)
}

async fn follow(shared: Weak<StatusShared>) {
    let mut turns = tokio::time::interval(Duration::from_secs(history::EVERY_S));
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        let document = shared.document().await;
        let slowest = shared.member.metrics.sync_slowest_us.swap(0, Ordering::Relaxed);
        shared.history.lock().push(document, slowest);
    }
}

fn hex(id: u64) -> String {
    format!("{id:x}")
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

/// Parses a peer's document, dropping any claims about other members. None if it cannot be parsed.
fn read(json: &[u8], id: u64, asked: i64, answered: i64, asked_by: &str) -> Option<Document> {
    let mut document = serde_json::from_slice::<Document>(json).ok()?;
    // Each member shows client names only on its own port, to authorized readers.
    document.top = None;
    document.id = hex(id);
    // Members of an older version do not send their clock.
    let clock = i64::try_from(document.now_ms).ok().filter(|clock| *clock > 0);
    document.clock_off_ms = clock.map(|clock| clock_off_ms(clock, asked, answered));
    health::compare_clock(&mut document, asked_by);
    Some(document)
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
        let (elections_hour, syncs, quota_full_s) = {
            let history = self.history.lock();
            let full = history.full_in_s(unsigned(member.limits.quota_bytes));
            (history.elections_hour(), history.slowest_syncs_us().collect::<Vec<_>>(), full)
        };
        let mut document = Document {
            now_ms: unsigned(clock_ms()),
            clock_off_ms: None,
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
            elections_hour,
            sync_slowest_us: syncs.iter().max().copied().unwrap_or_default(),
            syncs_slow: syncs.iter().filter(|took| **took > health::SYNC_US).count() as u64,
            quota_full_s,
            certificates: self.certificates(),
            slow_calls: member.metrics.calls.slow_calls(),
            health: Health::default(),
        };
        document.health = health::of(&document);
        document
    }

    fn certificates(&self) -> Vec<CertificateEnd> {
        let now = clock_ms() / 1000;
        let end = |(port, end): (&str, i64)| CertificateEnd { port: port.to_owned(), ends_s: end - now };
        self.certificates.ends().into_iter().map(end).collect()
    }

    /// Returns the seconds since a member's link broke.
    fn down_s(&self, id: u64, is_linked: bool) -> Option<u64> {
        let mut down = self.down.lock();
        if is_linked {
            down.remove(&id);
            return None;
        }
        // Forget removed members.
        down.retain(|id, _| self.member.roster.members().iter().any(|member| member.id == *id));
        Some(down.entry(id).or_insert_with(Instant::now).elapsed().as_secs())
    }

    async fn documents_of_others(&self) -> HashMap<String, Option<Document>> {
        let others = self.member.roster.others();
        let bytes_max = DOCUMENT_BYTES_MAX.min(DOCUMENTS_BYTES_MAX / others.len().max(1));
        let asked_by = self.own_name();
        let asked = others.iter().take(LISTED_MAX).map(|other| async {
            let asked = clock_ms();
            let answer = self.member.reach.ask_figures(other.id, Figures::Now).await;
            let answered = clock_ms();
            let document = answer.filter(|json| json.len() <= bytes_max);
            let document = document.and_then(|json| read(&json, other.id, asked, answered, &asked_by));
            (hex(other.id), document)
        });
        join_all(asked).await.into_iter().collect()
    }

    fn own_name(&self) -> String {
        let id = self.member.ids.member;
        let members = self.member.members().unwrap_or_default();
        members.into_iter().find(|one| one.id == id).map_or_else(|| hex(id), |one| one.name)
    }

    async fn members(&self, status: &Status) -> Vec<MemberStatus> {
        let mut members = Vec::new();
        // The roster does not learn the names that members publish when they start.
        let published = self.member.members().unwrap_or_default();
        let published = |id| published.iter().find(|one| one.id == id && !one.name.is_empty());
        let trips = self.member.metrics.round_trips.lock().clone();
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
                down_s: if is_self { None } else { self.down_s(one.id, linked.is_some()) },
                round_trip_us: linked.and(trips.get(&one.id)).map(|trip| trip.as_micros() as u64),
                lag: None,
            });
        }
        // A stuck peer must not delay the whole document.
        let lags = async {
            for (at, one) in self.member.roster.members().iter().take(LISTED_MAX).enumerate() {
                if let Some(listed) = members.get_mut(at).filter(|listed| listed.id == hex(one.id)) {
                    listed.lag = self.lag(one.id, status).await;
                }
            }
        };
        let _later = tokio::time::timeout(PROGRESS_TIMEOUT, lags).await;
        members
    }

    /// Lag of a member in entries: committed but not applied for this member, unacknowledged for a peer.
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
        let ids: Vec<String> = self.member.roster.others().iter().map(|other| hex(other.id)).collect();
        let others = |count: &dyn Fn(String) -> Option<u64>| ids.iter().cloned().filter_map(count).sum();
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
            leases_expired: metrics.leases.expired.get(),
            snapshots_sent: others(&|id| metrics.snapshots.sent.get(&To { To: id }).map(|it| it.get())),
            snapshots_received: others(&|id| {
                metrics.snapshots.received.get(&From { From: id }).map(|it| it.get())
            }),
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
            compacted_s: Some(member.metrics.disk.compaction_last.get())
                .filter(|at| *at > 0)
                .map(|at| unsigned(clock_ms() / 1000 - at)),
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_takes_longer_than_it_is_kept_is_made_once_for_all_that_wait() {
        let (place, made) = (Arc::<Kept<u32>>::default(), Arc::new(AtomicU32::new(0)));
        let reader = || {
            let made = Arc::clone(&made);
            kept(&place, async move {
                let number = made.fetch_add(1, Ordering::Relaxed) + 1;
                tokio::time::sleep(3 * KEPT).await;
                number
            })
        };
        // A reader that leaves does not make the remaining ones start over.
        let mut first = Box::pin(reader());
        assert!((&mut first).now_or_never().is_none());
        let mut others = Box::pin(join_all((0..1000).map(|_| reader())));
        assert!((&mut others).now_or_never().is_none());
        drop(first);
        assert!(others.await.iter().all(|it| *it == 1), "{made:?} made");
        tokio::time::sleep(KEPT).await;
        assert_eq!(reader().await, 2);
    }

    #[test]
    fn a_member_speaks_for_itself_alone() {
        let of = |json: &str| read(json.as_bytes(), 0x2a, 5000, 5010, "m1");
        for garbage in ["", "\u{0}", "[]x", "{\"uptime_ms\":-1}", "{\"members\":7}", "{\"calls\":[{}]}"] {
            assert!(of(garbage).is_none(), "{garbage}");
        }
        // An older version: no clock. A newer one: a field that is not known.
        for other in ["{}", "{\"uptime_ms\":5,\"new\":[1]}"] {
            let document = of(other).unwrap();
            assert_eq!((document.clock_off_ms, document.health.findings.len()), (None, 0));
        }
        let hostile = r#"{"id":"1","now_ms":900000,"top":{"clients":[],"prefixes":[]},"clock_off_ms":1}"#;
        let document = of(hostile).unwrap();
        assert_eq!((document.id.as_str(), document.top.is_none()), ("2a", true));
        assert_eq!((document.clock_off_ms, document.health.findings.len()), (Some(894_990), 1));
        assert!(of(r#"{"now_ms":18446744073709551615}"#).unwrap().clock_off_ms.is_none());
    }

    #[test]
    fn a_clock_is_off_by_what_the_way_and_the_second_do_not_explain() {
        for (of, asked, answered, wanted) in [
            (10_000, 10_000, 10_010, 0),
            (9_001, 10_000, 10_010, 0),
            (10_010, 10_000, 10_010, 0),
            (12_010, 10_000, 10_010, 2000),
            (7_000, 10_000, 10_010, -2000),
        ] {
            assert_eq!(clock_off_ms(of, asked, answered), wanted, "{of}");
        }
    }
}
