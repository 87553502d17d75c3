//! The services: etcd's gRPC methods over one [`crate::member::Member`].
//!
//! ```text
//!   grpc_server::http2 ──▶ dispatch ──▶ kv, watch, lease, concurrency, maintenance, cluster, health ──▶ Member
//! ```
//!
//! Order of checks in every method, as clients see it by which error comes first: the message can be decoded,
//! the client's metadata, quota, validation, consensus or read.

mod guard; // what a client's metadata asks for

pub(crate) mod deadline; // when a client wants an answer no more

mod auth; // users, roles and tokens
mod cluster; // members
mod concurrency; // locks and elections
mod health; // the health service
mod kv; // the key space
mod lease; // leases
mod snapshot; // the store as a file of etcd

mod repair; // a corrupt member takes over the leader's state

mod maintenance; // status, alarms, hashes, leadership, snapshots
mod watch; // events of the key space

mod dispatch; // from the headers of a call to its end

pub(crate) use dispatch::Dispatcher;

/// An answer that holds its memory until it was sent.
fn reply<T>(answered: admission::CountedAnswer<T>) -> tonic::Response<T> {
    let mut reply = tonic::Response::new(answered.response);
    if let Some(memory) = answered.memory {
        reply.extensions_mut().insert(std::sync::Arc::new(memory));
    }
    reply
}
