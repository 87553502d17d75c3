//! The path of each method. etcd has some methods under two, and everything under `/v3beta/` as well.

use std::collections::HashMap;
use std::sync::OnceLock;

use api::Method;

/// The method of a path such as `/v3/kv/put`.
pub(super) fn method(path: &str) -> Option<Method> {
    static METHODS: OnceLock<HashMap<&str, Method>> = OnceLock::new();
    let methods = METHODS.get_or_init(|| {
        Method::ALL.iter().flat_map(|method| paths(*method).iter().map(|path| (*path, *method))).collect()
    });
    let rest = path.strip_prefix("/v3/").or_else(|| path.strip_prefix("/v3beta/"))?;
    methods.get(rest).copied()
}

/// Without `/v3/`. The match is exhaustive: a new method does not compile before it has a row here.
fn paths(method: Method) -> &'static [&'static str] {
    use Method::*;
    match method {
        HealthCheck | HealthList | HealthWatch | KvRangeStream | RepairReseed => &[], // gRPC only.
        KvRange => &["kv/range"],
        KvPut => &["kv/put"],
        KvDeleteRange => &["kv/deleterange"],
        KvTxn => &["kv/txn"],
        KvCompact => &["kv/compaction"],
        Watch => &["watch"],
        LeaseGrant => &["lease/grant"],
        LeaseRevoke => &["lease/revoke", "kv/lease/revoke"],
        LeaseKeepAlive => &["lease/keepalive"],
        LeaseTimeToLive => &["lease/timetolive", "kv/lease/timetolive"],
        LeaseLeases => &["lease/leases", "kv/lease/leases"],
        ClusterMemberAdd => &["cluster/member/add"],
        ClusterMemberRemove => &["cluster/member/remove"],
        ClusterMemberUpdate => &["cluster/member/update"],
        ClusterMemberList => &["cluster/member/list"],
        ClusterMemberPromote => &["cluster/member/promote"],
        MaintenanceAlarm => &["maintenance/alarm"],
        MaintenanceStatus => &["maintenance/status"],
        MaintenanceDefragment => &["maintenance/defragment"],
        MaintenanceHash => &["maintenance/hash"],
        MaintenanceHashKV => &["maintenance/hashkv"],
        MaintenanceSnapshot => &["maintenance/snapshot"],
        MaintenanceMoveLeader => &["maintenance/transfer-leadership"],
        MaintenanceDowngrade => &["maintenance/downgrade"],
        AuthEnable => &["auth/enable"],
        AuthDisable => &["auth/disable"],
        AuthStatus => &["auth/status"],
        Authenticate => &["auth/authenticate"],
        AuthUserAdd => &["auth/user/add"],
        AuthUserGet => &["auth/user/get"],
        AuthUserList => &["auth/user/list"],
        AuthUserDelete => &["auth/user/delete"],
        AuthUserChangePassword => &["auth/user/changepw"],
        AuthUserGrantRole => &["auth/user/grant"],
        AuthUserRevokeRole => &["auth/user/revoke"],
        AuthRoleAdd => &["auth/role/add"],
        AuthRoleGet => &["auth/role/get"],
        AuthRoleList => &["auth/role/list"],
        AuthRoleDelete => &["auth/role/delete"],
        AuthRoleGrantPermission => &["auth/role/grant"],
        AuthRoleRevokePermission => &["auth/role/revoke"],
        Lock => &["lock/lock"],
        LockUnlock => &["lock/unlock"],
        ElectionCampaign => &["election/campaign"],
        ElectionProclaim => &["election/proclaim"],
        ElectionLeader => &["election/leader"],
        ElectionObserve => &["election/observe"],
        ElectionResign => &["election/resign"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_method_under_both_prefixes() {
        for (path, wanted) in [
            ("/v3/kv/put", Some(Method::KvPut)),
            ("/v3beta/kv/put", Some(Method::KvPut)),
            ("/v3/kv/lease/leases", Some(Method::LeaseLeases)),
            ("/v3/watch", Some(Method::Watch)),
            ("/v3/kv/put/", None),
            ("/v3/", None),
            ("/v3alpha/kv/put", None),
            ("/kv/put", None),
        ] {
            assert_eq!(method(path), wanted, "{path}");
        }
        let all: Vec<&str> = Method::ALL.iter().flat_map(|method| paths(*method)).copied().collect();
        let distinct: std::collections::HashSet<&str> = all.iter().copied().collect();
        assert_eq!((all.len(), distinct.len()), (51, 51));
    }
}
