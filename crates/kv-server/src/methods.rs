//! The table of methods: permissions, effect on the state, members that serve it, and paths in the JSON
//! gateway. [`Method`] has its gRPC path and its kind; `dispatch` calls it by name.
//!
//! The match is exhaustive: a method added to the protobuf files does not compile without a row here.

use api::Method;

/// Largest request for a membership change. It bounds the number of URLs: an empty one takes 2 bytes on the
/// wire and 24 in memory.
const CLUSTER_BYTES_MAX: usize = 64 << 10;

/// Permission required while authentication is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Any client, even without a token.
    Open,
    /// Any user. The method may require more, depending on the request.
    User,
    /// A user with the role `root`.
    Root,
    /// Permissions for the request's keys, checked in etcd's order: by the method itself, by the watch
    /// hub's service, or at apply.
    Keys,
}

/// The effect of a request, for the audit log. For Txn and Alarm it depends on the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Reads,
    Changes,
}

/// Reports whether a member with corrupt state serves the method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntactRule {
    /// Rejected: the method reads or changes keys or leases, or copies the store.
    Intact,
    /// Served: operators need it to inspect a member and to replace it.
    Any,
}

/// Reports whether a learner serves the method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnerRule {
    /// Rejected.
    Voter,
    /// Served. A range may still require a voter, depending on the request.
    Any,
}

/// The row of a method.
#[derive(Clone, Copy, Debug)]
pub struct MethodRow {
    pub access: Access,
    pub effect: Effect,
    pub state: IntactRule,
    pub learner: LearnerRule,
    /// Paths in the JSON gateway, after `/v3/` and `/v3beta/`. Empty: gRPC only.
    pub paths: &'static [&'static str],
}

/// Returns the row of a method that learners reject.
const fn row(access: Access, effect: Effect, state: IntactRule, paths: &'static [&'static str]) -> MethodRow {
    MethodRow { access, effect, state, learner: LearnerRule::Voter, paths }
}

/// Returns the row of a method that learners serve.
const fn any_row(
    access: Access,
    effect: Effect,
    state: IntactRule,
    paths: &'static [&'static str],
) -> MethodRow {
    MethodRow { access, effect, state, learner: LearnerRule::Any, paths }
}

/// The row of `method`.
pub const fn of(method: Method) -> MethodRow {
    use Access::{Keys, Open, Root, User};
    use Effect::{Changes, Reads};
    use IntactRule::{Any, Intact};
    use Method::*;
    match method {
        KvRange => any_row(Keys, Reads, Intact, &["kv/range"]),
        KvPut => row(Keys, Changes, Intact, &["kv/put"]),
        KvDeleteRange => row(Keys, Changes, Intact, &["kv/deleterange"]),
        KvTxn => row(Keys, Changes, Intact, &["kv/txn"]),
        KvCompact => row(Root, Changes, Intact, &["kv/compaction"]),
        KvRangeStream => row(Keys, Reads, Intact, &[]),
        Watch => row(Keys, Reads, Intact, &["watch"]),
        // The keys attached to a lease are checked as well.
        LeaseGrant => row(User, Changes, Intact, &["lease/grant"]),
        LeaseRevoke => row(User, Changes, Intact, &["lease/revoke", "kv/lease/revoke"]),
        LeaseKeepAlive => row(User, Reads, Intact, &["lease/keepalive"]),
        LeaseTimeToLive => row(User, Reads, Intact, &["lease/timetolive", "kv/lease/timetolive"]),
        LeaseLeases => row(User, Reads, Intact, &["lease/leases", "kv/lease/leases"]),
        // The inner calls of locks and elections need the same permissions as calls of the client.
        Lock => row(Keys, Changes, Intact, &["lock/lock"]),
        LockUnlock => row(Keys, Changes, Intact, &["lock/unlock"]),
        ElectionCampaign => row(Keys, Changes, Intact, &["election/campaign"]),
        ElectionProclaim => row(Keys, Changes, Intact, &["election/proclaim"]),
        ElectionLeader => row(Keys, Reads, Intact, &["election/leader"]),
        ElectionObserve => row(Keys, Reads, Intact, &["election/observe"]),
        ElectionResign => row(Keys, Changes, Intact, &["election/resign"]),
        ClusterMemberAdd => row(Root, Changes, Any, &["cluster/member/add"]),
        ClusterMemberRemove => row(Root, Changes, Any, &["cluster/member/remove"]),
        ClusterMemberUpdate => row(Root, Changes, Any, &["cluster/member/update"]),
        ClusterMemberList => row(User, Reads, Any, &["cluster/member/list"]),
        ClusterMemberPromote => row(Root, Changes, Any, &["cluster/member/promote"]),
        // A user without the role `root` may list alarms only.
        MaintenanceAlarm => row(User, Changes, Any, &["maintenance/alarm"]),
        MaintenanceStatus => any_row(User, Reads, Any, &["maintenance/status"]),
        MaintenanceDefragment => row(Root, Changes, Any, &["maintenance/defragment"]),
        MaintenanceHash => row(Root, Reads, Any, &["maintenance/hash"]),
        MaintenanceHashKV => row(Root, Reads, Any, &["maintenance/hashkv"]),
        MaintenanceSnapshot => any_row(Root, Reads, Intact, &["maintenance/snapshot"]),
        MaintenanceMoveLeader => row(Root, Changes, Any, &["maintenance/transfer-leadership"]),
        MaintenanceDowngrade => row(Root, Changes, Any, &["maintenance/downgrade"]),
        RepairReseed => any_row(Root, Changes, Any, &[]),
        HealthCheck | HealthList | HealthWatch => row(Open, Reads, Any, &[]),
        AuthEnable => row(Root, Changes, Any, &["auth/enable"]),
        AuthDisable => row(Root, Changes, Any, &["auth/disable"]),
        AuthStatus => row(Open, Reads, Any, &["auth/status"]),
        Authenticate => row(Open, Changes, Any, &["auth/authenticate"]),
        AuthUserAdd => row(Root, Changes, Any, &["auth/user/add"]),
        // A user may read its own entry and its roles.
        AuthUserGet => row(User, Reads, Any, &["auth/user/get"]),
        AuthUserList => row(Root, Reads, Any, &["auth/user/list"]),
        AuthUserDelete => row(Root, Changes, Any, &["auth/user/delete"]),
        AuthUserChangePassword => row(Root, Changes, Any, &["auth/user/changepw"]),
        AuthUserGrantRole => row(Root, Changes, Any, &["auth/user/grant"]),
        AuthUserRevokeRole => row(Root, Changes, Any, &["auth/user/revoke"]),
        AuthRoleAdd => row(Root, Changes, Any, &["auth/role/add"]),
        AuthRoleGet => row(User, Reads, Any, &["auth/role/get"]),
        AuthRoleList => row(Root, Reads, Any, &["auth/role/list"]),
        AuthRoleDelete => row(Root, Changes, Any, &["auth/role/delete"]),
        AuthRoleGrantPermission => row(Root, Changes, Any, &["auth/role/grant"]),
        AuthRoleRevokePermission => row(Root, Changes, Any, &["auth/role/revoke"]),
    }
}

/// Returns the largest message of a request to `method`, within the limit for all methods.
pub fn message_bytes_max(method: Method, bytes_max: usize) -> usize {
    match method.service() {
        "etcdserverpb.Cluster" => bytes_max.min(CLUSTER_BYTES_MAX),
        _ => bytes_max,
    }
}
