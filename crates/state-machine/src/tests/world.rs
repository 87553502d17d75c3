//! Two machines that apply the same commands, and the text form of outcomes.
//!
//! A step is validated as in a server, and then read or applied. One machine returns outcomes, the other does
//! not. Both must hold the same bytes after each script.
//!
//!   range   [a=1@2.3.2 b=@4.4.1+7] of 5 more r4      key=value@create.mod.version+lease, count, more, header
//!   revision
//!   put     put r3 was a=1@2.2.1                     del     del 2 r4 was a=1@2.2.1 b=2@3.3.1
//!   txn     yes r5 { put r5; [..] of 1 r5 }          error   its name in etcd's table

use api::etcdserverpb::response_op;
use api::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader, ResponseOp, TxnRequest, TxnResponse};
use api::mvccpb::KeyValue;
use bytes::Bytes;
use mvcc::{Import, ImportedState, LogPosition, MemoryBackend, StoreOptions};

use super::script::{ScriptStep, read};
use crate::command::{self, Kind};
use crate::{
    Answer, AuthState, EtcdMachine, Failure, Genesis, Outcome, Response, get, is_get, range, read_txn,
    validate,
};

/// etcd's default.
const TXN_OPS_MAX: usize = 128;

pub struct World {
    pub asked: EtcdMachine,
    pub silent: EtcdMachine,
    pub at: LogPosition,
}

pub fn machine(genesis: &Genesis) -> EtcdMachine {
    opened(MemoryBackend::new(), genesis)
}

fn opened(backend: MemoryBackend, genesis: &Genesis) -> EtcdMachine {
    let (writer, _, _) = mvcc::open(Box::new(backend), StoreOptions::default()).unwrap();
    EtcdMachine::new(writer, genesis).unwrap()
}

impl World {
    pub fn new() -> Self {
        Self::with_genesis(&Genesis::default())
    }

    pub fn with_genesis(genesis: &Genesis) -> Self {
        World { asked: machine(genesis), silent: machine(genesis), at: LogPosition::new(0, 1) }
    }

    /// Two machines that begin without keys at this revision, as after an import.
    pub fn imported(revision: i64, auth: &AuthState) -> Self {
        let at = LogPosition::new(1, 1);
        let machine = || {
            let backend = MemoryBackend::new();
            let mut import = Import::begin(Box::new(backend.clone()), &StoreOptions::default()).unwrap();
            for (item, value) in crate::auth_items(auth).unwrap() {
                import.item(&item, &value).unwrap();
            }
            import.finish(ImportedState { applied: at, revision, compact_revision: -1 }).unwrap();
            opened(backend, &Genesis::default())
        };
        World { asked: machine(), silent: machine(), at }
    }

    /// Runs every step and returns the result of the last one.
    pub fn play(&mut self, script: &str) -> String {
        let mut answer = String::new();
        for step in read(script) {
            answer = match self.step(step) {
                Ok(answer) => answer,
                Err(error) => format!("{error:?}"),
            };
        }
        self.assert_equal();
        answer
    }

    fn step(&mut self, step: ScriptStep) -> Result<String, api::Error> {
        match step {
            ScriptStep::Range(request) => self.range(&request).map(|response| show_range(&response)),
            ScriptStep::Command(Kind::Txn(request)) if validate::is_read_only(&request) => {
                self.read_txn(request)
            }
            ScriptStep::Command(kind) => self.apply(kind).map(|response| show(&response)),
            ScriptStep::Leases => Ok(self.leases()),
            ScriptStep::Nothing => panic!("nothing is an operation of a transaction only"),
        }
    }

    pub fn range(&self, request: &RangeRequest) -> Result<RangeResponse, api::Error> {
        validate::range(request)?;
        let response = range(self.asked.store(), request, &()).map_err(refusal);
        if is_get(request) {
            // Into one that was used before.
            let mut got =
                RangeResponse { more: true, kvs: vec![KeyValue::default(); 2], ..Default::default() };
            let refused = get(self.asked.store(), request, &mut got).map_err(refusal);
            assert_eq!(refused.map(|()| got), response, "{request:?}");
        }
        response
    }

    /// Reads and also applies it. Both must give the same result.
    fn read_txn(&mut self, request: TxnRequest) -> Result<String, api::Error> {
        validate::txn(&request, TXN_OPS_MAX)?;
        let read = read_txn(self.asked.store(), &request, &()).map_err(refusal);
        let applied = self.apply(Kind::Txn(request)).map(|response| show(&response));
        let read = read.map(|response| show_txn(&response));
        if applied != Err(api::Error::Corrupt) {
            assert_eq!(read, applied, "read and applied");
        }
        read
    }

    pub fn apply(&mut self, kind: Kind) -> Outcome {
        match &kind {
            Kind::Put(request) => validate::put(request)?,
            Kind::DeleteRange(request) => validate::delete_range(request)?,
            Kind::Txn(request) => validate::txn(request, TXN_OPS_MAX)?,
            Kind::Compact(_)
            | Kind::Alarm(_)
            | Kind::PublishMember(_)
            | Kind::Auth(_)
            | Kind::SetDowngrade(_)
            | Kind::RaiseLevel(_)
            | Kind::MemberChange(_) => {}
            Kind::LeaseGrant(_) | Kind::LeaseRevoke(_) | Kind::LeaseExpire(_) | Kind::LeaseRenew(_) => {}
        }
        self.apply_unvalidated(&command::encode(kind))
    }

    pub fn apply_unvalidated(&mut self, command: &Bytes) -> Outcome {
        self.at.index += 1;
        let outcome = self.asked.apply(self.at, command, Answer::Wanted).unwrap();
        let nothing = self.silent.apply(self.at, command, Answer::Unwanted).unwrap();
        assert_eq!(nothing, None, "an outcome that was not requested");
        self.asked.end_entry(self.at).unwrap();
        self.silent.end_entry(self.at).unwrap();
        outcome.expect("a requested outcome")
    }

    /// All leases in memory and their keys. The store must hold the same.
    fn leases(&self) -> String {
        let (table, store) = (self.asked.leases(), self.asked.store());
        let leases = table.scan(None, usize::MAX);
        assert_eq!(leases, crate::leases(store.items(b"")).unwrap(), "leases in memory and in the store");
        let shown = leases.iter().map(|(id, lease)| {
            let deadline = lease.deadline.map_or(String::new(), |deadline| format!("@{deadline}"));
            let keys: Vec<_> = store
                .keys_of_lease(*id, &())
                .unwrap()
                .iter()
                .map(|key| key.escape_ascii().to_string())
                .collect();
            format!("{id}={}s{deadline}[{}]", lease.ttl, keys.join(" "))
        });
        format!("leases {} at {}", shown.collect::<Vec<_>>().join(" "), table.clock())
    }

    /// Checks that both machines hold the same bytes.
    pub fn assert_equal(&self) {
        let (asked, silent) = (self.asked.store(), self.silent.store());
        assert_eq!(asked.hash_kv(0).unwrap(), silent.hash_kv(0).unwrap(), "hash of history");
        assert_eq!(asked.items(b""), silent.items(b""), "items");
        assert_eq!(asked.size().memory, silent.size().memory);
        assert_eq!(asked.applied(), silent.applied());
        assert_eq!(asked.applied().index, self.at.index);
    }
}

pub fn refusal(failure: Failure) -> api::Error {
    match failure {
        Failure::Refused(error) => error,
        Failure::Broken(error) => panic!("the store broke: {error}"),
        Failure::Interrupted | Failure::Released => panic!("a read without a meter was interrupted"),
    }
}

fn show(response: &Response) -> String {
    match response {
        Response::Put(put) => {
            let was = put.prev_kv.as_ref().map_or(String::new(), |kv| format!(" was {}", show_kv(kv)));
            format!("put {}{was}", show_header(&put.header))
        }
        Response::DeleteRange(delete) => {
            let was = if delete.prev_kvs.is_empty() { "" } else { " was " };
            format!(
                "del {} {}{was}{}",
                delete.deleted,
                show_header(&delete.header),
                show_kvs(&delete.prev_kvs)
            )
        }
        Response::Txn(txn) => show_txn(txn),
        Response::Compact(compact) => format!("compact {}", show_header(&compact.header)),
        Response::Alarm(alarm) => {
            let names = ["none", "nospace", "corrupt"];
            let alarms =
                alarm.alarms.iter().map(|it| format!("{}:{}", it.member_id, names[it.alarm as usize]));
            format!("alarms [{}] {}", alarms.collect::<Vec<_>>().join(" "), show_header(&alarm.header))
        }
        Response::PublishMember => "published".to_owned(),
        Response::LeaseGrant(grant) => {
            format!("lease {} {}s {}", grant.id, grant.ttl, show_header(&grant.header))
        }
        Response::LeaseRevoke(revoke) => format!("revoked {}", show_header(&revoke.header)),
        Response::LeaseExpire(count) => format!("expired {count}"),
        Response::LeaseRenew => "renewed".to_owned(),
        Response::SetDowngrade => "downgrade set".to_owned(),
        Response::RaiseLevel => "level raised".to_owned(),
        Response::Auth(header) => format!("auth {}", show_header(header)),
        Response::Authenticate(response) => format!("token {}", show_header(&response.header)),
        Response::Members(members) => format!("{} members", members.len()),
    }
}

fn show_txn(txn: &TxnResponse) -> String {
    let taken = if txn.succeeded { "yes" } else { "no" };
    let ops: Vec<_> = txn.responses.iter().map(show_op).collect();
    format!("{taken} {} {{ {} }}", show_header(&txn.header), ops.join("; "))
}

fn show_op(op: &ResponseOp) -> String {
    match op.response.clone().expect("every operation has a response") {
        response_op::Response::ResponseRange(range) => show_range(&range),
        response_op::Response::ResponsePut(put) => show(&Response::Put(put)),
        response_op::Response::ResponseDeleteRange(delete) => show(&Response::DeleteRange(delete)),
        response_op::Response::ResponseTxn(txn) => show_txn(&txn),
    }
}

pub fn show_range(range: &RangeResponse) -> String {
    let more = if range.more { " more" } else { "" };
    format!("[{}] of {}{more} {}", show_kvs(&range.kvs), range.count, show_header(&range.header))
}

fn show_kvs(kvs: &[KeyValue]) -> String {
    kvs.iter().map(show_kv).collect::<Vec<_>>().join(" ")
}

fn show_kv(kv: &KeyValue) -> String {
    let (key, value) = (kv.key.escape_ascii(), kv.value.escape_ascii());
    let lease = if kv.lease == 0 { String::new() } else { format!("+{}", kv.lease) };
    format!("{key}={value}@{}.{}.{}{lease}", kv.create_revision, kv.mod_revision, kv.version)
}

fn show_header(header: &Option<ResponseHeader>) -> String {
    match header {
        Some(ResponseHeader { cluster_id: 0, member_id: 0, raft_term: 0, revision }) => {
            format!("r{revision}")
        }
        Some(other) => panic!("only the server knows these: {other:?}"),
        None => "headless".to_owned(),
    }
}
