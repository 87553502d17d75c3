//! The methods of etcd's API, and one of this server: one table, made from the descriptors when this crate is
//! built.
//!
//! Routing, metrics and refusals name methods by `Method`, so a method that the protobuf files gain is
//! known to all of them. How this server answers each is the server's own table.

/// Makes the enumeration and its lookups from rows of variant, service, name, path and kind.
macro_rules! methods {
    ($($variant:ident $service:literal $name:literal $path:literal $kind:ident)*) => {
        /// A method of etcd's API: service and name, without the package's version.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "named by service and method")]
        pub enum Method {
            $($variant,)*
        }

        impl Method {
            /// In the order of the protobuf files; a method stands at its number.
            pub const ALL: &[Method] = &[$(Method::$variant,)*];

            /// The method of a path such as `/etcdserverpb.KV/Put`.
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

include!(concat!(env!("OUT_DIR"), "/methods.rs"));

struct MethodRow {
    service: &'static str,
    name: &'static str,
    path: &'static str,
    kind: CallKind,
}

/// Which sides of a call are streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "gRPC's terms")]
pub enum CallKind {
    Unary,
    ClientStream,
    ServerStream,
    BidiStream,
}

impl Method {
    /// Such as `etcdserverpb.KV`.
    pub const fn service(self) -> &'static str {
        self.row().service
    }

    /// Such as `Put`.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Such as `/etcdserverpb.KV/Put`.
    pub const fn path(self) -> &'static str {
        self.row().path
    }

    /// Which sides are streams.
    pub const fn kind(self) -> CallKind {
        self.row().kind
    }

    /// Position in [`Method::ALL`].
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

    /// 42 of etcdserverpb, 3 of health checks, 2 of locks, 5 of elections, 1 of this server.
    #[test]
    fn every_method_is_in_the_table() {
        assert_eq!(Method::ALL.len(), 53);
    }
}
