//! One pass over the watchers of a stream, after a change of permissions.
//!
//! * A pass goes on in steps, by watch id. Ids may be negative.
//! * A newer change goes on from where the pass is, around all ids and back to there. So changes that keep
//!   coming do not keep it from any watcher, and the last change is applied to each.
//!
//! Does not know the hub.

use auth::Caller;

/// A pass under way.
pub(super) struct Review {
    /// The user of the stream, with its permissions after the newest change.
    pub(super) caller: Caller,
    /// The watch id from which the next step looks.
    pub(super) next: i64,
    /// Where the newest change found the pass.
    began: i64,
    /// Whether it has gone on from the last id to the first.
    has_wrapped: bool,
}

impl Review {
    pub(super) fn new(caller: Caller) -> Review {
        Review { caller, next: i64::MIN, began: i64::MIN, has_wrapped: false }
    }

    /// After a newer change: all watchers have to be looked at once more.
    pub(super) fn renew(&mut self, caller: Caller) {
        *self = Review { caller, next: self.next, began: self.next, has_wrapped: false };
    }

    /// Notes a step, after which the watchers from `next` on are left; none if it is `None`. Returns whether
    /// the pass has to go on.
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

    /// Ids from -4 to 5, three in a step. The first one of each step of a pass that is renewed before the
    /// steps with these numbers.
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
            // After it has wrapped.
            (&[2, 5], &[-4, -1, 2, 5, -4, -1, 2, 5, -4]),
        ] {
            assert_eq!(steps(renewed), expected, "renewed before the steps {renewed:?}");
        }
    }
}
