//! Members come and go, as the process and its operator do it.
//!
//! * `changes` proposes changes, and keeps what became of them.
//! * `lives` starts members that were added and ends those that were removed.
//! * `greeting` decides whom a member hears and answers.
//! * `addresses` decides whom a member finds.
//! * `laws` says what must hold of majorities.
//!
//! Random numbers come from separate streams, so that seeds without changes play as if there were none.

mod addresses; // where members are, and where they are dialled
mod changes; // what is proposed, and what came of it
mod greeting; // who hears whom
mod laws; // of majorities
mod lives; // how members begin and end
