//! The method that a path names, or the refusal of what is none.

use api::{CallKind, Method};
use tonic::Status;

use grpc_errors::RequestForm;

/// The method that a service answers on `path`, or the refusal that names what is not there.
pub fn resolve(path: &str) -> Result<Method, Status> {
    Method::of_path(path).ok_or_else(|| unknown(path))
}

/// Refuses a path that is no part of the API.
fn unknown(path: &str) -> Status {
    let Some((service, name)) = path.strip_prefix('/').unwrap_or(path).rsplit_once('/') else {
        return grpc_errors::malformed_path(path);
    };
    if Method::ALL.iter().any(|method| method.service() == service) {
        grpc_errors::unknown_method(service, name)
    } else {
        grpc_errors::unknown_service(service)
    }
}

/// A method that answers with a stream reads its request as one message of a stream.
pub fn reading(method: Method) -> RequestForm {
    match method.kind() {
        CallKind::Unary => RequestForm::Unary,
        CallKind::ClientStream | CallKind::ServerStream | CallKind::BidiStream => RequestForm::Stream,
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
}
