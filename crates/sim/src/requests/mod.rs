//! Requests of clients, and what came of them.

mod access; // whom a member takes a client for
mod ask; // kinds of requests
mod draw; // what is asked for
mod leases; // what is asked for of leases
mod users; // what is asked for by users, and of users

mod changes; // of the members
mod clients; // what came of what was asked for
mod watches; // clients that watch

pub(crate) use access::UserView;
pub(crate) use ask::LeaseQuestion;
pub(crate) use changes::{CHANGES, ProposedChange, ProposedChanges, is_change};
pub(crate) use clients::{Asker, Clients, MemberInput, RequestId, Trade, numbered, read};

pub(crate) use watches::WatchClient;
