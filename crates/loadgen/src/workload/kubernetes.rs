//! What Kubernetes' API servers ask of the store, for a cluster of so many nodes.
//!
//! * Objects are keys below `PREFIX/RESOURCE/NAMESPACE/NAME`, as the API server's `etcd3` storage has them:
//!   leases of nodes, nodes, pods, events.
//! * A write is a transaction on the condition that the object is of the revision that is known; if not, the
//!   transaction returns the object, and the write is tried again on it.
//! * Events are put with a lease, which so many of them share.
//! * Lists are read in pages, all at the revision of the first.
//!
//! Numbers that are published (Kubernetes documentation, "Considerations for large clusters", "Leases",
//! "Node status"; flags of kube-apiserver): at most 5,000 nodes and 150,000 pods, so 30 pods per node; a node
//! renews its lease every 10 s and reports its status every 5 minutes; pages of 500; events last an hour,
//! 1,000 of them share a lease. Sizes of objects and the churn of pods are assumptions.
//!
//! Must not depend on connections or time.

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// The names of [`KubernetesOperation`]s, in their order.
pub const OPERATIONS: [&str; 7] = [
    "Renew node lease",
    "Update pod",
    "Update node",
    "Create or delete pod",
    "Create event",
    "Get pod",
    "List pods",
];
/// client-go's pages.
pub const PAGE: i64 = 500;
pub const PODS_PER_NODE: u64 = 30;
/// kube-apiserver's `--event-ttl`.
pub const EVENT_SECONDS: i64 = 3600;
/// kube-apiserver's `--lease-max-object-count`.
pub const EVENTS_PER_LEASE: u64 = 1000;
/// Resources that each API server watches here.
pub const RESOURCES: [&str; 4] = ["leases", "minions", "pods", "events"];

/// Operations of each kind per second and node, times 3,000: a lease every 10 s, a status every 300 s. A pod
/// of 30 is replaced each 5 minutes, with four updates and ten events each time.
const SHARES: [u32; OPERATIONS.len()] = [300, 1200, 10, 600, 3000, 600, 1];

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubernetesOperation {
    RenewLease,
    UpdatePod,
    UpdateNode,
    /// Whichever of both its state allows.
    CreateOrDeletePod,
    CreateEvent,
    GetPod,
    ListPods,
}

const ALL: [KubernetesOperation; OPERATIONS.len()] = [
    KubernetesOperation::RenewLease,
    KubernetesOperation::UpdatePod,
    KubernetesOperation::UpdateNode,
    KubernetesOperation::CreateOrDeletePod,
    KubernetesOperation::CreateEvent,
    KubernetesOperation::GetPod,
    KubernetesOperation::ListPods,
];

/// See the module's head.
#[derive(Clone, Debug)]
pub struct Kubernetes {
    pub nodes: u64,
    pub pods: u64,
    /// API servers, each of which watches every resource.
    pub api_servers: usize,
    pub prefix: Bytes,
    pub seed: u64,
    /// The objects are created, once each, instead of used.
    loading: bool,
    state: Arc<ObjectStates>,
}

/// What all callers know.
#[derive(Debug)]
struct ObjectStates {
    /// Mod revisions; 0: the object does not exist, as far as is known.
    leases: Vec<AtomicI64>,
    nodes: Vec<AtomicI64>,
    pods: Vec<AtomicI64>,
    events: AtomicU64,
    /// Acknowledged writes, each of which every API server's watcher of the resource receives.
    written: AtomicU64,
    received: AtomicU64,
}

/// An object that may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    kind: ObjectKind,
    number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectKind {
    Lease,
    Node,
    Pod,
    Event,
}

/// One operation with what it needs.
#[derive(Clone, Debug, PartialEq)]
pub enum KubernetesStep {
    /// Writes the value.
    Write(Object, Bytes),
    /// Writes the value if the object does not exist, and deletes it if it does.
    Toggle(Object, Bytes),
    /// A new event, with a lease.
    Event(Object, Bytes),
    Get(RangeRequest),
    /// The first page.
    List(RangeRequest),
}

impl Kubernetes {
    pub fn new(nodes: u64, pods: u64, api_servers: usize, prefix: Bytes, seed: u64) -> Self {
        let unknown = |count: u64| (0..count).map(|_| AtomicI64::new(0)).collect();
        let state = ObjectStates {
            leases: unknown(nodes),
            nodes: unknown(nodes),
            pods: unknown(pods),
            events: AtomicU64::new(0),
            written: AtomicU64::new(0),
            received: AtomicU64::new(0),
        };
        Self { nodes, pods, api_servers, prefix, seed, loading: false, state: Arc::new(state) }
    }

    /// Creates all objects, as many operations as [`Self::objects`] says, without watchers.
    pub fn load_phase(&self) -> Self {
        Self { loading: true, api_servers: 0, ..self.clone() }
    }

    pub fn objects(&self) -> u64 {
        2 * self.nodes + self.pods
    }

    /// Objects that are known to exist.
    pub fn existing(&self) -> u64 {
        let ObjectStates { leases, nodes, pods, .. } = &*self.state;
        let all = leases.iter().chain(nodes).chain(pods);
        all.filter(|revision| revision.load(Relaxed) > 0).count() as u64
    }

    pub fn operation(&self, position: u64) -> KubernetesOperation {
        choose(&mut SmallRng::seed_from_u64(self.seed ^ position))
    }

    pub fn step(&self, position: u64) -> KubernetesStep {
        let mut random = SmallRng::seed_from_u64(self.seed ^ position);
        if self.loading {
            let (kind, number) = match position {
                at if at < self.nodes => (ObjectKind::Lease, at),
                at if at < 2 * self.nodes => (ObjectKind::Node, at - self.nodes),
                at => (ObjectKind::Pod, at - 2 * self.nodes),
            };
            return KubernetesStep::Write(Object { kind, number }, value(kind, &mut random));
        }
        let operation = choose(&mut random);
        let mut any = |kind, count| (Object { kind, number: random.random_range(0..count) }, kind);
        match operation {
            KubernetesOperation::RenewLease
            | KubernetesOperation::UpdatePod
            | KubernetesOperation::UpdateNode => {
                let (object, kind) = match operation {
                    KubernetesOperation::RenewLease => any(ObjectKind::Lease, self.nodes),
                    KubernetesOperation::UpdateNode => any(ObjectKind::Node, self.nodes),
                    _ => any(ObjectKind::Pod, self.pods),
                };
                KubernetesStep::Write(object, value(kind, &mut random))
            }
            KubernetesOperation::CreateOrDeletePod => {
                let (object, kind) = any(ObjectKind::Pod, self.pods);
                KubernetesStep::Toggle(object, value(kind, &mut random))
            }
            KubernetesOperation::CreateEvent => {
                let number = self.state.events.fetch_add(1, Relaxed);
                KubernetesStep::Event(
                    Object { kind: ObjectKind::Event, number },
                    value(ObjectKind::Event, &mut random),
                )
            }
            KubernetesOperation::GetPod => {
                let (object, _) = any(ObjectKind::Pod, self.pods);
                KubernetesStep::Get(RangeRequest { key: self.key(object), ..Default::default() })
            }
            KubernetesOperation::ListPods => {
                let (key, range_end) = self.resource("pods");
                KubernetesStep::List(RangeRequest { key, range_end, limit: PAGE, ..Default::default() })
            }
        }
    }

    /// The mod revision of an object, as far as is known; 0 if it does not exist.
    pub fn revision(&self, object: Object) -> i64 {
        self.slot(object).map_or(0, |slot| slot.load(Relaxed))
    }

    /// An object was found at this revision, 0 if it was not.
    pub fn found(&self, object: Object, revision: i64) {
        if let Some(slot) = self.slot(object) {
            slot.store(revision, Relaxed);
        }
    }

    /// A write was acknowledged: the object is at this revision now, 0 if it was deleted.
    pub fn wrote(&self, object: Object, revision: i64) {
        self.found(object, revision);
        self.state.written.fetch_add(1, Relaxed);
    }

    /// Events that watchers should receive, and those that they received.
    pub fn events(&self) -> (u64, u64) {
        let ObjectStates { written, received, .. } = &*self.state;
        (written.load(Relaxed) * self.api_servers as u64, received.load(Relaxed))
    }

    pub fn received(&self, events: u64) {
        self.state.received.fetch_add(events, Relaxed);
    }

    /// Forgets the writes of the load phase, which no watcher saw.
    pub fn begin_counting(&self) {
        self.state.written.store(0, Relaxed);
        self.state.received.store(0, Relaxed);
    }

    /// The first key of a resource, and the first after all of them.
    pub fn resource(&self, resource: &str) -> (Bytes, Bytes) {
        let bound = |last: &[u8]| [&self.prefix[..], resource.as_bytes(), last].concat().into();
        (bound(b"/"), bound(b"0"))
    }

    /// Puts, on the condition that the object is of a revision; returns it if it is not.
    pub fn put(&self, object: Object, revision: i64, value: Bytes, lease: i64) -> TxnRequest {
        let put = PutRequest { key: self.key(object), value, lease, ..Default::default() };
        self.conditional(object, revision, Request::RequestPut(put))
    }

    /// Deletes, on the same condition.
    pub fn delete(&self, object: Object, revision: i64) -> TxnRequest {
        let delete = DeleteRangeRequest { key: self.key(object), ..Default::default() };
        self.conditional(object, revision, Request::RequestDeleteRange(delete))
    }

    fn conditional(&self, object: Object, revision: i64, write: Request) -> TxnRequest {
        let op = |request| RequestOp { request: Some(request) };
        let key = self.key(object);
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::ModRevision(revision)),
            ..Default::default()
        };
        let read = RangeRequest { key, ..Default::default() };
        TxnRequest {
            compare: vec![compare],
            success: vec![op(write)],
            failure: vec![op(Request::RequestRange(read))],
        }
    }

    fn key(&self, Object { kind, number }: Object) -> Bytes {
        let name = match kind {
            ObjectKind::Lease => format!("leases/kube-node-lease/node-{number:05}"),
            ObjectKind::Node => format!("minions/node-{number:05}"),
            ObjectKind::Pod => format!("pods/namespace-{:03}/pod-{number:06}", number % 100),
            ObjectKind::Event => format!("events/namespace-{:03}/pod-{number:012x}", number % 100),
        };
        [&self.prefix[..], name.as_bytes()].concat().into()
    }

    fn slot(&self, Object { kind, number }: Object) -> Option<&AtomicI64> {
        let ObjectStates { leases, nodes, pods, .. } = &*self.state;
        match kind {
            ObjectKind::Lease => leases.get(number as usize),
            ObjectKind::Node => nodes.get(number as usize),
            ObjectKind::Pod => pods.get(number as usize),
            ObjectKind::Event => None,
        }
    }
}

fn choose(random: &mut SmallRng) -> KubernetesOperation {
    let mut rest = random.random_range(0..SHARES.iter().sum::<u32>());
    for (operation, share) in ALL.into_iter().zip(SHARES) {
        if rest < share {
            return operation;
        }
        rest -= share;
    }
    unreachable!("the rest is below the sum of all shares")
}

/// Random bytes: objects are protobuf and compress less than text.
fn value(kind: ObjectKind, random: &mut SmallRng) -> Bytes {
    let bytes = match kind {
        ObjectKind::Lease => 350,
        ObjectKind::Node => 8 << 10,
        ObjectKind::Pod => 4 << 10,
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
            let KubernetesStep::Write(object, value) = load.step(position) else { panic!("{position}") };
            assert!(keys.insert(load.key(object)) && !value.is_empty());
            assert_eq!(load.revision(object), 0);
            load.wrote(object, position as i64 + 1);
        }
        assert_eq!((keys.len(), cluster.existing(), cluster.objects()), (64, 64, 64));
        cluster.begin_counting();
        assert_eq!(cluster.events(), (0, 0));
    }

    #[test]
    fn operations_have_their_shares_and_their_kind() {
        let cluster = cluster();
        let mut counts = [0_u32; OPERATIONS.len()];
        for position in 0..50_000 {
            let operation = cluster.operation(position);
            counts[operation as usize] += 1;
            let fits = match (operation, cluster.step(position)) {
                (KubernetesOperation::RenewLease, KubernetesStep::Write(object, _)) => {
                    object.kind == ObjectKind::Lease
                }
                (KubernetesOperation::UpdateNode, KubernetesStep::Write(object, _)) => {
                    object.kind == ObjectKind::Node
                }
                (KubernetesOperation::UpdatePod, KubernetesStep::Write(object, _)) => {
                    object.kind == ObjectKind::Pod
                }
                (KubernetesOperation::CreateOrDeletePod, KubernetesStep::Toggle(object, _)) => {
                    object.kind == ObjectKind::Pod
                }
                (KubernetesOperation::CreateEvent, KubernetesStep::Event(object, _)) => {
                    object.kind == ObjectKind::Event
                }
                (KubernetesOperation::GetPod, KubernetesStep::Get(range)) => range.range_end.is_empty(),
                (KubernetesOperation::ListPods, KubernetesStep::List(range)) => range.limit == PAGE,
                _ => false,
            };
            assert!(fits, "{operation:?}");
        }
        let all: u32 = SHARES.iter().sum();
        for (count, share) in counts.into_iter().zip(SHARES) {
            let expected = f64::from(share) / f64::from(all) * 50_000.0;
            assert!((f64::from(count) - expected).abs() < 5.0 * expected.sqrt() + 1.0, "{counts:?}");
        }
    }

    #[test]
    fn keys_lie_within_the_range_of_their_resource() {
        let cluster = cluster();
        let kinds = [ObjectKind::Lease, ObjectKind::Node, ObjectKind::Pod, ObjectKind::Event];
        for (kind, resource) in kinds.into_iter().zip(RESOURCES) {
            let key = cluster.key(Object { kind, number: 1 });
            let (first, end) = cluster.resource(resource);
            assert!(first < key && key < end, "{key:?}");
        }
    }

    #[test]
    fn a_write_names_the_revision_that_it_replaces() {
        let cluster = cluster();
        let object = Object { kind: ObjectKind::Pod, number: 3 };
        cluster.wrote(object, 9);
        let txn = cluster.put(object, cluster.revision(object), "v".into(), 5);
        assert_eq!(txn.compare[0].target_union, Some(TargetUnion::ModRevision(9)));
        let Some(Request::RequestPut(put)) = &txn.success[0].request else { panic!() };
        assert_eq!((put.lease, &put.key), (5, &txn.compare[0].key));
        cluster.wrote(object, 0);
        assert_eq!((cluster.revision(object), cluster.events()), (0, (6, 0)));
    }
}
