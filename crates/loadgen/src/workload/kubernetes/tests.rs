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
    let all = [ObjectKind::Lease, ObjectKind::Node, ObjectKind::Pod, ObjectKind::Slice, ObjectKind::Event];
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
