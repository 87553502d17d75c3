//! The wire format: everything generated from `proto/`, the table of methods, and etcd's error table.
//!
//! * This crate is the only reader of `proto/`.
//! * Module names are the protobuf package names, so that a path here reads like a name on the wire.
//! * `bytes` fields are refcounted slices of the buffer that the message was decoded from. To keep one
//!   for longer than the request, copy it; otherwise it pins the whole receive buffer.
//!
//! Knows nothing of storage, Raft or the process.

mod error; // what etcd says when it refuses
pub mod grpc; // the prefix of a message, the names of codes
mod json; // messages in protobuf's JSON form
mod json_request; // from a request's JSON to its encoded message
mod message_batch; // messages of a peer, decoded within a bound
mod method; // the methods of etcd's API
mod secret; // messages that are printed without their secrets

pub use error::Error;
pub use grpc::CODE_NAMES;
pub use json::{JsonError, JsonForm};
pub use method::{CallKind, Method};

/// Which version this is, in the three senses in which it is asked for.
pub mod version {
    /// The version of etcd whose API is spoken here; clients read it as a semantic version and switch
    /// features by it.
    pub const ETCD: &str = "3.7.3";
    /// What a cluster of such members agrees on.
    pub const CLUSTER: &str = "3.7.0";
    pub const CLUSTER_SHORT: &str = "3.7";
    /// The same as numbers.
    pub const CLUSTER_MAJOR: i64 = 3;
    pub const CLUSTER_MINOR: i64 = 7;
    /// Version of this program.
    pub const OWN: &str = env!("CARGO_PKG_VERSION");
}

/// Stored records and change events.
pub mod mvccpb {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    tonic::include_proto!("mvccpb");
    include!(concat!(env!("OUT_DIR"), "/mvccpb.serde.rs"));
}

/// Permissions on key ranges.
pub mod authpb {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    tonic::include_proto!("authpb");
    include!(concat!(env!("OUT_DIR"), "/authpb.serde.rs"));
}

/// etcd's client API.
pub mod etcdserverpb {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    tonic::include_proto!("etcdserverpb");
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.serde.rs"));
}

/// etcd's lock service.
pub mod v3lockpb {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    tonic::include_proto!("v3lockpb");
    include!(concat!(env!("OUT_DIR"), "/v3lockpb.serde.rs"));
}

/// etcd's election service.
pub mod v3electionpb {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    tonic::include_proto!("v3electionpb");
    include!(concat!(env!("OUT_DIR"), "/v3electionpb.serde.rs"));
}

/// The standard health-checking service.
pub mod health {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    tonic::include_proto!("grpc.health.v1");
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.serde.rs"));
}

/// Calls of this server's own.
pub mod kvserver {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    tonic::include_proto!("kvserver");
    include!(concat!(env!("OUT_DIR"), "/kvserver.serde.rs"));
}

/// The replicated command.
pub mod command {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    tonic::include_proto!("command");
}

/// Member to member.
pub mod peer {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    pub use crate::message_batch::MessageBatch;
    tonic::include_proto!("peer");
}
