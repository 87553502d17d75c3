//! How this server answers each method of etcd's API: the one table that routing reads.
//!
//! The match is exhaustive: a method that the protobuf files gain does not compile before it has a row here.

use api::{Kind, Method};
use tonic::Status;

use crate::errors::{self, RequestForm};

/// What answers a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// Inside the connection's task, one message for another. A call that only tonic can read goes to the
    /// services, which have these methods too.
    Hot(HotMethod),
    /// Inside the connection's task, messages both ways.
    Stream(StreamMethod),
    /// tonic's services.
    Service,
}

/// A hot method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HotMethod {
    Put,
    Range,
    Txn,
    DeleteRange,
}

/// A method with messages both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamMethod {
    Watch,
    LeaseKeepAlive,
}

/// What answers `method`.
pub fn serving(method: Method) -> Serving {
    use Method::*;
    match method {
        KvPut => Serving::Hot(HotMethod::Put),
        KvRange => Serving::Hot(HotMethod::Range),
        KvTxn => Serving::Hot(HotMethod::Txn),
        KvDeleteRange => Serving::Hot(HotMethod::DeleteRange),
        Watch => Serving::Stream(StreamMethod::Watch),
        KvRangeStream | KvCompact => Serving::Service,
        LeaseKeepAlive => Serving::Stream(StreamMethod::LeaseKeepAlive),
        LeaseGrant | LeaseRevoke | LeaseTimeToLive | LeaseLeases => Serving::Service,
        ClusterMemberAdd | ClusterMemberRemove | ClusterMemberUpdate | ClusterMemberList
        | ClusterMemberPromote => Serving::Service,
        MaintenanceAlarm
        | MaintenanceStatus
        | MaintenanceDefragment
        | MaintenanceHash
        | MaintenanceHashKV
        | MaintenanceSnapshot
        | MaintenanceMoveLeader
        | MaintenanceDowngrade => Serving::Service,
        Lock | LockUnlock => Serving::Service,
        ElectionCampaign | ElectionProclaim | ElectionLeader | ElectionObserve | ElectionResign => {
            Serving::Service
        }
        HealthCheck | HealthList | HealthWatch => Serving::Service,
        RepairReseed => Serving::Service,
        AuthEnable | AuthDisable | AuthStatus | Authenticate => Serving::Service,
        AuthUserAdd
        | AuthUserGet
        | AuthUserList
        | AuthUserDelete
        | AuthUserChangePassword
        | AuthUserGrantRole
        | AuthUserRevokeRole => Serving::Service,
        AuthRoleAdd
        | AuthRoleGet
        | AuthRoleList
        | AuthRoleDelete
        | AuthRoleGrantPermission
        | AuthRoleRevokePermission => Serving::Service,
    }
}

/// Who may call a method while permissions are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Any client, without a token too.
    Open,
    /// A user. The method itself asks for more, by what the request says.
    User,
    /// A user with the role `root`.
    Root,
    /// What its keys ask for, in the order in which etcd checks: by the method itself, by the watch hub's
    /// service, or at apply.
    Keys,
}

/// Whether a member whose state is corrupt refuses `method`: what reads or changes keys and leases, and
/// copies of the store. What operators need to look at a member and to replace it stays.
pub fn needs_intact_state(method: Method) -> bool {
    use Method::*;
    match method {
        KvPut | KvRange | KvTxn | KvDeleteRange | KvRangeStream | KvCompact | Watch => true,
        Lock | LockUnlock => true,
        ElectionCampaign | ElectionProclaim | ElectionLeader | ElectionObserve | ElectionResign => true,
        LeaseGrant | LeaseRevoke | LeaseKeepAlive | LeaseTimeToLive | LeaseLeases => true,
        MaintenanceSnapshot => true,
        ClusterMemberList | ClusterMemberAdd | ClusterMemberRemove | ClusterMemberUpdate
        | ClusterMemberPromote => false,
        MaintenanceStatus
        | MaintenanceAlarm
        | MaintenanceDefragment
        | MaintenanceHash
        | MaintenanceHashKV
        | MaintenanceMoveLeader
        | MaintenanceDowngrade => false,
        HealthCheck | HealthList | HealthWatch | RepairReseed => false,
        AuthStatus | Authenticate | AuthEnable | AuthDisable => false,
        AuthUserAdd
        | AuthUserGet
        | AuthUserList
        | AuthUserDelete
        | AuthUserChangePassword
        | AuthUserGrantRole
        | AuthUserRevokeRole => false,
        AuthRoleAdd
        | AuthRoleGet
        | AuthRoleList
        | AuthRoleDelete
        | AuthRoleGrantPermission
        | AuthRoleRevokePermission => false,
    }
}

/// Who may call `method`. There is no default: a method without a rule does not compile.
pub fn access(method: Method) -> Access {
    use Method::*;
    match method {
        KvPut | KvRange | KvTxn | KvDeleteRange | KvRangeStream | Watch => Access::Keys,
        // Their inner calls need what calls of the client would need.
        Lock | LockUnlock => Access::Keys,
        ElectionCampaign | ElectionProclaim | ElectionLeader | ElectionObserve | ElectionResign => {
            Access::Keys
        }
        // The keys that are attached to a lease are checked besides.
        LeaseGrant | LeaseRevoke | LeaseKeepAlive | LeaseTimeToLive | LeaseLeases => Access::User,
        KvCompact => Access::Root,
        ClusterMemberList => Access::User,
        ClusterMemberAdd | ClusterMemberRemove | ClusterMemberUpdate | ClusterMemberPromote => Access::Root,
        // Alarm: only to list them.
        MaintenanceStatus | MaintenanceAlarm => Access::User,
        MaintenanceDefragment
        | MaintenanceHash
        | MaintenanceHashKV
        | MaintenanceSnapshot
        | MaintenanceMoveLeader
        | MaintenanceDowngrade
        | RepairReseed => Access::Root,
        HealthCheck | HealthList | HealthWatch => Access::Open,
        AuthStatus | Authenticate => Access::Open,
        // A user may look at itself and at its roles.
        AuthUserGet | AuthRoleGet => Access::User,
        AuthEnable
        | AuthDisable
        | AuthUserAdd
        | AuthUserList
        | AuthUserDelete
        | AuthUserChangePassword
        | AuthUserGrantRole
        | AuthUserRevokeRole
        | AuthRoleAdd
        | AuthRoleList
        | AuthRoleDelete
        | AuthRoleGrantPermission
        | AuthRoleRevokePermission => Access::Root,
    }
}

/// The method that a service answers on `path`, or the refusal that names what is not there.
pub fn resolve(path: &str) -> Result<Method, Status> {
    Method::of_path(path).ok_or_else(|| unknown(path))
}

/// Refuses a path that is no part of the API.
fn unknown(path: &str) -> Status {
    let Some((service, name)) = path.strip_prefix('/').unwrap_or(path).rsplit_once('/') else {
        return errors::malformed_path(path);
    };
    if Method::ALL.iter().any(|method| method.service() == service) {
        errors::unknown_method(service, name)
    } else {
        errors::unknown_service(service)
    }
}

/// A method that answers with a stream reads its request as one message of a stream.
pub fn reading(method: Method) -> RequestForm {
    match method.kind() {
        Kind::Unary => RequestForm::Unary,
        Kind::ClientStream | Kind::ServerStream | Kind::BidiStream => RequestForm::Stream,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn a_path_is_answered_or_refused_by_name() {
        for (path, text) in [
            ("/etcdserverpb.KV/Put", ""),
            ("/etcdserverpb.Maintenance/Snapshot", ""),
            ("/etcdserverpb.Watch/Watch", ""),
            ("/etcdserverpb.Lease/LeaseGrant", ""),
            ("/v3lockpb.Lock/Unlock", ""),
            ("/etcdserverpb.Auth/UserGet", ""),
            ("/etcdserverpb.KV/range", "unknown method range for service etcdserverpb.KV"),
            ("/etcdserverpb.Lease/Nothing", "unknown method Nothing for service etcdserverpb.Lease"),
            ("/etcdserverpb.Nothing/Range", "unknown service etcdserverpb.Nothing"),
            ("/peer.Peer/Probe", "unknown service peer.Peer"),
            ("/KV/Range", "unknown service KV"),
            ("/a/b/c", "unknown service a/b"),
            ("/health", "malformed method name: \"/health\""),
        ] {
            match resolve(path) {
                Ok(method) => assert_eq!((text, method.path()), ("", path)),
                Err(status) => assert_eq!((status.code(), status.message()), (Code::Unimplemented, text)),
            }
        }
    }

    #[test]
    fn a_stream_of_requests_is_served_in_the_task_of_its_connection() {
        for method in Method::ALL.iter().filter(|method| method.kind() == Kind::BidiStream) {
            assert!(matches!(serving(*method), Serving::Stream(_)), "{}: it may be idle", method.path());
        }
    }
}
