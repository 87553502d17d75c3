//! What is not answered here: etcd's services that are not built yet, and names that are no part of its API.
//!
//! A client of a missing service gets a text that names it, rather than one that it has to guess about.

use tonic::Status;

use crate::errors;

/// A service of etcd's API.
struct Service {
    name: &'static str,
    /// Whether the service is built. Single methods that are not built refuse their calls themselves.
    built: bool,
    methods: &'static [&'static str],
}

const SERVICES: [Service; 9] = [
    Service {
        name: "etcdserverpb.KV",
        built: true,
        methods: &["Range", "RangeStream", "Put", "DeleteRange", "Txn", "Compact"],
    },
    Service {
        name: "etcdserverpb.Maintenance",
        built: true,
        methods: &["Alarm", "Status", "Defragment", "Hash", "HashKV", "Snapshot", "MoveLeader", "Downgrade"],
    },
    Service {
        name: "etcdserverpb.Cluster",
        built: true,
        methods: &["MemberAdd", "MemberRemove", "MemberUpdate", "MemberList", "MemberPromote"],
    },
    Service { name: "grpc.health.v1.Health", built: true, methods: &["Check", "List", "Watch"] },
    Service { name: "etcdserverpb.Watch", built: true, methods: &["Watch"] },
    Service {
        name: "etcdserverpb.Lease",
        built: true,
        methods: &["LeaseGrant", "LeaseRevoke", "LeaseKeepAlive", "LeaseTimeToLive", "LeaseLeases"],
    },
    Service {
        name: "etcdserverpb.Auth",
        built: false,
        methods: &[
            "AuthEnable",
            "AuthDisable",
            "AuthStatus",
            "Authenticate",
            "UserAdd",
            "UserGet",
            "UserList",
            "UserDelete",
            "UserChangePassword",
            "UserGrantRole",
            "UserRevokeRole",
            "RoleAdd",
            "RoleGet",
            "RoleList",
            "RoleDelete",
            "RoleGrantPermission",
            "RoleRevokePermission",
        ],
    },
    Service { name: "v3lockpb.Lock", built: true, methods: &["Lock", "Unlock"] },
    Service {
        name: "v3electionpb.Election",
        built: true,
        methods: &["Campaign", "Proclaim", "Leader", "Observe", "Resign"],
    },
];

/// Refuses a path that no service answers.
pub fn check(path: &str) -> Result<(), Status> {
    let Some((name, method)) = path.strip_prefix('/').unwrap_or(path).rsplit_once('/') else {
        return Err(errors::malformed_path(path));
    };
    let Some(service) = SERVICES.iter().find(|service| service.name == name) else {
        return Err(errors::unknown_service(name));
    };
    if !service.methods.contains(&method) {
        return Err(errors::unknown_method(name, method));
    }
    if service.built { Ok(()) } else { Err(errors::not_built(name, method)) }
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
            ("/KV/Range", "unknown service KV"),
            ("/a/b/c", "unknown service a/b"),
            ("/health", "malformed method name: \"/health\""),
        ] {
            match check(path) {
                Ok(()) => assert_eq!(text, "", "{path}"),
                Err(status) => assert_eq!((status.code(), status.message()), (Code::Unimplemented, text)),
            }
        }
    }

    #[test]
    fn all_of_etcds_methods_are_known() {
        let methods: usize = SERVICES.iter().map(|service| service.methods.len()).sum();
        assert_eq!(methods, 52);
    }
}
