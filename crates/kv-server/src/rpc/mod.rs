//! The services: etcd's gRPC methods over one [`crate::member::Member`].
//!
//! ```text
//!   net/http2 ──hot unary──▶ Hot ───────────────────────┐
//!      ├───messages both ways──▶ Streams ──▶ watch ─────┤
//!      └───anything else──▶ Grpc ──▶ kv, lease, concurrency, maintenance, cluster, health ──▶ Member
//!                              └──▶ methods: names what is not there
//! ```
//!
//! Order of checks in every method, as clients see it by which error comes first: the message can be decoded,
//! the client's metadata, quota, validation, consensus or read.

mod metadata; // look-ups in the headers of a request

pub(crate) mod deadline; // when a client wants an answer no more
mod guard; // what a client's metadata asks for
mod header; // who answers

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

mod audited; // calls of tonic's services in the audit log
mod methods; // what answers each method
mod observed; // bodies whose frames are seen on their way

mod routes; // calls to tonic's services
mod streams; // calls with messages both ways

mod counted; // calls counted by method and code

pub(crate) use counted::{CountedHot, CountedServices, CountedStreams};
pub(crate) use kv::Hot;
pub(crate) use routes::Grpc;
pub(crate) use streams::Streams;
