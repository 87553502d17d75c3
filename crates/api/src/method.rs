//! The methods of etcd's API and one extension, in a table generated from the descriptors.
//!
//! Routing, metrics and errors identify methods by `Method`, so they cover a method as soon as the
//! protobuf files define it. The server has its own table of handlers.

/// Generates the enum and its lookups from rows of variant, service, name, path and kind.
macro_rules! methods {
    ($($variant:ident $service:literal $name:literal $path:literal $kind:ident)*) => {
        /// A method of etcd's API, named by service and method without the package's version.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "named by service and method")]
        pub enum Method {
            $($variant,)*
        }

        impl Method {
            /// All methods in the order of the protobuf files; [`Method::number`] is the position.
            pub const ALL: &[Method] = &[$(Method::$variant,)*];

            /// Returns the method of a path such as `/etcdserverpb.KV/Put`.
            pub fn of_path(path: &str) -> Option<Method> {
                match path {
                    $($path => Some(Method::$variant),)*
                    _ => None,
                }
            }

            const fn row(self) -> MethodRow {
                match self {
                    $(Method::$variant => {
                        MethodRow { service: $service, name: $name, path: $path, kind: CallKind::$kind }
                    })*
                }
            }
        }
    };
}

include!("generated/methods.rs");

struct MethodRow {
    service: &'static str,
    name: &'static str,
    path: &'static str,
    kind: CallKind,
}

/// Streaming kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "gRPC's terms")]
pub enum CallKind {
    Unary,
    ClientStream,
    ServerStream,
    BidiStream,
}

impl Method {
    /// Returns the service, such as `etcdserverpb.KV`.
    pub const fn service(self) -> &'static str {
        self.row().service
    }

    /// Returns the method name, such as `Put`.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the path, such as `/etcdserverpb.KV/Put`.
    pub const fn path(self) -> &'static str {
        self.row().path
    }

    /// Returns the streaming kind.
    pub const fn kind(self) -> CallKind {
        self.row().kind
    }

    /// Returns the position in [`Method::ALL`].
    pub const fn number(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_finds_its_method_and_no_other() {
        for (number, method) in Method::ALL.iter().enumerate() {
            assert_eq!(method.number(), number);
            assert_eq!(Method::of_path(method.path()), Some(*method));
            assert_eq!(method.path(), format!("/{}/{}", method.service(), method.name()));
        }
        for path in
            ["/etcdserverpb.KV/Nothing", "etcdserverpb.KV/Put", "/KV/Put", "/peer.Peer/Probe", "/", ""]
        {
            assert_eq!(Method::of_path(path), None, "{path}");
        }
    }

    #[test]
    fn kinds_are_those_of_the_descriptors() {
        for (method, kind) in [
            (Method::KvPut, CallKind::Unary),
            (Method::KvRangeStream, CallKind::ServerStream),
            (Method::Watch, CallKind::BidiStream),
            (Method::LeaseKeepAlive, CallKind::BidiStream),
            (Method::HealthWatch, CallKind::ServerStream),
            (Method::ElectionObserve, CallKind::ServerStream),
            (Method::Lock, CallKind::Unary),
        ] {
            assert_eq!(method.kind(), kind, "{method:?}");
        }
    }

    /// etcdserverpb has 42 methods, health checks 3, locks 2, elections 5, this server 1.
    #[test]
    fn every_method_is_in_the_table() {
        assert_eq!(Method::ALL.len(), 53);
    }
}
