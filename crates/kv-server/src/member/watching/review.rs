//! A pass over a stream's watchers after a permission change.
//!
//! * The pass advances in steps, by watch id. Ids may be negative.
//! * After a newer change, the pass continues at its current id, wraps around after the last id, and stops
//!   where the change was received. Frequent changes therefore cannot starve any watcher, and the latest
//!   change is applied to each.
//!
//! Independent of the hub.

use auth::Caller;

/// A pass in progress.
pub(super) struct Review {
    /// User of the stream, with the permissions after the latest change.
    pub(super) caller: Caller,
    /// First watch id of the next step.
    pub(super) next: i64,
    /// Watch id at which the latest change was received.
    began: i64,
    /// True once the pass has wrapped around to the first id.
    has_wrapped: bool,
}

impl Review {
    pub(super) fn new(caller: Caller) -> Review {
        Review { caller, next: i64::MIN, began: i64::MIN, has_wrapped: false }
    }

    /// Extends the pass after a newer change, so that it covers all watchers again.
    pub(super) fn renew(&mut self, caller: Caller) {
        *self = Review { caller, next: self.next, began: self.next, has_wrapped: false };
    }

    /// Records a step; `next` is the first remaining watcher, if any. Returns whether the pass continues.
    pub(super) fn goes_on(&mut self, next: Option<i64>) -> bool {
        match next {
            Some(next) if !self.has_wrapped || next < self.began => self.next = next,
            None if !self.has_wrapped && self.began > i64::MIN => {
                (self.next, self.has_wrapped) = (i64::MIN, true);
            }
            Some(_) | None => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a pass over the ids -4 to 5, three per step, renewed before the steps with these numbers. Returns
    /// the first id of each step.
    fn steps(renewed: &[usize]) -> Vec<i64> {
        let (mut review, mut seen) = (Review::new(Caller::Unnamed), Vec::new());
        loop {
            if renewed.contains(&seen.len()) {
                review.renew(Caller::Unnamed);
            }
            let first = review.next.max(-4);
            seen.push(first);
            assert!(seen.len() < 100, "a pass without an end: {seen:?}");
            if !review.goes_on((first + 3 <= 5).then_some(first + 3)) {
                return seen;
            }
        }
    }

    #[test]
    fn a_pass_looks_at_all_ids_after_its_newest_change() {
        for (renewed, expected) in [
            (&[][..], &[-4, -1, 2, 5][..]),
            (&[0], &[-4, -1, 2, 5]),
            (&[2], &[-4, -1, 2, 5, -4, -1]),
            (&[1, 2, 3], &[-4, -1, 2, 5, -4, -1, 2]),
            // Renewed after it has wrapped.
            (&[2, 5], &[-4, -1, 2, 5, -4, -1, 2, 5, -4]),
        ] {
            assert_eq!(steps(renewed), expected, "renewed before the steps {renewed:?}");
        }
    }
}
