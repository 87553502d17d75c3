//! Which groups of watchers match a key.
//!
//!   key ──▶ hash table of exact keys ──▶ groups
//!      └──▶ interval tree of ranges ───▶ groups
//!
//! * A group is the watchers of one range in one form. A form is what their events contain: previous values,
//!   filters, fragments.
//! * A lookup costs one hash, and for ranges a logarithm of their number for each range that matches. The
//!   number of watchers does not matter.
//! * Watchers of a group that are live come first in its list.

mod group; // watchers of one range in one form
mod ranges; // the interval tree

mod index; // all groups

pub(crate) use group::{Form, InterestGroup};
pub(crate) use index::Interest;
