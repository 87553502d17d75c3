//! Ids of members and clusters, computed as in etcd.
//!
//! A member id is a function of its peer URLs and the cluster's token, a cluster id of its initial
//! members' ids, so members with the same flags agree without communication. (etcd:
//! `membership/member.go`, `cluster.go`.)

use sha1::{Digest, Sha1};

/// Computes the id of an initial member from its sorted peer URLs and the token.
pub fn member_id<'a>(peer_urls: impl IntoIterator<Item = &'a str>, token: &str) -> u64 {
    let mut urls: Vec<&str> = peer_urls.into_iter().collect();
    urls.sort_unstable();
    let mut hash = Sha1::new();
    for url in urls {
        hash.update(url);
    }
    hash.update(token);
    prefix(hash)
}

/// Computes the id of a member that is added to a running cluster, at a time in seconds since the
/// Unix epoch.
pub fn added_member_id<'a>(peer_urls: impl IntoIterator<Item = &'a str>, now: u64) -> u64 {
    member_id(peer_urls, &now.to_string())
}

/// Computes the id of a cluster from its initial members' ids in ascending order.
pub fn cluster_id(member_ids: impl IntoIterator<Item = u64>) -> u64 {
    let mut ids: Vec<u64> = member_ids.into_iter().collect();
    ids.sort_unstable();
    let mut hash = Sha1::new();
    for id in ids {
        hash.update(id.to_be_bytes());
    }
    prefix(hash)
}

fn prefix(hash: Sha1) -> u64 {
    let digest = hash.finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("a SHA-1 digest has 20 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_member_has_the_id_that_every_etcd_user_has_seen() {
        let member = member_id(["http://localhost:2380"], "etcd-cluster");
        assert_eq!(format!("{member:x}"), "8e9e05c52164694d");
        assert_eq!(format!("{:x}", cluster_id([member])), "cdf818194e3a8c32");
    }

    #[test]
    fn the_order_of_urls_and_members_does_not_matter() {
        assert_eq!(
            member_id(["http://a:1", "http://b:2"], "t"),
            member_id(["http://b:2", "http://a:1"], "t")
        );
        assert_eq!(cluster_id([1, 2, 3]), cluster_id([3, 1, 2]));
    }

    #[test]
    fn the_token_makes_another_member() {
        assert_ne!(member_id(["http://a:1"], "t"), member_id(["http://a:1"], "u"));
    }
}
