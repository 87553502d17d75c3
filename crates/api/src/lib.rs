//! The wire format: code generated from `proto/`, the method table, and etcd's error table.
//!
//! * `src/generated` is written by `proto/generate`, and compared with its output by the gate.
//! * Modules are named after the protobuf packages, so a Rust path resembles the name on the wire.
//! * `bytes` fields are refcounted slices of the receive buffer. Copy a field that outlives its
//!   request; otherwise it pins the whole buffer.
//!
//! Must not depend on storage, Raft or the process.

mod error; // etcd's errors
pub mod grpc; // the prefix of a message, the names of codes
mod json; // messages in protobuf's JSON form
mod json_fields; // the fields of messages
mod json_request; // conversion of a JSON request to its encoded message
mod json_response; // conversion of an encoded response to JSON
mod message_batch; // messages of a peer, decoded with a limit on their number
mod method; // the methods of etcd's API
mod secret; // Debug output without secrets

pub use error::Error;
pub use grpc::CODE_NAMES;
pub use json::{JsonError, JsonForm};
pub use method::{CallKind, Method};

/// Versions of the API, the cluster and the program.
pub mod version {
    /// etcd version whose API this server implements. Clients parse it as a semantic version and enable
    /// features by it.
    pub const ETCD: &str = "3.7.3";
    /// Cluster version that members of this program agree on.
    pub const CLUSTER: &str = "3.7.0";
    pub const CLUSTER_SHORT: &str = "3.7";
    /// Cluster version as integers.
    pub const CLUSTER_MAJOR: i64 = 3;
    pub const CLUSTER_MINOR: i64 = 7;
    /// Version of this program.
    pub const OWN: &str = env!("CARGO_PKG_VERSION");
}

/// Stored records and change events.
pub mod mvccpb {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    include!("generated/mvccpb.rs");
}

/// Permissions on key ranges.
pub mod authpb {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    include!("generated/authpb.rs");
}

/// etcd's client API.
pub mod etcdserverpb {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    include!("generated/etcdserverpb.rs");
}

/// etcd's lock service.
pub mod v3lockpb {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    include!("generated/v3lockpb.rs");
}

/// etcd's election service.
pub mod v3electionpb {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    include!("generated/v3electionpb.rs");
}

/// The standard health-checking service.
pub mod health {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    include!("generated/grpc.health.v1.rs");
}

/// Extensions specific to this server.
pub mod kvserver {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    include!("generated/kvserver.rs");
}

/// Replicated commands.
pub mod command {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    include!("generated/command.rs");
}

/// Messages between members.
pub mod peer {
    #![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
    pub use crate::message_batch::MessageBatch;
    include!("generated/peer.rs");
}
