//! Random histories compared with the naive model: puts, deletes, transactions, compactions, ranges, leases.

use proptest::prelude::*;

use api::etcdserverpb::compare::TargetUnion;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest,
};
use bytes::Bytes;

use super::World;
use super::model::{Model, ModelChange};
use super::world::show_range;
use crate::Response;
use crate::command::{Kind, LeaseExpire, LeaseRenew};

#[derive(Clone, Debug)]
enum Action {
    Change(ModelChange),
    /// The first list if the key has this version, else the second. Some of it is in a nested transaction.
    Txn {
        key: String,
        version: i64,
        success: Vec<ModelChange>,
        failure: Vec<ModelChange>,
        nested: bool,
    },
    Compact(i64),
    Range(RangeRequest),
    Lease(LeaseAction),
}

/// The clock is a number of seconds.
#[derive(Clone, Debug)]
enum LeaseAction {
    Grant(i64, i64),
    Revoke(i64),
    Renew(i64, Vec<i64>),
    Expire(i64, Vec<i64>),
    /// A command of the leader of another term.
    RenewLate(i64, Vec<i64>),
}

/// Few keys, so that operations meet on them.
fn key() -> impl Strategy<Value = String> {
    "[a-d]{1,2}"
}

fn end() -> impl Strategy<Value = String> {
    prop_oneof![3 => Just(String::new()), 3 => key(), 1 => Just("\0".to_owned())]
}

/// Few leases, so that their keys and expiries collide. 0 is none.
fn lease() -> impl Strategy<Value = i64> {
    0..4i64
}

fn lease_action() -> impl Strategy<Value = LeaseAction> {
    let ids = || prop::collection::vec(lease(), 0..4);
    prop_oneof![
        3 => (lease(), 0..5i64).prop_map(|(id, ttl)| LeaseAction::Grant(id, ttl)),
        1 => lease().prop_map(LeaseAction::Revoke),
        2 => (0..20i64, ids()).prop_map(|(now, ids)| LeaseAction::Renew(now, ids)),
        2 => (0..20i64, ids()).prop_map(|(now, ids)| LeaseAction::Expire(now, ids)),
        1 => (0..20i64, ids()).prop_map(|(now, ids)| LeaseAction::RenewLate(now, ids)),
    ]
}

fn change() -> impl Strategy<Value = ModelChange> {
    prop_oneof![
        3 => (key(), "[x-z]{0,3}").prop_map(|(key, value)| ModelChange::Put(key, value, 0)),
        2 => (key(), "[x-z]{0,3}", lease()).prop_map(|(key, value, id)| ModelChange::Put(key, value, id)),
        1 => (key(), end()).prop_map(|(key, end)| ModelChange::Delete(key, end)),
    ]
}

fn bounds() -> impl Strategy<Value = (i64, i64, i64, i64)> {
    let bound = || prop_oneof![4 => Just(0i64), 1 => 1..12i64];
    (bound(), bound(), bound(), bound())
}

fn range() -> impl Strategy<Value = RangeRequest> {
    let sort = prop_oneof![2 => Just((0, 0)), 3 => (1..3i32, 0..5i32)];
    let revision = prop_oneof![2 => Just(0i64), 3 => 1..40i64];
    (key(), end(), revision, -1..4i64, sort, any::<bool>(), bounds()).prop_map(
        |(key, range_end, revision, limit, (sort_order, sort_target), keys_only, bounds)| RangeRequest {
            key: key.into(),
            range_end: range_end.into(),
            revision,
            limit,
            sort_order,
            sort_target,
            keys_only,
            min_mod_revision: bounds.0,
            max_mod_revision: bounds.1,
            min_create_revision: bounds.2,
            max_create_revision: bounds.3,
            ..RangeRequest::default()
        },
    )
}

fn action() -> impl Strategy<Value = Action> {
    let changes = || prop::collection::vec(change(), 0..4);
    prop_oneof![
        6 => change().prop_map(Action::Change),
        3 => (key(), 0..3i64, changes(), changes(), any::<bool>()).prop_map(
            |(key, version, success, failure, nested)| Action::Txn { key, version, success, failure, nested }
        ),
        1 => (0..30i64).prop_map(Action::Compact),
        6 => range().prop_map(Action::Range),
        5 => lease_action().prop_map(Action::Lease),
    ]
}

fn ops(changes: &[ModelChange], nested: bool) -> Vec<RequestOp> {
    let mut ops: Vec<_> = changes.iter().map(|change| RequestOp { request: Some(request(change)) }).collect();
    if nested && ops.len() > 1 {
        let success = ops.split_off(1);
        ops.push(RequestOp {
            request: Some(Request::RequestTxn(TxnRequest { success, ..TxnRequest::default() })),
        });
    }
    ops
}

fn request(change: &ModelChange) -> Request {
    match change.clone() {
        ModelChange::Put(key, value, lease) => Request::RequestPut(PutRequest {
            key: key.into(),
            value: value.into(),
            lease,
            ..PutRequest::default()
        }),
        ModelChange::Delete(key, end) => Request::RequestDeleteRange(DeleteRangeRequest {
            key: key.into(),
            range_end: end.into(),
            prev_kv: true,
        }),
    }
}

fn kind(change: &ModelChange) -> Kind {
    match request(change) {
        Request::RequestPut(put) => Kind::Put(put),
        Request::RequestDeleteRange(delete) => Kind::DeleteRange(delete),
        Request::RequestRange(_) | Request::RequestTxn(_) => unreachable!("no change"),
    }
}

fn step(world: &mut World, model: &mut Model, action: &Action) {
    match action {
        Action::Change(change) => {
            let permitted = model.permits(std::slice::from_ref(change));
            assert_eq!(world.apply(kind(change)).is_ok(), permitted, "{change:?}");
            if permitted {
                model.change(std::slice::from_ref(change));
            }
        }
        Action::Txn { key, version, success, failure, nested } => {
            let holds = model.newest().get(key).map_or(0, |kept| kept.version) == *version;
            let compare = Compare {
                key: Bytes::from(key.clone()),
                target_union: Some(TargetUnion::Version(*version)),
                ..Compare::default()
            };
            let request = TxnRequest {
                compare: vec![compare],
                success: ops(success, *nested),
                failure: ops(failure, *nested),
            };
            let branch = if holds { success } else { failure };
            match world.apply(Kind::Txn(request)) {
                Ok(_) => {
                    assert!(model.permits(branch), "a lease of {branch:?} does not exist");
                    model.change(branch);
                }
                Err(api::Error::LeaseNotFound) => assert!(!model.permits(branch), "{branch:?}"),
                Err(error) => assert_eq!(error, api::Error::DuplicateKey, "nothing else is refused here"),
            }
        }
        Action::Compact(revision) => {
            let request = CompactionRequest { revision: *revision, physical: false };
            assert_eq!(world.apply(Kind::Compact(request)).is_ok(), model.compact(*revision), "{action:?}");
        }
        Action::Range(request) => {
            let answer = world.range(request).map(|response| show_range(&response));
            let answer = answer.unwrap_or_else(|error| format!("{error:?}"));
            assert_eq!(answer, model.range(request), "{request:?}");
        }
        Action::Lease(action) => lease_step(world, model, action),
    }
    assert_eq!(world.asked.store().revision(), model.revision(), "{action:?}");
}

fn lease_step(world: &mut World, model: &mut Model, action: &LeaseAction) {
    match action.clone() {
        LeaseAction::Grant(id, ttl) => {
            let granted = world.apply(Kind::LeaseGrant(LeaseGrantRequest { id, ttl }));
            assert_eq!(granted.is_ok(), model.grant(id, ttl), "{action:?}");
        }
        LeaseAction::Revoke(id) => {
            let revoked = world.apply(Kind::LeaseRevoke(LeaseRevokeRequest { id }));
            assert_eq!(revoked.is_ok(), model.revoke(id), "{action:?}");
        }
        LeaseAction::Renew(now, ids) => {
            let renew =
                LeaseRenew { term: world.at.term.0, now: now * 1000, ids: ids.clone(), granted: None };
            assert_eq!(world.apply(Kind::LeaseRenew(renew)), Ok(Response::LeaseRenew));
            model.renew(now * 1000, &ids);
        }
        LeaseAction::Expire(now, ids) => {
            let expire = LeaseExpire { term: world.at.term.0, now: now * 1000, ids: ids.clone() };
            let count = model.expire(now * 1000, &ids);
            assert_eq!(
                world.apply(Kind::LeaseExpire(expire)),
                Ok(Response::LeaseExpire(count)),
                "{action:?}"
            );
        }
        LeaseAction::RenewLate(now, ids) => {
            let renew = LeaseRenew { term: world.at.term.0 + 1, now: now * 1000, ids, granted: None };
            assert_eq!(world.apply(Kind::LeaseRenew(renew)), Err(api::Error::LeaderChanged));
        }
    }
    let leases = world.asked.leases().scan(None, usize::MAX);
    let leases: Vec<_> = leases.into_iter().map(|(id, lease)| (id, lease.ttl, lease.deadline)).collect();
    assert_eq!(leases, model.leases(), "{action:?}");
    for id in 1..4 {
        let keys = world.asked.store().keys_of_lease(id, &()).unwrap();
        assert_eq!(keys, model.keys_of(id), "keys of {id} after {action:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn history_is_what_the_naive_model_says(actions in prop::collection::vec(action(), 1..60)) {
        let mut world = World::new();
        let mut model = Model::new();
        for action in &actions {
            step(&mut world, &mut model, action);
        }
        world.assert_equal();
    }
}
