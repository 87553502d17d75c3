//! How this server answers each method of etcd's API: the one table that routing reads.
//!
//! The match is exhaustive: a method that the protobuf files gain does not compile before it has a row here.

use api::{Kind, Method};
use tonic::Status;

use crate::errors::{self, Reading};

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
    /// Nothing yet: refused by name.
    NotBuilt,
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
        AuthEnable | AuthDisable | AuthStatus | Authenticate => Serving::NotBuilt,
        AuthUserAdd
        | AuthUserGet
        | AuthUserList
        | AuthUserDelete
        | AuthUserChangePassword
        | AuthUserGrantRole
        | AuthUserRevokeRole => Serving::NotBuilt,
        AuthRoleAdd
        | AuthRoleGet
        | AuthRoleList
        | AuthRoleDelete
        | AuthRoleGrantPermission
        | AuthRoleRevokePermission => Serving::NotBuilt,
    }
}

/// The method that a service answers on `path`, or the refusal that names what is not there.
pub fn resolve(path: &str) -> Result<Method, Status> {
    match Method::of_path(path) {
        Some(method) if serving(method) == Serving::NotBuilt => {
            Err(errors::not_built(method.service(), method.name()))
        }
        Some(method) => Ok(method),
        None => Err(unknown(path)),
    }
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
pub fn reading(method: Method) -> Reading {
    match method.kind() {
        Kind::Unary => Reading::Unary,
        Kind::ClientStream | Kind::ServerStream | Kind::BidiStream => Reading::Stream,
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
            ("/etcdserverpb.Auth/UserGet", "etcdserverpb.Auth/UserGet is not built yet in kv-server"),
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
