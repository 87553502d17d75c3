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
mod tests;
