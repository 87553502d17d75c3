//! The load of Kubernetes' API servers on the store, for a cluster of a given number of nodes.
//!
//! * Objects are keys below `PREFIX/RESOURCE/NAMESPACE/NAME`, like in the API server's `etcd3` storage: node
//!   leases, nodes, pods, endpoint slices, events.
//! * A write is a transaction on the condition that the object has the known revision; otherwise, the
//!   transaction returns the object, and the write is retried on it.
//! * Rates follow from the number of nodes and replaced pods ([`Kubernetes::rates`]). The oldest pod is
//!   deleted, a new one has a new name. Nodes renew their leases round-robin.
//! * Time is that of the cluster: a fixed number of operations makes a second of it. At its rate it equals
//!   real time.
//!
//! `docs/loadgen/kubernetes.md` has the sources of the numbers. Independent of connections and time.

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names of [`KubernetesOperation`]s, in order.
pub const OPERATIONS: [&str; 12] = [
    "Renew node lease",
    "Update node",
    "Create pod",
    "Update pod",
    "Delete pod",
    "Update endpoint slice",
    "Create event",
    "Get pod",
    "List pods by pages",
    "List pods by stream",
    "Start API server",
    "Compact",
];
/// Page size of client-go.
const PAGE: i64 = 500;
/// Page size of an API server that fills its cache.
pub const CACHE_PAGE: i64 = 10_000;
pub const PODS_PER_NODE: u64 = 30;
/// Pods replaced per second and node: 500 per second on 100,000 nodes.
pub const CHURN_PER_NODE: f64 = 0.005;
/// kube-apiserver's `--event-ttl`.
pub const EVENT_SECONDS: i64 = 3600;
/// kube-apiserver's `--lease-max-object-count`.
pub const EVENTS_PER_LEASE: u64 = 1000;
/// Resources that each API server watches.
pub const RESOURCES: [&str; 5] = ["leases", "minions", "pods", "endpointslices", EVENTS];
/// The resource with expiring objects.
pub const EVENTS: &str = "events";

/// `--max-endpoints-per-slice` of kube-controller-manager.
const ENDPOINTS_PER_SLICE: u64 = 100;
/// Writes and reads for each replaced pod.
const UPDATES_PER_POD: f64 = 4.0;
const EVENTS_PER_POD: f64 = 8.0;
const READS_PER_POD: f64 = 2.0;
/// Interval of each kind in seconds of the cluster; each API server compacts.
const LISTS_APART: f64 = 300.0;
const STARTS_APART: f64 = 600.0;
const COMPACTIONS_APART: f64 = 300.0;

/// Operations of an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubernetesOperation {
    RenewLease,
    UpdateNode,
    CreatePod,
    UpdatePod,
    DeletePod,
    UpdateSlice,
    CreateEvent,
    GetPod,
    PageThroughPods,
    StreamPods,
    StartApiServer,
    Compact,
}

use KubernetesOperation as Op;

/// Operations with a rate, in the order of [`Kubernetes::rates`]; the remaining ones have fixed times.
const DRAWN: [Op; 8] = [
    Op::RenewLease,
    Op::UpdateNode,
    Op::CreatePod,
    Op::UpdatePod,
    Op::DeletePod,
    Op::UpdateSlice,
    Op::CreateEvent,
    Op::GetPod,
];

/// A simulated cluster.
#[derive(Clone, Debug)]
pub struct Kubernetes {
    pub nodes: u64,
    pub pods: u64,
    /// Pods replaced per second.
    pub churn: f64,
    /// API servers, each of which watches every resource.
    pub api_servers: usize,
    pub prefix: Bytes,
    pub seed: u64,
    /// True to create each object once instead of using them.
    loading: bool,
    state: Arc<ObjectStates>,
}

/// Shared state of all callers.
#[derive(Debug)]
struct ObjectStates {
    /// Known mod revisions; 0 if the object does not exist. A pod is at its number, modulo.
    leases: Vec<AtomicI64>,
    nodes: Vec<AtomicI64>,
    pods: Vec<AtomicI64>,
    slices: Vec<AtomicI64>,
    renewals: AtomicU64,
    events: AtomicU64,
    /// Range of the existing pod numbers: start, end.
    pods_deleted: AtomicU64,
    pods_created: AtomicU64,
    /// Watchers by API server and resource.
    watchers: Vec<Mutex<WatcherState>>,
    /// Compactions known to each API server: their number, and the revision of its next one.
    compactors: Vec<(AtomicI64, AtomicI64)>,
}

/// State of a resource's watcher at an API server.
#[derive(Debug, Default)]
struct WatcherState {
    /// Revision of the last relisting; 0 if there was none.
    listed: i64,
    /// Revisions of writes acknowledged since it started to list.
    since_listing: Option<Vec<i64>>,
    counts: EventCounts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Events of acknowledged writes.
    pub expected: u64,
    pub received: u64,
    /// Events received after the same or a later revision.
    pub repeated: u64,
}

impl EventCounts {
    /// Returns the delivery failures with their counts.
    pub fn failures(&self) -> Vec<(&'static str, u64)> {
        let all = [
            ("events were not received by their watchers", self.expected.saturating_sub(self.received)),
            ("events were received again, or after newer ones", self.repeated),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    kind: ObjectKind,
    number: u64,
}

/// Kinds, in the order of [`RESOURCES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectKind {
    Lease,
    Node,
    Pod,
    Slice,
    Event,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Create; no effect if it exists.
    Create(Bytes),
    /// Update; no effect if it does not exist.
    Update(Bytes),
    Delete,
}

/// An operation with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum KubernetesStep {
    Write(Object, Change),
    /// Create an event, with a lease.
    Event(Object, Bytes),
    Get(RangeRequest),
    /// List the first page.
    List(RangeRequest),
    Stream(RangeRequest),
    /// List every resource and watch it from there.
    StartApiServer,
    /// Compact as the API server with this number.
    Compact(usize),
}

impl Kubernetes {
    pub fn new(nodes: u64, pods: u64, api_servers: usize, prefix: Bytes, seed: u64) -> Self {
        let unknown = |count: u64| (0..count).map(|_| AtomicI64::new(0)).collect();
        let state = ObjectStates {
            leases: unknown(nodes),
            nodes: unknown(nodes),
            // Some are created before others are deleted.
            pods: unknown(pods + pods.clamp(64, 1 << 16)),
            slices: unknown(pods.div_ceil(ENDPOINTS_PER_SLICE)),
            renewals: AtomicU64::new(0),
            events: AtomicU64::new(0),
            pods_deleted: AtomicU64::new(0),
            pods_created: AtomicU64::new(pods),
            watchers: (0..api_servers * RESOURCES.len()).map(|_| Mutex::default()).collect(),
            compactors: (0..api_servers.max(1)).map(|_| Default::default()).collect(),
        };
        let churn = nodes as f64 * CHURN_PER_NODE;
        Self { nodes, pods, churn, api_servers, prefix, seed, loading: false, state: Arc::new(state) }
    }

    /// Returns a load that creates all objects, [`Self::objects`] operations, without watchers.
    pub fn load_phase(&self) -> Self {
        Self { loading: true, api_servers: 0, ..self.clone() }
    }

    pub fn objects(&self) -> u64 {
        2 * self.nodes + self.pods + self.state.slices.len() as u64
    }

    /// Returns the rate of each operation of [`DRAWN`], per second of the cluster.
    fn rates(&self) -> [f64; DRAWN.len()] {
        let (nodes, churn) = (self.nodes as f64, self.churn);
        // Every 10 s; every 5 minutes, and on changes.
        let (renewals, statuses) = (nodes / 10.0, nodes / 300.0 + nodes / 1000.0);
        let [updates, events, reads] =
            [UPDATES_PER_POD, EVENTS_PER_POD, READS_PER_POD].map(|each| each * churn);
        [renewals, statuses, churn, updates, churn, churn, events, reads]
    }

    /// Returns the operations per second of the cluster.
    pub fn rate(&self) -> f64 {
        self.rates().iter().sum()
    }

    /// Returns the number of the periodic operation at a position, if any.
    fn nth(&self, position: u64, seconds_apart: f64, first_after: f64) -> Option<u64> {
        let apart = ((self.rate() * seconds_apart) as u64).max(20);
        let after = position.checked_sub((apart as f64 * first_after) as u64)?;
        after.is_multiple_of(apart).then_some(after / apart)
    }

    pub fn operation(&self, position: u64) -> Op {
        let rare = [
            (LISTS_APART, 0.25, Op::PageThroughPods),
            (LISTS_APART, 0.75, Op::StreamPods),
            (STARTS_APART, 0.3, Op::StartApiServer),
        ];
        let is_here = |&&(apart, first, _): &&(f64, f64, Op)| self.nth(position, apart, first).is_some();
        if let Some((.., operation)) = rare.iter().find(is_here) {
            return *operation;
        }
        if self.compactor(position).is_some() {
            return Op::Compact;
        }
        // Multiples of the golden ratio are spread so evenly that as many pods are created as deleted.
        let drawn = (self.seed.wrapping_add(position)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut rest = drawn as f64 / 2_f64.powi(64) * self.rate();
        for (operation, rate) in DRAWN.into_iter().zip(self.rates()) {
            if rest < rate {
                return operation;
            }
            rest -= rate;
        }
        // Reached through rounding.
        Op::RenewLease
    }

    fn random(&self, position: u64) -> SmallRng {
        SmallRng::seed_from_u64(self.seed ^ position)
    }

    /// Returns the API server that compacts at a position.
    fn compactor(&self, position: u64) -> Option<usize> {
        let servers = self.state.compactors.len();
        let nth = self.nth(position, COMPACTIONS_APART / servers as f64, 1.0)?;
        Some((nth % servers as u64) as usize)
    }

    pub fn step(&self, position: u64) -> KubernetesStep {
        let mut random = self.random(position);
        if self.loading {
            let [from_pods, from_slices] = [2 * self.nodes, 2 * self.nodes + self.pods];
            let (kind, number) = match position {
                at if at < self.nodes => (ObjectKind::Lease, at),
                at if at < from_pods => (ObjectKind::Node, at - self.nodes),
                at if at < from_slices => (ObjectKind::Pod, at - from_pods),
                at => (ObjectKind::Slice, at - from_slices),
            };
            return KubernetesStep::Write(Object { kind, number }, Change::Create(value(kind, &mut random)));
        }
        let state = &*self.state;
        let operation = self.operation(position);
        let mut update = |kind, number| {
            KubernetesStep::Write(Object { kind, number }, Change::Update(value(kind, &mut random)))
        };
        match operation {
            Op::RenewLease => update(ObjectKind::Lease, state.renewals.fetch_add(1, Relaxed) % self.nodes),
            Op::UpdateNode => update(ObjectKind::Node, position % self.nodes),
            Op::UpdateSlice => update(ObjectKind::Slice, position % state.slices.len() as u64),
            Op::UpdatePod => update(ObjectKind::Pod, self.pod(position).number),
            Op::CreatePod => {
                let number = state.pods_created.fetch_add(1, Relaxed);
                let value = value(ObjectKind::Pod, &mut random);
                KubernetesStep::Write(Object { kind: ObjectKind::Pod, number }, Change::Create(value))
            }
            Op::DeletePod => {
                let number = state.pods_deleted.fetch_add(1, Relaxed);
                KubernetesStep::Write(Object { kind: ObjectKind::Pod, number }, Change::Delete)
            }
            Op::CreateEvent => {
                let number = state.events.fetch_add(1, Relaxed);
                let value = value(ObjectKind::Event, &mut random);
                KubernetesStep::Event(Object { kind: ObjectKind::Event, number }, value)
            }
            Op::GetPod => {
                KubernetesStep::Get(RangeRequest { key: self.key(self.pod(position)), ..Default::default() })
            }
            Op::PageThroughPods => KubernetesStep::List(self.list("pods", PAGE)),
            Op::StreamPods => KubernetesStep::Stream(self.list("pods", 0)),
            Op::StartApiServer => KubernetesStep::StartApiServer,
            Op::Compact => KubernetesStep::Compact(self.compactor(position).unwrap_or(0)),
        }
    }

    /// Chooses an existing pod, except for the oldest and latest ones, which change concurrently.
    fn pod(&self, position: u64) -> Object {
        let [from, to] =
            [&self.state.pods_deleted, &self.state.pods_created].map(|number| number.load(Relaxed));
        let edge = (to.saturating_sub(from) / 4).min(512);
        let number = self.random(!position).random_range(from + edge..(to - edge).max(from + edge + 1));
        Object { kind: ObjectKind::Pod, number }
    }

    pub fn list(&self, resource: &str, limit: i64) -> RangeRequest {
        let (key, range_end) = self.resource(resource);
        RangeRequest { key, range_end, limit, ..Default::default() }
    }

    /// Returns the known mod revision of an object; 0 if it does not exist.
    pub fn revision(&self, object: Object) -> i64 {
        self.slot(object).map_or(0, |slot| slot.load(Relaxed))
    }

    /// Records that an object was found at this revision, or not found if 0.
    pub fn found(&self, object: Object, revision: i64) {
        if let Some(slot) = self.slot(object) {
            slot.store(revision, Relaxed);
        }
    }

    pub fn wrote(&self, object: Object, change: &Change, revision: i64) {
        self.found(object, if *change == Change::Delete { 0 } else { revision });
        for api_server in 0..self.api_servers {
            let mut watcher = self.watcher(api_server, object.kind as usize);
            // A listed object has no event.
            if revision > watcher.listed {
                watcher.counts.expected += 1;
                watcher.since_listing.iter_mut().for_each(|since| since.push(revision));
            }
        }
    }

    fn watcher(&self, api_server: usize, resource: usize) -> MutexGuard<'_, WatcherState> {
        let watcher = &self.state.watchers[api_server * RESOURCES.len() + resource];
        watcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watchers(&self) -> impl Iterator<Item = MutexGuard<'_, WatcherState>> {
        let places =
            (0..self.api_servers).flat_map(|server| (0..RESOURCES.len()).map(move |it| (server, it)));
        places.map(|(api_server, resource)| self.watcher(api_server, resource))
    }

    /// Returns the counts of all watchers. Surplus events of a watcher do not offset missing ones of
    /// another.
    pub fn events(&self) -> EventCounts {
        self.watchers().fold(EventCounts::default(), |all, watcher| {
            let EventCounts { expected, received, repeated } = watcher.counts;
            EventCounts {
                expected: all.expected + expected,
                received: all.received + received.min(expected),
                repeated: all.repeated + repeated,
            }
        })
    }

    /// Records the events received by the watcher of a resource at an API server.
    pub fn received(&self, api_server: usize, resource: usize, events: u64, repeated: u64) {
        let counts = &mut self.watcher(api_server, resource).counts;
        counts.received += events;
        counts.repeated += repeated;
    }

    /// Records that it starts to list the resource, because its next events were compacted.
    pub fn lists(&self, api_server: usize, resource: usize) {
        self.watcher(api_server, resource).since_listing = Some(Vec::new());
    }

    /// Records that it has listed the resource at this revision, and so misses no event up to it.
    pub fn listed_again(&self, api_server: usize, resource: usize, revision: i64) {
        let mut watcher = self.watcher(api_server, resource);
        let since = watcher.since_listing.take().unwrap_or_default();
        let to_come = since.iter().filter(|written| **written > revision).count() as u64;
        watcher.counts.received = watcher.counts.expected - to_come;
        watcher.listed = revision;
    }

    /// Returns the number of watchers that relisted.
    pub fn listed(&self) -> usize {
        self.watchers().filter(|watcher| watcher.listed > 0).count()
    }

    /// Returns the range of a resource's keys.
    pub fn resource(&self, resource: &str) -> (Bytes, Bytes) {
        let bound = |last: &[u8]| [&self.prefix[..], resource.as_bytes(), last].concat().into();
        (bound(b"/"), bound(b"0"))
    }

    /// Returns a transaction that changes the object if it has the revision, and reads it otherwise.
    pub fn transaction(&self, object: Object, revision: i64, change: Change, lease: i64) -> TxnRequest {
        let key = self.key(object);
        // The revision of an existing object must be known.
        let known = if revision == 0 && !matches!(change, Change::Create(_)) { -1 } else { revision };
        let write = match change {
            Change::Create(value) | Change::Update(value) => {
                Request::RequestPut(PutRequest { key: key.clone(), value, lease, ..Default::default() })
            }
            Change::Delete => {
                Request::RequestDeleteRange(DeleteRangeRequest { key: key.clone(), ..Default::default() })
            }
        };
        conditional(key, CompareTarget::Mod, TargetUnion::ModRevision(known), write)
    }

    /// Returns the transaction of an API server before a compaction. All of them use the key
    /// `compact_rev_key`, whose version counts the compactions. The revision is that of its last attempt, 0
    /// for the first.
    pub fn compaction(&self, api_server: usize) -> (TxnRequest, i64) {
        let (count, revision) = &self.state.compactors[api_server];
        let (count, revision) = (count.load(Relaxed), revision.load(Relaxed));
        let (key, value) = (Bytes::from_static(b"compact_rev_key"), revision.to_string().into());
        let put = Request::RequestPut(PutRequest { key: key.clone(), value, ..Default::default() });
        (conditional(key, CompareTarget::Version, TargetUnion::Version(count), put), revision)
    }

    /// Records its response: the key's version (one more than known if it succeeded), and the revision of
    /// the store.
    pub fn compactor_learns(&self, api_server: usize, count: Option<i64>, revision: i64) {
        let (known, next) = &self.state.compactors[api_server];
        known.store(count.unwrap_or(known.load(Relaxed) + 1), Relaxed);
        next.store(revision, Relaxed);
    }

    fn key(&self, Object { kind, number }: Object) -> Bytes {
        let name = match kind {
            ObjectKind::Lease => format!("leases/kube-node-lease/node-{number:06}"),
            ObjectKind::Node => format!("minions/node-{number:06}"),
            ObjectKind::Pod => format!("pods/namespace-{:03}/pod-{number:012x}", number % 100),
            ObjectKind::Slice => {
                format!("endpointslices/namespace-{:03}/service-{number:06}", number % 100)
            }
            ObjectKind::Event => format!("events/namespace-{:03}/pod-{number:012x}", number % 100),
        };
        [&self.prefix[..], name.as_bytes()].concat().into()
    }

    fn slot(&self, Object { kind, number }: Object) -> Option<&AtomicI64> {
        let ObjectStates { leases, nodes, pods, slices, .. } = &*self.state;
        match kind {
            ObjectKind::Lease => leases.get(number as usize),
            ObjectKind::Node => nodes.get(number as usize),
            ObjectKind::Pod => pods.get(number as usize % pods.len()),
            ObjectKind::Slice => slices.get(number as usize),
            ObjectKind::Event => None,
        }
    }
}

/// Returns a transaction that writes the key if the condition holds, and reads it otherwise.
fn conditional(key: Bytes, target: CompareTarget, named: TargetUnion, write: Request) -> TxnRequest {
    let op = |request| RequestOp { request: Some(request) };
    let compare = Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: key.clone(),
        target_union: Some(named),
        ..Default::default()
    };
    let read = RangeRequest { key, ..Default::default() };
    TxnRequest {
        compare: vec![compare],
        success: vec![op(write)],
        failure: vec![op(Request::RequestRange(read))],
    }
}

/// Returns random bytes, the worst case for compression.
fn value(kind: ObjectKind, random: &mut SmallRng) -> Bytes {
    let bytes = match kind {
        ObjectKind::Lease => 550,
        ObjectKind::Node => 15_000,
        ObjectKind::Pod => 4096,
        ObjectKind::Slice => 10_000,
        ObjectKind::Event => 700,
    };
    let mut value = vec![0; bytes];
    random.fill_bytes(&mut value);
    value.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn cluster() -> Kubernetes {
        Kubernetes::new(2, 60, 3, "k/".into(), 7)
    }

    #[test]
    fn the_load_phase_creates_each_object_once() {
        let cluster = cluster();
        let load = cluster.load_phase();
        let mut keys = HashSet::new();
        for position in 0..load.objects() {
            let KubernetesStep::Write(object, Change::Create(value)) = load.step(position) else {
                panic!("{position}")
            };
            assert!(keys.insert(load.key(object)) && !value.is_empty());
            assert_eq!(load.revision(object), 0);
            load.wrote(object, &Change::Create(value), position as i64 + 1);
            assert_eq!(cluster.revision(object), position as i64 + 1);
        }
        assert_eq!((keys.len(), cluster.objects()), (65, 65));
        // There is no watcher yet that could miss an event.
        assert_eq!([load.events(), cluster.events()], [EventCounts::default(); 2]);
    }

    #[test]
    fn rates_follow_from_nodes_and_churn() {
        let rates = |cluster: &Kubernetes| cluster.rates().map(|rate| rate.round() as u64);
        let mut large = Kubernetes::new(100_000, 100, 3, "k/".into(), 7);
        assert_eq!(rates(&large), [10_000, 433, 500, 2000, 500, 500, 4000, 1000]);
        assert_eq!(large.rate().round(), 18_933.0);
        large.churn = 10.0;
        assert_eq!(rates(&large), [10_000, 433, 10, 40, 10, 10, 80, 20]);
    }

    #[test]
    fn operations_have_their_rates_and_their_kind() {
        let cluster = Kubernetes::new(30, 1000, 3, "k/".into(), 7);
        // Two hours of the cluster.
        let positions = (cluster.rate() * 7200.0) as u64;
        let mut counts = [0_u32; OPERATIONS.len()];
        for position in 0..positions {
            let operation = cluster.operation(position);
            counts[operation as usize] += 1;
            let kind = match cluster.step(position) {
                KubernetesStep::Write(object, _) => Some(object.kind),
                _ => None,
            };
            let expected = match operation {
                Op::RenewLease => Some(ObjectKind::Lease),
                Op::UpdateNode => Some(ObjectKind::Node),
                Op::CreatePod | Op::UpdatePod | Op::DeletePod => Some(ObjectKind::Pod),
                Op::UpdateSlice => Some(ObjectKind::Slice),
                _ => None,
            };
            assert_eq!(kind, expected, "{operation:?}");
        }
        for (count, rate) in counts.into_iter().zip(cluster.rates()) {
            let expected = rate * 7200.0;
            assert!((f64::from(count) - expected).abs() < 0.005 * expected + 10.0, "{counts:?}");
        }
        // Every five minutes both lists and each of three API servers' compaction; every ten a start.
        assert_eq!(counts[DRAWN.len()..][..3], [24, 24, 12]);
        assert!((69..=72).contains(&counts[Op::Compact as usize]), "{counts:?}");
    }

    #[test]
    fn every_node_renews_its_lease_in_turn() {
        let cluster = cluster();
        let leases = (0..2000).filter_map(|position| match cluster.step(position) {
            KubernetesStep::Write(Object { kind: ObjectKind::Lease, number }, _) => Some(number),
            _ => None,
        });
        let leases: Vec<_> = leases.collect();
        assert!(leases.len() > 100 && leases.chunks_exact(2).all(|pair| pair == [0, 1]), "{leases:?}");
    }

    #[test]
    fn pods_that_are_read_or_updated_are_among_those_that_exist() {
        let cluster = cluster();
        let mut names = HashSet::new();
        for position in 0..20_000 {
            let KubernetesStep::Write(object @ Object { kind: ObjectKind::Pod, number }, change) =
                cluster.step(position)
            else {
                continue;
            };
            let ObjectStates { pods_deleted, pods_created, .. } = &*cluster.state;
            let (from, to) = (pods_deleted.load(Relaxed), pods_created.load(Relaxed));
            match change {
                Change::Create(_) => assert!(names.insert(cluster.key(object)), "a new name"),
                Change::Update(_) => assert!((from..to).contains(&number), "{from} {number} {to}"),
                Change::Delete => assert_eq!(number + 1, from),
            }
        }
        assert!(names.len() > 400);
    }

    #[test]
    fn keys_lie_within_the_range_of_their_resource() {
        let cluster = cluster();
        let all =
            [ObjectKind::Lease, ObjectKind::Node, ObjectKind::Pod, ObjectKind::Slice, ObjectKind::Event];
        for (kind, resource) in all.into_iter().zip(RESOURCES) {
            assert_eq!(RESOURCES[kind as usize], resource);
            let key = cluster.key(Object { kind, number: 1 });
            let (first, end) = cluster.resource(resource);
            assert!(first < key && key < end, "{key:?}");
        }
    }

    #[test]
    fn a_write_names_the_revision_that_it_replaces() {
        let cluster = cluster();
        let object = Object { kind: ObjectKind::Pod, number: 3 };
        let named = |change| {
            let txn = cluster.transaction(object, cluster.revision(object), change, 5);
            txn.compare[0].target_union.clone()
        };
        let absent = [Change::Create("v".into()), Change::Update("v".into()), Change::Delete].map(named);
        assert_eq!(absent, [0, -1, -1].map(|revision| Some(TargetUnion::ModRevision(revision))));
        cluster.wrote(object, &Change::Create("v".into()), 9);
        assert_eq!(named(Change::Delete), Some(TargetUnion::ModRevision(9)));
        let txn = cluster.transaction(object, 9, Change::Update("v".into()), 5);
        let Some(Request::RequestPut(put)) = &txn.success[0].request else { panic!() };
        assert_eq!((put.lease, &put.key), (5, &txn.compare[0].key));
        cluster.wrote(object, &Change::Delete, 10);
        assert_eq!((cluster.revision(object), cluster.events()), (0, events(6, 0, 0)));
    }

    fn events(expected: u64, received: u64, repeated: u64) -> EventCounts {
        EventCounts { expected, received, repeated }
    }

    #[test]
    fn no_watcher_makes_up_for_what_another_one_or_it_itself_missed() {
        let (cluster, pods) = (cluster(), ObjectKind::Pod as usize);
        let write = |revision| {
            let pod = Object { kind: ObjectKind::Pod, number: 1 };
            cluster.wrote(pod, &Change::Update("v".into()), revision);
        };
        (1..=4).for_each(write);
        cluster.received(0, pods, 4, 2);
        cluster.received(1, pods, 3, 1);
        cluster.received(2, 0, 9, 0);
        assert_eq!((cluster.events(), cluster.listed()), (events(12, 7, 3), 0));
        // While it lists at revision 6, three writes are acknowledged: one was listed, two were not.
        cluster.lists(2, pods);
        [5, 7, 8].into_iter().for_each(write);
        cluster.listed_again(2, pods, 6);
        // A listed write is acknowledged late.
        write(6);
        cluster.received(0, pods, 4, 0);
        cluster.received(1, pods, 4, 0);
        assert_eq!((cluster.events(), cluster.listed()), (events(23, 20, 3), 1));
        cluster.received(2, pods, 1, 0);
        write(9);
        assert_eq!(cluster.events(), events(26, 21, 3), "it misses one of revisions 7 to 9");
    }

    #[test]
    fn an_api_server_compacts_to_the_revision_of_its_last_attempt() {
        let cluster = cluster();
        let asked = |server| {
            let (txn, revision) = cluster.compaction(server);
            (txn.compare[0].target_union.clone(), revision)
        };
        let expected = |count, revision| (Some(TargetUnion::Version(count)), revision);
        assert_eq!(asked(0), expected(0, 0));
        cluster.compactor_learns(0, None, 40);
        // Another API server lost the race, and learns the count.
        cluster.compactor_learns(1, Some(1), 45);
        assert_eq!([asked(0), asked(1), asked(2)], [expected(1, 40), expected(1, 45), expected(0, 0)]);
    }
}
