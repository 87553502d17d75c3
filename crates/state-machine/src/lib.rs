//! The replicated state machine: etcd's KV semantics on the store, alarms and members.
//!
//! ```text
//!   commands in log order ──▶ EtcdMachine ──▶ mvcc::Writer        (one thread at a time)
//!   client requests       ──▶ range, read_txn, RangeStream ──▶ mvcc::Store        (any thread)
//! ```
//!
//! * Deterministic: the same commands in the same order give the same bytes on every member. There
//!   is no clock, no random number, no thread and no file access; the linter checks this.
//! * Total: any bytes are a command that is applied or rejected, after which apply continues. Only
//!   a broken store stops a member.
//! * Rejections are errors of etcd's table (`api::Error`), equal on every member. A broken store is
//!   a different type, and stops the process during apply.
//! * Responses contain the revision. The server adds the ids and the term.

pub mod command; // the contents of a log entry
mod failure; // results, refusals and failures of the store

mod alarms; // conditions that stop writes
mod auth; // users, roles and permissions
mod lease; // leases of keys
mod lease_leader; // what the leader decides about leases, without a clock
pub mod level; // which commands all members understand
mod lineage; // identity of the history
mod members; // members of the cluster

mod member_change; // changes of them

mod kv; // etcd's KV requests

mod cost; // what applying a command costs
mod machine; // applies commands

#[cfg(test)]
mod tests;

pub use alarms::{
    active as active_alarms, active_in as active_alarms_in, corrupt_members, corrupt_stops_changes,
};
pub use auth::{
    AuthState, AuthTable, Grants, KeyAccess, Need, ROOT, Session, TOKENS_MAX, TOKENS_OF_USER_MAX,
    USER_NAME_BYTES_MAX, UserGrants, auth_in, auth_items, of_delete_range as needs_of_delete_range,
    of_lease_keys as needs_of_lease_keys, of_put as needs_of_put, of_range as needs_of_range,
    of_txn as needs_of_txn,
};
pub use failure::{Answer, Outcome, Response};
pub use failure::{ApplyError, Failure, TooOld};
pub use kv::{LargeRange, RangeStream, get, is_get, keys_read, range, read_txn, validate};
pub use lease::{
    Lease, LeaseTable, RENEWAL_GRACE_MS, TTL_MAX, items as lease_items, list as leases,
    replace as replace_leases,
};
pub use lease_leader::{
    Anchor, Chosen, LEASE_TURN, LeaderTurns, LedTerm, Remaining, RenewalBatch, RenewalStep, TurnWork,
    UNREVOKED, WhenExpired, leases_in_command, remaining,
};
pub use level::downgrade_target;
pub use level::{ClusterLevel, CommandLevel};
pub use lineage::{Lineage, LineageError};
pub use machine::EtcdMachine;
pub use member_change::{has_enough_started, is_removed, keeps_voters, removed_by};
pub use members::{Genesis, items as member_items, list as members, list_in as members_in};
