//! Index from keys to groups of watchers.
//!
//! ```text
//!   key ──▶ hash table of exact keys ──▶ groups
//!      └──▶ interval tree of ranges ───▶ groups
//! ```
//!
//! * A group contains the watchers with the same range and form. The form determines the contents
//!   of their events: previous values, filters, fragments.
//! * A lookup costs one hash, plus the logarithm of the number of ranges for each matching range.
//!   It is independent of the number of watchers.
//! * Live watchers come first in the list of a group.

mod group; // watchers of one range in one form
mod ranges; // the interval tree

mod index; // all groups

pub(crate) use group::{Form, InterestGroup};
pub(crate) use index::InterestIndex;
