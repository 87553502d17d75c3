//! Client requests and their results.

mod ask; // kinds of requests, and what users may read
mod draw; // what is asked for
mod leases; // what is asked for of leases
mod users; // what is asked for by users, and of users

mod clients; // what came of what was asked for
mod watches; // clients that watch

pub(crate) use ask::{LeaseQuestion, UserView};
pub(crate) use clients::{
    AfterLeaseAnswer, Asker, CHANGES, Clients, MemberInput, ProposedChange, ProposedChanges, RequestId,
    Trade, is_member_change, numbered, read,
};

pub(crate) use watches::WatchClient;
