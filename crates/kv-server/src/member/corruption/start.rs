//! The comparison at a start, with the gate InitialCorruptCheck.

use mvcc::KvHash;

/// The member's state differs from that of another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{member:x} found data inconsistency with peers")]
pub struct Differs {
    member: u64,
}

/// Compares the newest hash of a member that starts with those that others have at the same revision. Others
/// that gave none, or have compacted at another revision, are left out.
pub fn compare(member: u64, own: KvHash, others: &[(u64, Result<KvHash, String>)]) -> Result<(), Differs> {
    let mut differs = false;
    for (other, hash) in others {
        let peer = format!("{other:x}");
        match hash {
            Err(error) => tracing::warn!(peer, error, "cannot fetch hash from remote peer"),
            Ok(hash) if hash.hash == own.hash => {}
            Ok(hash) if hash.compact_revision != own.compact_revision => {
                tracing::warn!(peer, "found different compact revision values from remote peer");
            }
            Ok(_) => {
                tracing::warn!(peer, "found different hash values from remote peer");
                differs = true;
            }
        }
    }
    if differs { Err(Differs { member }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_starts_unless_a_comparable_hash_differs() {
        let hash =
            |hash, compact_revision| Ok(KvHash { hash, compact_revision, hash_revision: 9, revision: 9 });
        let own = KvHash { hash: 7, compact_revision: 3, hash_revision: 9, revision: 9 };
        for (others, is_alike) in [
            (vec![], true),
            (vec![hash(7, 3), hash(8, 2)], true),
            (vec![Err("unreachable".to_owned()), hash(7, 3)], true),
            (vec![hash(7, 3), hash(8, 3)], false),
        ] {
            let others: Vec<_> = (2..).zip(others).collect();
            assert_eq!(compare(1, own, &others).is_ok(), is_alike, "{others:?}");
        }
        assert_eq!(Differs { member: 0xab }.to_string(), "ab found data inconsistency with peers");
    }
}
