//! Decodes commands into their fields. Fields with default values are omitted.

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    AlarmRequest, Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use bytes::Bytes;
use serde_json::{Map, Value};
use state_machine::command::{self, Change, Kind};

use super::report::{id, text};

/// Decodes a command of an entry. Returns a reason if it is malformed.
pub fn describe(command: &Bytes) -> Result<Value, String> {
    let decoded = command::decode_with_caller(command);
    let (kind, caller) = decoded.map_err(|error| process::log::causes(&error))?;
    let mut value = of_kind(kind);
    if let (Value::Object(words), Some(caller)) = (&mut value, caller) {
        words.insert("user".to_owned(), caller.user.into());
        words.insert("auth_revision".to_owned(), caller.auth_revision.into());
    }
    Ok(value)
}

fn of_kind(kind: Kind) -> Value {
    match kind {
        Kind::Put(request) => put(&request),
        Kind::DeleteRange(request) => delete_range(&request),
        Kind::Txn(request) => txn(&request),
        Kind::Compact(request) => Words::of("compact")
            .number("revision", request.revision)
            .flag("physical", request.physical)
            .value(),
        Kind::Alarm(request) => alarm(&request),
        Kind::PublishMember(request) => Words::of("publish_member")
            .word("member", id(request.member_id))
            .word("name", request.name)
            .word("client_urls", request.client_urls)
            .value(),
        Kind::LeaseGrant(request) => {
            Words::of("lease_grant").word("lease", request.id).word("ttl", request.ttl).value()
        }
        Kind::LeaseRevoke(request) => Words::of("lease_revoke").word("lease", request.id).value(),
        Kind::LeaseExpire(request) => of_leader("lease_expire", request.term, request.now, request.ids),
        Kind::LeaseRenew(request) => of_leader("lease_renew", request.term, request.now, request.ids),
        // The debug format omits hashes and tokens.
        Kind::Auth(request) => Words::of("auth")
            .word("change", request.kind.map_or_else(String::new, |change| format!("{change:?}")))
            .value(),
        Kind::SetDowngrade(request) => {
            Words::of("set_downgrade").word("target_version", request.target_version).value()
        }
        Kind::RaiseLevel(request) => {
            let members: Vec<Value> = request.members.into_iter().map(|member| id(member).into()).collect();
            let words = Words::of("raise_level").word("level", request.level).word("members", members);
            words.word("history", id(request.history)).value()
        }
        Kind::MemberChange(request) => member_change(request.change),
    }
}

fn member_change(change: Option<Change>) -> Value {
    let of = |name: &str, member: u64| Words::of(name).word("member", id(member));
    match change {
        Some(Change::Add(add)) => of("member_add", add.id)
            .word("peer_urls", add.peer_urls)
            .flag("is_learner", add.is_learner)
            .word("learners_max", add.learners_max)
            .value(),
        Some(Change::Remove(member)) => of("member_remove", member).value(),
        Some(Change::Promote(member)) => of("member_promote", member).value(),
        Some(Change::Retain(member)) => of("member_retain", member).value(),
        Some(Change::Update(update)) => {
            of("member_update", update.id).word("peer_urls", update.peer_urls).value()
        }
        None => Value::Null,
    }
}

/// Fields of a request, in output order.
struct Words(Map<String, Value>);

impl Words {
    fn of(request: &str) -> Words {
        Words(Map::new()).word("request", request)
    }

    fn word(mut self, name: &str, value: impl Into<Value>) -> Words {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    fn bytes(self, name: &str, bytes: &[u8]) -> Words {
        self.word(name, text(bytes))
    }

    /// Adds the field unless it is empty.
    fn some_bytes(self, name: &str, bytes: &[u8]) -> Words {
        if bytes.is_empty() { self } else { self.bytes(name, bytes) }
    }

    /// Adds the field unless it is 0.
    fn number(self, name: &str, number: i64) -> Words {
        if number == 0 { self } else { self.word(name, number) }
    }

    /// Adds the field if it is true.
    fn flag(self, name: &str, is_set: bool) -> Words {
        if is_set { self.word(name, true) } else { self }
    }

    fn value(self) -> Value {
        Value::Object(self.0)
    }
}

/// Describes a lease command by the leader of `term`, with a time of its lease clock.
fn of_leader(name: &str, term: u64, now: i64, leases: Vec<i64>) -> Value {
    Words::of(name).word("term", term).word("now", now).word("leases", leases).value()
}

fn put(request: &PutRequest) -> Value {
    Words::of("put")
        .bytes("key", &request.key)
        .bytes("value", &request.value)
        .number("lease", request.lease)
        .flag("prev_kv", request.prev_kv)
        .flag("ignore_value", request.ignore_value)
        .flag("ignore_lease", request.ignore_lease)
        .value()
}

fn delete_range(request: &DeleteRangeRequest) -> Value {
    Words::of("delete_range")
        .bytes("key", &request.key)
        .some_bytes("range_end", &request.range_end)
        .flag("prev_kv", request.prev_kv)
        .value()
}

fn range(request: &RangeRequest) -> Value {
    Words::of("range")
        .bytes("key", &request.key)
        .some_bytes("range_end", &request.range_end)
        .number("limit", request.limit)
        .number("revision", request.revision)
        .flag("keys_only", request.keys_only)
        .flag("count_only", request.count_only)
        .value()
}

fn txn(request: &TxnRequest) -> Value {
    let branch = |operations: &[RequestOp]| operations.iter().map(operation).collect::<Vec<_>>();
    Words::of("txn")
        .word("compare", request.compare.iter().map(compare).collect::<Vec<_>>())
        .word("success", branch(&request.success))
        .word("failure", branch(&request.failure))
        .value()
}

fn operation(operation: &RequestOp) -> Value {
    match &operation.request {
        Some(Request::RequestRange(request)) => range(request),
        Some(Request::RequestPut(request)) => put(request),
        Some(Request::RequestDeleteRange(request)) => delete_range(request),
        Some(Request::RequestTxn(request)) => txn(request),
        None => Value::Null,
    }
}

fn compare(compare: &Compare) -> Value {
    let name =
        |name: Option<&'static str>, number: i32| name.map_or_else(|| number.to_string(), str::to_lowercase);
    let target = CompareTarget::try_from(compare.target).ok().map(|target| target.as_str_name());
    let result = CompareResult::try_from(compare.result).ok().map(|result| result.as_str_name());
    let words = Words(Map::new())
        .word("target", name(target, compare.target))
        .word("result", name(result, compare.result))
        .bytes("key", &compare.key)
        .some_bytes("range_end", &compare.range_end);
    match &compare.target_union {
        Some(TargetUnion::Value(value)) => words.bytes("value", value),
        Some(
            TargetUnion::Version(number)
            | TargetUnion::CreateRevision(number)
            | TargetUnion::ModRevision(number)
            | TargetUnion::Lease(number),
        ) => words.word("number", *number),
        None => words,
    }
    .value()
}

fn alarm(request: &AlarmRequest) -> Value {
    Words::of("alarm")
        .word("action", request.action().as_str_name().to_lowercase())
        .word("member", id(request.member_id))
        .word("alarm", request.alarm().as_str_name().to_lowercase())
        .value()
}
