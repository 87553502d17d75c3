//! The duplicate rule: a key may change at most once per revision.
//!
//! Checked before consensus, branch by branch, bottom up. Each level first adds its own deletes,
//! then the puts and deletes of its children in order, and finally checks its own puts against all
//! of them:
//!
//! ```text
//!   deletes here ──▶ child 1 ──▶ child 2 ──▶ … ──▶ puts here
//! ```
//!
//! The implementation preserves two gaps of etcd's rule, because clients may rely on them:
//!
//! * A child's deletes are compared only with the puts of *later* children. So "child 1 puts k,
//!   child 2 deletes k" is accepted, and the reverse order is not.
//! * A delete to the end of the key space has a single zero byte as its range end, which is
//!   compared literally. Every key is above it, so that delete never conflicts.
//!
//! Sets are merged and compared smaller into larger, so n operations take O(n log n) steps for any
//! nesting.

use std::collections::{BTreeMap, BTreeSet};

use api::Error;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{DeleteRangeRequest, RequestOp};

pub(super) fn check(branch: &[RequestOp]) -> Result<(), Error> {
    changes_of(branch).map(drop)
}

/// Keys that a branch may change, including nested branches.
#[derive(Default)]
struct BranchWrites<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Deletes<'a>,
}

fn changes_of(branch: &[RequestOp]) -> Result<BranchWrites<'_>, Error> {
    let mut changes = BranchWrites::default();
    for op in branch {
        if let Some(Request::RequestDeleteRange(request)) = &op.request {
            changes.deletes.insert(request);
        }
    }
    for op in branch {
        if let Some(Request::RequestTxn(child)) = &op.request {
            changes.absorb(changes_of(&child.success)?, changes_of(&child.failure)?)?;
        }
    }
    for op in branch {
        if let Some(Request::RequestPut(request)) = &op.request {
            changes.put(&request.key)?;
        }
    }
    Ok(changes)
}

impl<'a> BranchWrites<'a> {
    fn put(&mut self, key: &'a [u8]) -> Result<(), Error> {
        if self.deletes.contains(key) || !self.puts.insert(key) {
            return Err(Error::DuplicateKey);
        }
        Ok(())
    }

    /// Adds a child. Only one of its branches is executed, so both may put the same key.
    fn absorb(&mut self, success: BranchWrites<'a>, failure: BranchWrites<'a>) -> Result<(), Error> {
        let mut puts = success.puts;
        add_all(&mut puts, failure.puts);
        let total = self.puts.len() + puts.len();
        let is_deleted = self.deletes.meets(&puts);
        add_all(&mut self.puts, puts);
        if is_deleted || self.puts.len() < total {
            return Err(Error::DuplicateKey);
        }
        self.deletes.absorb(success.deletes);
        self.deletes.absorb(failure.deletes);
        Ok(())
    }
}

/// Adds the smaller set to the larger one.
fn add_all<'a>(keys: &mut BTreeSet<&'a [u8]>, mut others: BTreeSet<&'a [u8]>) {
    if keys.len() < others.len() {
        std::mem::swap(keys, &mut others);
    }
    count_steps(others.len());
    keys.extend(others);
}

/// A set of deleted keys. Ranges are merged: start → end, disjoint, not empty, not adjacent.
#[derive(Default)]
struct Deletes<'a> {
    points: BTreeSet<&'a [u8]>,
    ranges: BTreeMap<&'a [u8], &'a [u8]>,
}

impl<'a> Deletes<'a> {
    fn insert(&mut self, request: &'a DeleteRangeRequest) {
        if request.range_end.is_empty() {
            self.points.insert(&request.key);
        } else {
            self.insert_range(&request.key, &request.range_end);
        }
    }

    fn insert_range(&mut self, mut start: &'a [u8], mut end: &'a [u8]) {
        if end <= start {
            return; // Holds no key; a single zero byte, "to the end", falls in here as well.
        }
        // Ranges are disjoint, so the ones that overlap the new range directly precede its end.
        while let Some((&other_start, &other_end)) = self.ranges.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            self.ranges.remove(other_start);
            start = start.min(other_start);
            end = end.max(other_end);
        }
        assert!(start < end, "merging never makes a range empty");
        self.ranges.insert(start, end);
    }

    fn contains(&self, key: &[u8]) -> bool {
        let in_range = self.ranges.range(..=key).next_back().is_some_and(|(_, end)| key < *end);
        in_range || self.points.contains(key)
    }

    fn meets(&self, keys: &BTreeSet<&'a [u8]>) -> bool {
        let own = self.points.len() + self.ranges.len();
        count_steps(own.min(keys.len()));
        if keys.len() <= own {
            return keys.iter().any(|key| self.contains(key));
        }
        let in_range = |(start, end): (&&'a [u8], &&'a [u8])| keys.range(*start..*end).next().is_some();
        self.points.iter().any(|point| keys.contains(point)) || self.ranges.iter().any(in_range)
    }

    fn absorb(&mut self, mut other: Deletes<'a>) {
        add_all(&mut self.points, other.points);
        if self.ranges.len() < other.ranges.len() {
            std::mem::swap(&mut self.ranges, &mut other.ranges);
        }
        count_steps(other.ranges.len());
        for (start, end) in other.ranges {
            self.insert_range(start, end);
        }
    }
}

/// Counts the keys and ranges processed when a child is absorbed.
fn count_steps(_steps: usize) {
    #[cfg(test)]
    tests::STEPS.set(tests::STEPS.get() + _steps);
}

#[cfg(test)]
#[path = "duplicates_tests.rs"]
mod tests;
