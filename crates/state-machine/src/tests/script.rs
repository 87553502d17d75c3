//! The language of the scripts: steps separated by `;`, parsed into the requests that a client would send.
//!
//!   put a=1 [lease=5 prev ignore_value ignore_lease]      del a | del a..c [prev]
//!   range a | a..c | a.. | * [limit=2 rev=3 sort=desc by=mod keys count min_mod=2 max_create=4 serializable]
//!   txn [if version(a)=0, value(b..c)>x] [then { … }] [else { … }]      nothing
//!   grant ID TTL      revoke ID      renew|expire TERM NOW [ID ID …]      leases
//!   compact 3      alarm get|on|off|9 nospace|corrupt|none [member]      publish 1 name url,url
//!
//! `a..` is everything from a on, `*` every key, `''` the empty text; `\0` and `\xff` are those bytes.

use api::etcdserverpb::compare::TargetUnion;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    AlarmRequest, CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest,
    PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use bytes::Bytes;

use crate::command::{Kind, LeaseExpire, LeaseRenew, PublishMember};

#[derive(Clone, Debug)]
pub enum ScriptStep {
    Range(RangeRequest),
    Command(Kind),
    /// Shows all leases with their keys.
    Leases,
    /// An empty operation; only in a transaction.
    Nothing,
}

pub fn read(script: &str) -> Vec<ScriptStep> {
    let spaced = script.replace(['\n', ','], " ").replace(';', " ; ").replace('{', " { ").replace('}', " } ");
    let mut reader = WordReader { words: spaced.split_whitespace().map(str::to_owned).collect(), at: 0 };
    let steps = reader.steps();
    assert!(reader.peek().is_none(), "not understood from {:?} on in {script:?}", reader.peek());
    steps
}

struct WordReader {
    words: Vec<String>,
    at: usize,
}

impl WordReader {
    fn peek(&self) -> Option<&str> {
        self.words.get(self.at).map(String::as_str)
    }

    fn next(&mut self) -> String {
        let word = self.peek().expect("the script goes on").to_owned();
        self.at += 1;
        word
    }

    fn take(&mut self, word: &str) -> bool {
        let taken = self.peek() == Some(word);
        self.at += usize::from(taken);
        taken
    }

    fn options(&mut self) -> Vec<(String, String)> {
        let mut options = Vec::new();
        while self.peek().is_some_and(|word| !matches!(word, ";" | "}" | "{" | "then" | "else")) {
            let word = self.next();
            let (name, value) = word.split_once('=').unwrap_or((&word, ""));
            options.push((name.to_owned(), value.to_owned()));
        }
        options
    }

    fn steps(&mut self) -> Vec<ScriptStep> {
        let mut steps = Vec::new();
        while self.peek().is_some_and(|word| word != "}") {
            if !self.take(";") {
                steps.push(self.step());
            }
        }
        steps
    }

    fn step(&mut self) -> ScriptStep {
        match self.next().as_str() {
            "range" => ScriptStep::Range(self.range()),
            "put" => ScriptStep::Command(Kind::Put(self.put())),
            "del" => ScriptStep::Command(Kind::DeleteRange(self.delete())),
            "txn" => ScriptStep::Command(Kind::Txn(self.txn())),
            "nothing" => ScriptStep::Nothing,
            "grant" => {
                let (id, ttl) = (number(&self.next()), number(&self.next()));
                ScriptStep::Command(Kind::LeaseGrant(LeaseGrantRequest { id, ttl }))
            }
            "revoke" => {
                ScriptStep::Command(Kind::LeaseRevoke(LeaseRevokeRequest { id: number(&self.next()) }))
            }
            "renew" => {
                let (term, now, mut ids) = self.leader();
                let granted = ids.iter().find(|(name, _)| name == "granted");
                let granted = granted.map(|(_, index)| number(index) as u64);
                ids.retain(|(name, _)| name != "granted");
                let ids = numbers(&ids);
                ScriptStep::Command(Kind::LeaseRenew(LeaseRenew { term, now, ids, granted }))
            }
            "expire" => {
                let (term, now, ids) = self.leader();
                ScriptStep::Command(Kind::LeaseExpire(LeaseExpire { term, now, ids: numbers(&ids) }))
            }
            "leases" => ScriptStep::Leases,
            "compact" => {
                let revision = number(&self.next());
                ScriptStep::Command(Kind::Compact(CompactionRequest { revision, physical: false }))
            }
            "alarm" => ScriptStep::Command(Kind::Alarm(self.alarm())),
            "publish" => ScriptStep::Command(Kind::PublishMember(PublishMember {
                member_id: number(&self.next()) as u64,
                name: self.next(),
                client_urls: self.options().into_iter().map(|(url, _)| url).collect(),
            })),
            other => panic!("no such step: {other}"),
        }
    }

    /// Term, clock and options of a command of the leader; the options are ids, but for `granted=INDEX`.
    fn leader(&mut self) -> (u64, i64, Vec<(String, String)>) {
        (number(&self.next()) as u64, number(&self.next()), self.options())
    }

    fn range(&mut self) -> RangeRequest {
        let (key, range_end) = keys(&self.next());
        let mut request = RangeRequest { key, range_end, ..RangeRequest::default() };
        for (name, value) in self.options() {
            match name.as_str() {
                "limit" => request.limit = number(&value),
                "rev" => request.revision = number(&value),
                "sort" => request.sort_order = choice(&value, &["none", "asc", "desc"]),
                "by" => request.sort_target = choice(&value, &["key", "version", "create", "mod", "value"]),
                "keys" => request.keys_only = true,
                "count" => request.count_only = true,
                "serializable" => request.serializable = true,
                "min_mod" => request.min_mod_revision = number(&value),
                "max_mod" => request.max_mod_revision = number(&value),
                "min_create" => request.min_create_revision = number(&value),
                "max_create" => request.max_create_revision = number(&value),
                other => panic!("no such option of range: {other}"),
            }
        }
        request
    }

    fn put(&mut self) -> PutRequest {
        let word = self.next();
        let (key, value) = word.split_once('=').unwrap_or((&word, ""));
        let mut request = PutRequest { key: text(key), value: text(value), ..PutRequest::default() };
        for (name, value) in self.options() {
            match name.as_str() {
                "lease" => request.lease = number(&value),
                "prev" => request.prev_kv = true,
                "ignore_value" => request.ignore_value = true,
                "ignore_lease" => request.ignore_lease = true,
                other => panic!("no such option of put: {other}"),
            }
        }
        request
    }

    fn delete(&mut self) -> DeleteRangeRequest {
        let (key, range_end) = keys(&self.next());
        let prev_kv = self.options().iter().any(|(name, _)| name == "prev");
        DeleteRangeRequest { key, range_end, prev_kv }
    }

    fn alarm(&mut self) -> AlarmRequest {
        let action = choice(&self.next(), &["get", "on", "off"]);
        let alarm = choice(&self.next(), &["none", "nospace", "corrupt"]);
        let member_id = self.options().first().map_or(0, |(member, _)| number(member) as u64);
        AlarmRequest { action, member_id, alarm }
    }

    fn txn(&mut self) -> TxnRequest {
        let mut request = TxnRequest::default();
        if self.take("if") {
            while self.peek().is_some_and(|word| !matches!(word, "then" | "else" | ";" | "}")) {
                let word = self.next();
                request.compare.push(compare(&word));
            }
        }
        if self.take("then") {
            request.success = self.branch();
        }
        if self.take("else") {
            request.failure = self.branch();
        }
        request
    }

    fn branch(&mut self) -> Vec<RequestOp> {
        assert!(self.take("{"), "a branch begins with {{");
        let ops = self.steps().into_iter().map(op).collect();
        assert!(self.take("}"), "a branch ends with }}");
        ops
    }
}

fn numbers(ids: &[(String, String)]) -> Vec<i64> {
    ids.iter().map(|(id, _)| number(id)).collect()
}

fn op(step: ScriptStep) -> RequestOp {
    let request = match step {
        ScriptStep::Range(request) => Some(Request::RequestRange(request)),
        ScriptStep::Command(Kind::Put(request)) => Some(Request::RequestPut(request)),
        ScriptStep::Command(Kind::DeleteRange(request)) => Some(Request::RequestDeleteRange(request)),
        ScriptStep::Command(Kind::Txn(request)) => Some(Request::RequestTxn(request)),
        ScriptStep::Nothing => None,
        ScriptStep::Leases => panic!("not an operation of a transaction"),
        ScriptStep::Command(other) => panic!("not an operation of a transaction: {other:?}"),
    };
    RequestOp { request }
}

/// `TARGET(KEYS)OPERATOR[OPERAND]`. The operand is of the target's kind; `mod:3` is of another, `_` is none.
fn compare(word: &str) -> Compare {
    let (target, rest) = word.split_once('(').expect("a compare has brackets");
    let (range, rest) = rest.split_once(')').expect("a compare has brackets");
    let operators = ["!=", "=", ">", "<", "?"];
    let operator =
        operators.iter().find(|operator| rest.starts_with(**operator)).expect("a compare has an operator");
    let result = match *operator {
        "=" => 0,
        ">" => 1,
        "<" => 2,
        "!=" => 3,
        _ => 77,
    };
    let operand = &rest[operator.len()..];
    let (kind, operand) = operand.split_once(':').unwrap_or((target, operand));
    let target_union = match kind {
        _ if operand == "_" => None,
        "version" => Some(TargetUnion::Version(number(operand))),
        "create" => Some(TargetUnion::CreateRevision(number(operand))),
        "mod" => Some(TargetUnion::ModRevision(number(operand))),
        "value" => Some(TargetUnion::Value(text(operand))),
        "lease" => Some(TargetUnion::Lease(number(operand))),
        _ => None,
    };
    let target = choice(target, &["version", "create", "mod", "value", "lease"]);
    let (key, range_end) = keys(range);
    Compare { result, target, key, range_end, target_union }
}

pub fn keys(word: &str) -> (Bytes, Bytes) {
    match word.split_once("..") {
        _ if word == "*" => (Bytes::from_static(b"\0"), Bytes::from_static(b"\0")),
        Some((key, "")) => (text(key), Bytes::from_static(b"\0")),
        Some((key, end)) => (text(key), text(end)),
        None => (text(word), Bytes::new()),
    }
}

fn text(word: &str) -> Bytes {
    let mut bytes = Vec::new();
    let mut rest = word.replace("''", "");
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let length = match rest.as_bytes()[at + 1] {
            b'x' => {
                bytes.push(u8::from_str_radix(&rest[at + 2..at + 4], 16).expect("two hex digits"));
                4
            }
            b'0' => {
                bytes.push(0);
                2
            }
            other => panic!("no such escape: {}", other as char),
        };
        rest = rest[at + length..].to_owned();
    }
    bytes.extend_from_slice(rest.as_bytes());
    Bytes::from(bytes)
}

fn number(word: &str) -> i64 {
    word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))
}

/// The position of a name in the list. A number stays as it is, for unknown values.
fn choice(word: &str, names: &[&str]) -> i32 {
    let place = names.iter().position(|name| *name == word).map(|place| place as i32);
    place.unwrap_or_else(|| word.parse().unwrap_or_else(|_| panic!("none of {names:?}: {word}")))
}
