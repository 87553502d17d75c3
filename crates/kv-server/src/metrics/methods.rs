//! Every method of etcd's services, as labels.

/// One method, as its labels name it.
#[derive(Debug)]
pub struct Method {
    pub kind: &'static str,
    pub service: &'static str,
    pub name: &'static str,
}

impl Method {
    pub fn labels(&self) -> [(&'static str, &'static str); 3] {
        [("grpc_type", self.kind), ("grpc_service", self.service), ("grpc_method", self.name)]
    }

    pub fn labels_with(&self, code: &'static str) -> [(&'static str, &'static str); 4] {
        let [kind, service, name] = self.labels();
        [kind, service, name, ("grpc_code", code)]
    }
}

const fn method(service: &'static str, name: &'static str, kind: &'static str) -> Method {
    Method { kind, service, name }
}

pub const METHODS: [Method; 45] = [
    method("etcdserverpb.KV", "Range", "unary"),
    method("etcdserverpb.KV", "RangeStream", "server_stream"),
    method("etcdserverpb.KV", "Put", "unary"),
    method("etcdserverpb.KV", "DeleteRange", "unary"),
    method("etcdserverpb.KV", "Txn", "unary"),
    method("etcdserverpb.KV", "Compact", "unary"),
    method("etcdserverpb.Watch", "Watch", "bidi_stream"),
    method("etcdserverpb.Lease", "LeaseGrant", "unary"),
    method("etcdserverpb.Lease", "LeaseRevoke", "unary"),
    method("etcdserverpb.Lease", "LeaseKeepAlive", "bidi_stream"),
    method("etcdserverpb.Lease", "LeaseTimeToLive", "unary"),
    method("etcdserverpb.Lease", "LeaseLeases", "unary"),
    method("etcdserverpb.Cluster", "MemberAdd", "unary"),
    method("etcdserverpb.Cluster", "MemberRemove", "unary"),
    method("etcdserverpb.Cluster", "MemberUpdate", "unary"),
    method("etcdserverpb.Cluster", "MemberList", "unary"),
    method("etcdserverpb.Cluster", "MemberPromote", "unary"),
    method("etcdserverpb.Maintenance", "Alarm", "unary"),
    method("etcdserverpb.Maintenance", "Status", "unary"),
    method("etcdserverpb.Maintenance", "Defragment", "unary"),
    method("etcdserverpb.Maintenance", "Hash", "unary"),
    method("etcdserverpb.Maintenance", "HashKV", "unary"),
    method("etcdserverpb.Maintenance", "Snapshot", "server_stream"),
    method("etcdserverpb.Maintenance", "MoveLeader", "unary"),
    method("etcdserverpb.Maintenance", "Downgrade", "unary"),
    method("etcdserverpb.Auth", "AuthEnable", "unary"),
    method("etcdserverpb.Auth", "AuthDisable", "unary"),
    method("etcdserverpb.Auth", "AuthStatus", "unary"),
    method("etcdserverpb.Auth", "Authenticate", "unary"),
    method("etcdserverpb.Auth", "UserAdd", "unary"),
    method("etcdserverpb.Auth", "UserGet", "unary"),
    method("etcdserverpb.Auth", "UserList", "unary"),
    method("etcdserverpb.Auth", "UserDelete", "unary"),
    method("etcdserverpb.Auth", "UserChangePassword", "unary"),
    method("etcdserverpb.Auth", "UserGrantRole", "unary"),
    method("etcdserverpb.Auth", "UserRevokeRole", "unary"),
    method("etcdserverpb.Auth", "RoleAdd", "unary"),
    method("etcdserverpb.Auth", "RoleGet", "unary"),
    method("etcdserverpb.Auth", "RoleList", "unary"),
    method("etcdserverpb.Auth", "RoleDelete", "unary"),
    method("etcdserverpb.Auth", "RoleGrantPermission", "unary"),
    method("etcdserverpb.Auth", "RoleRevokePermission", "unary"),
    method("grpc.health.v1.Health", "Check", "unary"),
    method("grpc.health.v1.Health", "List", "unary"),
    method("grpc.health.v1.Health", "Watch", "server_stream"),
];
