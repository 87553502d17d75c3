//! Membership changes, as performed by the process and its operator.
//!
//! * `changes` proposes changes, and records their results.
//! * `lives` starts added members and stops removed ones.
//! * `greeting` decides which senders a member accepts.
//! * `addresses` decides which members are reachable.
//! * `laws` checks the invariants of majorities.
//!
//! Random numbers come from separate streams, so that seeds without changes are unaffected.

mod addresses; // where members are, and where they are dialled
mod changes; // what is proposed, and what came of it
mod greeting; // who hears whom
mod laws; // of majorities
mod lives; // how members begin and end
