//! The services: etcd's gRPC methods over one [`crate::member::Member`].
//!
//! ```text
//!   grpc_server::http2, gateway ──▶ dispatch ──▶ kv, watch, lease, concurrency, maintenance, cluster, health ──▶ Member
//! ```
//!
//! Order of checks in every method, which determines the error that clients see: decoding, the client's
//! metadata, quota, validation, consensus or read.

mod guard; // metadata and sender of a call

pub(crate) mod deadline; // deadlines set by clients

mod auth; // users, roles and tokens
mod cluster; // members
mod concurrency; // locks and elections
mod health; // the health service
mod kv; // the key space
mod lease; // leases
mod snapshot; // the store as a file of etcd

mod repair; // re-seeding of a corrupt member

mod maintenance; // status, alarms, hashes, leadership, snapshots
mod watch; // events of the key space

mod dispatch; // a call, from its headers to its status

pub(crate) use dispatch::Dispatcher;

/// Returns a response that holds its memory until it is sent.
fn reply<T>(answered: admission::CountedAnswer<T>) -> tonic::Response<T> {
    let mut reply = tonic::Response::new(answered.response);
    if let Some(memory) = answered.memory {
        reply.extensions_mut().insert(std::sync::Arc::new(memory));
    }
    reply
}
