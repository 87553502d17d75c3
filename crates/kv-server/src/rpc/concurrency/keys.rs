//! The keys of a name: their form, their order, and the requests that find them.

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use api::etcdserverpb::request_op::Request as Op;
use api::etcdserverpb::{Compare, PutRequest, RangeRequest, RequestOp};
use bytes::{BufMut, Bytes, BytesMut};

/// The keys below a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(Bytes);

impl Prefix {
    pub fn of(name: &[u8]) -> Prefix {
        let mut prefix = BytesMut::with_capacity(name.len() + 1);
        prefix.put(name);
        prefix.put_u8(b'/');
        Prefix(prefix.freeze())
    }

    /// Returns the key of a lease: its number in hexadecimal digits, a negative one with its sign.
    pub fn key(&self, lease: i64) -> Bytes {
        let sign = if lease < 0 { "-" } else { "" };
        let digits = format!("{sign}{:x}", lease.unsigned_abs());
        [&self.0[..], digits.as_bytes()].concat().into()
    }

    pub fn start(&self) -> Bytes {
        self.0.clone()
    }

    /// Returns the end of the range of these keys: the slash becomes the next byte.
    pub fn end(&self) -> Bytes {
        let mut end = BytesMut::from(&self.0[..]);
        *end.last_mut().expect("a prefix ends with a slash") += 1;
        end.freeze()
    }

    /// Finds the owner: the key that was created first.
    pub fn first_created(&self) -> RangeRequest {
        self.one(SortOrder::Ascend)
    }

    /// Finds the key that was created last among those created before a revision.
    pub fn last_created_before(&self, revision: i64) -> RangeRequest {
        assert!(revision > 1, "the first key is created at revision 2");
        RangeRequest { max_create_revision: revision - 1, keys_only: true, ..self.one(SortOrder::Descend) }
    }

    fn one(&self, order: SortOrder) -> RangeRequest {
        RangeRequest {
            key: self.start(),
            range_end: self.end(),
            limit: 1,
            sort_order: order as i32,
            sort_target: SortTarget::Create as i32,
            ..RangeRequest::default()
        }
    }
}

/// One key.
pub fn get(key: &Bytes) -> RangeRequest {
    RangeRequest { key: key.clone(), ..RangeRequest::default() }
}

/// Compares the create revision of the key; 0 means that there is no key.
pub fn created_at(key: &Bytes, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Create as i32,
        key: key.clone(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
        ..Compare::default()
    }
}

pub fn put(key: &Bytes, value: Bytes, lease: i64) -> PutRequest {
    PutRequest { key: key.clone(), value, lease, ..PutRequest::default() }
}

pub fn op(op: Op) -> RequestOp {
    RequestOp { request: Some(op) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_name_a_slash_and_the_lease_in_hexadecimal_digits() {
        for (name, lease, key) in [
            ("a", 1, "a/1"),
            ("a/", 26, "a//1a"),
            ("", 255, "/ff"),
            ("a", -10, "a/-a"),
            ("a", i64::MAX, "a/7fffffffffffffff"),
            ("a", i64::MIN, "a/-8000000000000000"),
        ] {
            assert_eq!(Prefix::of(name.as_bytes()).key(lease), key);
        }
    }

    #[test]
    fn the_range_of_a_name_ends_before_the_byte_after_the_slash() {
        let prefix = Prefix::of(b"a");
        assert_eq!((prefix.start(), prefix.end()), ("a/".into(), "a0".into()));
    }

    #[test]
    fn only_keys_created_before_ones_own_are_waited_for() {
        let request = Prefix::of(b"a").last_created_before(7);
        assert_eq!((request.max_create_revision, request.limit), (6, 1));
        assert_eq!(request.sort_order, SortOrder::Descend as i32);
    }
}
