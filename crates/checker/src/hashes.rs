//! Checks that members with the same compacted revision report the same key-space hash for a
//! revision.
//!
//! Must not depend on connections or clocks.

use crate::operation::Revision;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Number of revisions to remember. All members are queried for a revision at nearly the same time.
const KEPT: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hash {
    /// Index of the endpoint that sent the response.
    pub member: usize,
    pub at: Duration,
    pub revision: Revision,
    /// Compacted revision of the member. The hash does not cover compacted history.
    pub compacted: Revision,
    pub hash: u32,
}

/// Hashes received so far, by revision and compacted revision.
#[derive(Debug, Default)]
pub struct Hashes {
    known: BTreeMap<(Revision, Revision), Hash>,
    /// Number of hashes that matched a hash of a different member.
    pub equal: u64,
}

impl Hashes {
    /// Records a hash. On a mismatch, returns the previous hash and this one.
    pub fn take(&mut self, hash: Hash) -> Result<(), Box<[Hash; 2]>> {
        let place = (hash.revision, hash.compacted);
        match self.known.get(&place) {
            Some(known) if known.hash != hash.hash => return Err(Box::new([known.clone(), hash])),
            Some(known) if known.member != hash.member => self.equal += 1,
            Some(_) => {}
            None => drop(self.known.insert(place, hash)),
        }
        while self.known.len() > KEPT {
            self.known.pop_first();
        }
        Ok(())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, at, revision, compacted, hash } = self;
        write!(
            formatter,
            "member {member}, {:.6} s: hash {hash:08x} at revision {revision}, compacted at {compacted}",
            at.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(member: usize, revision: Revision, compacted: Revision, hash: u32) -> Hash {
        Hash { member, at: Duration::ZERO, revision, compacted, hash }
    }

    #[test]
    fn only_hashes_of_the_same_content_are_compared() {
        let mut hashes = Hashes::default();
        for equal in
            [hash(0, 5, 1, 7), hash(1, 5, 1, 7), hash(1, 5, 2, 8), hash(1, 6, 1, 9), hash(0, 5, 1, 7)]
        {
            assert_eq!(hashes.take(equal), Ok(()));
        }
        assert_eq!(hashes.equal, 1);
        let [known, other] = *hashes.take(hash(2, 5, 2, 9)).unwrap_err();
        assert_eq!((known.member, other.member), (1, 2));
    }

    #[test]
    fn memory_does_not_grow_with_the_run() {
        let mut hashes = Hashes::default();
        (0..1000).for_each(|revision| hashes.take(hash(0, revision, 0, 0)).unwrap());
        assert_eq!(hashes.known.len(), KEPT);
    }
}
