//! Wire errors: every gRPC status that a client of this member can see is made here.
//!
//! * Refusals come from etcd's table, letter for letter. What etcd itself says outside of its table stands
//!   below.
//! * A failure of this process never shows its insides: it is logged here, where it ends, and the client
//!   reads one line that says what could not be done.

mod retry; // when the refused come back

use std::error::Error as _;

use api::Error;
use raft_node::{ProposeError, ReadError, TransferError};
use state_machine::command::DecodeError;
use state_machine::validate::StreamRefusal;
use state_machine::{ApplyError, Failure};
use tonic::{Code, Status};

/// A refusal with a name.
pub fn refused(error: Error) -> Status {
    error.into()
}

/// The member ends before the call does.
pub fn stopped() -> Status {
    refused(Error::Stopped)
}

/// A request whose rest did not arrive.
pub fn incomplete_too_long() -> Status {
    Status::deadline_exceeded("kv-server: the request did not arrive in time")
}

/// A request that would exceed what requests may hold in memory.
pub fn too_many_request_bytes() -> Status {
    later(Status::resource_exhausted("kv-server: too many bytes of requests under way"))
}

/// With the time after which clients that follow gRPC's retry policy come back.
fn later(mut refusal: Status) -> Status {
    refusal.metadata_mut().insert("grpc-retry-pushback-ms", retry::delay_ms().into());
    refusal
}

/// A command that was not replicated.
pub fn proposal(error: ProposeError) -> Status {
    match error {
        ProposeError::TooManyRequests => refused(Error::TooManyRequests),
        ProposeError::TooLarge { .. } => refused(Error::RequestTooLarge),
        // etcd lets the deadline of its internal context through here, in Go's words.
        ProposeError::NoLeader => deadline_exceeded(),
        ProposeError::Timeout => refused(Error::Timeout),
        ProposeError::TimeoutLeaderFail => refused(Error::TimeoutDueToLeaderFail),
        ProposeError::TimeoutConnectionLost => refused(Error::TimeoutDueToConnectionLost),
        ProposeError::Stopped => refused(Error::Stopped),
    }
}

/// A linearizable read that found no read point.
pub fn read_point(error: ReadError) -> Status {
    match error {
        ReadError::TooManyRequests => refused(Error::TooManyRequests),
        ReadError::Timeout => refused(Error::Timeout),
        ReadError::LeaderChanged => refused(Error::LeaderChanged),
        ReadError::Stopped => refused(Error::Stopped),
    }
}

/// A read that the store did not answer.
pub fn read(failure: Failure) -> Status {
    match failure {
        Failure::Refused(error) => refused(error),
        // A bounded read is tried again with more memory, so this is a read whose caller has gone.
        Failure::Interrupted => cancelled(),
        Failure::Released => read_too_slowly(),
        Failure::Broken(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "read failed");
            Status::internal("etcdserver: the store cannot be read")
        }
    }
}

/// A record of the server's own that cannot be read.
pub fn record(fatal: ApplyError) -> Status {
    tracing::error!(error = %fatal, cause = ?fatal.source(), "read of a server record failed");
    Status::internal("etcdserver: the store cannot be read")
}

/// Leadership that did not move.
pub fn transfer(error: TransferError) -> Status {
    match error {
        TransferError::NotLeader => refused(Error::NotLeader),
        TransferError::NoCandidate => refused(Error::BadLeaderTransferee),
        TransferError::Timeout => {
            Status::unknown("etcdserver: request timed out, leader transfer took too long")
        }
        TransferError::Stopped => refused(Error::Stopped),
    }
}

/// A password for a user that has none.
pub fn no_password_user() -> Status {
    Status::unknown("auth: authentication failed, password was given for no password user")
}

/// A password that is longer than bcrypt takes, in the words of Go's bcrypt.
pub fn password_too_long() -> Status {
    Status::unknown("bcrypt: password length exceeds 72 bytes")
}

/// A hash of a password that is not in base64.
pub fn malformed_hash() -> Status {
    Status::unknown("illegal base64 data in the hashed password")
}

/// A hash that takes too long to compare.
pub fn costly_hash(cost_max: u32) -> Status {
    Status::invalid_argument(format!("kv-server: the bcrypt cost of a hashed password is {cost_max} at most"))
}

/// A password that was not hashed: no random numbers, or the member stops.
pub fn no_hash() -> Status {
    Status::internal("etcdserver: the password cannot be hashed")
}

/// A token was asked of a member that has a public key alone.
pub fn verify_only_key() -> Status {
    Status::unknown("auth: token signing attempted with verify-only key")
}

/// A token that the library did not sign.
pub fn unsigned_token() -> Status {
    Status::internal("etcdserver: the token cannot be signed")
}

/// A range that cannot be streamed.
pub fn stream(refusal: StreamRefusal) -> Status {
    match refusal {
        StreamRefusal::Refused(error) => refused(error),
        StreamRefusal::CustomSort => Status::unimplemented("RangeStream does not support custom sort orders"),
        StreamRefusal::RevisionFilter => {
            Status::unimplemented("RangeStream does not support revision filters")
        }
    }
}

/// A blocking task that ended without an answer: it panicked, or the runtime is going down.
pub fn task(error: &tokio::task::JoinError) -> Status {
    tracing::error!(error = %error, "a read ended without an answer");
    Status::internal("etcdserver: the read ended without an answer")
}

/// An error of an inner call of a lock or an election, as etcd's own client hands it on. That the client or
/// its deadline ended the call is no inner error.
pub fn passed_on(status: Status) -> Status {
    match status.code() {
        Code::Cancelled | Code::DeadlineExceeded => status,
        _ => Status::unknown(status.message()),
    }
}

/// A lock whose key was deleted while its caller waited.
pub fn session_expired() -> Status {
    Status::unknown("mutex: session is expired")
}

/// A value proclaimed for a key that is not there, or was created at another revision.
pub fn not_elected() -> Status {
    Status::unknown("election: not leader")
}

/// An election in which nothing is a candidate.
pub fn no_elected_leader() -> Status {
    Status::unknown("election: no leader")
}

/// A request of an election that does not say whose key it means.
pub fn leader_missing() -> Status {
    Status::unknown("\"leader\" field must be provided")
}

/// A task that ended without an answer: it panicked, or the runtime is going down.
pub fn unfinished(error: &tokio::task::JoinError) -> Status {
    tracing::error!(error = %error, "a call ended without an answer");
    Status::internal("etcdserver: the call ended without an answer")
}

/// The deadline of a client has passed, in Go's words, which etcd lets through.
pub fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// The rest of a watch response was compacted, or its client has held a large one for too long. Clients open
/// a new stream after UNAVAILABLE, and learn there if their revision is compacted.
pub fn watch_broken() -> Status {
    Status::unavailable("etcdserver: watch canceled")
}

/// The client has ended its call, in Go's words.
pub fn cancelled() -> Status {
    Status::cancelled("context canceled")
}

/// A `grpc-timeout` header that is none.
pub fn malformed_timeout(reason: &str) -> Status {
    Status::internal(format!("malformed grpc-timeout: {reason}"))
}

/// Too many reads wait already, or one waited too long.
pub fn reads_exhausted() -> Status {
    later(Status::resource_exhausted(
        "etcdserver: too many large reads are under way or waiting; try again later",
    ))
}

/// A large range whose blocks were released: it kept too much space of deleted block files.
fn read_too_slowly() -> Status {
    Status::resource_exhausted(
        "etcdserver: the range was read too slowly while its keys were rewritten; ask for it in pages",
    )
}

/// A snapshot whose client takes it too slowly: no compaction frees space while it lasts.
pub fn snapshot_too_slow(bytes_per_second_min: u64) -> Status {
    Status::resource_exhausted(format!(
        "etcdserver: the snapshot is read at less than {bytes_per_second_min} bytes per second"
    ))
}

/// An answer that would exceed what one answer may hold.
pub fn answer_too_large(bytes_max: u64) -> Status {
    Status::resource_exhausted(format!(
        "etcdserver: the answer needs more memory than this member allows for one answer ({bytes_max} bytes): \
         ask for it in pages"
    ))
}

/// A call that is for another member.
pub fn not_this_member(own: u64, wanted: u64) -> Status {
    Status::not_found(format!("kv-server: this is member {own:x}, not {wanted:x}"))
}

/// A member whose state is not known to be wrong is not re-seeded.
pub fn not_corrupt(member: u64) -> Status {
    Status::failed_precondition(format!("kv-server: no alarm CORRUPT names member {member:x}"))
}

/// A leader has no one to take a state from.
pub fn leads_alone(member: u64) -> Status {
    Status::unavailable(format!("kv-server: member {member:x} leads, and no other member takes over"))
}

/// An alarm action that is not defined. etcd crashes on it.
pub fn unknown_alarm_action() -> Status {
    Status::invalid_argument("etcdserver: unknown alarm action")
}

/// A downgrade action that is not defined, in etcd's words.
pub fn unknown_downgrade_action() -> Status {
    Status::unknown("etcdserver: unknown method")
}

/// A health check of a service that is none.
pub fn unknown_health_service() -> Status {
    Status::not_found("unknown service")
}

pub fn unknown_service(service: &str) -> Status {
    Status::unimplemented(format!("unknown service {service}"))
}

pub fn unknown_method(service: &str, method: &str) -> Status {
    Status::unimplemented(format!("unknown method {method} for service {service}"))
}

pub fn malformed_path(path: &str) -> Status {
    Status::unimplemented(format!("malformed method name: {path:?}"))
}

/// How a request is read. grpc-go's words for a failure depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestForm {
    /// The request of a unary call.
    Unary,
    /// A message of a stream; a call that answers with a stream reads its one request so as well.
    Stream,
}

/// A request that is no protobuf message. The reason is Go's for nearly all of them; ours differ in detail.
pub fn malformed(reading: RequestForm) -> Status {
    const REASON: &str = "proto: cannot parse invalid wire-format data";
    Status::internal(match reading {
        RequestForm::Unary => format!("grpc: error unmarshalling request: {REASON}"),
        RequestForm::Stream => format!("grpc: failed to unmarshal the received message: {REASON}"),
    })
}

/// A transaction that is no message, of too many operations, or nested too deep: etcd counts nesting as
/// operations.
pub fn undecodable(error: &DecodeError) -> Status {
    match error {
        DecodeError::TooDeep | DecodeError::TooMany => refused(Error::TooManyOps),
        DecodeError::Malformed(_) | DecodeError::Field | DecodeError::UnknownKind => {
            malformed(RequestForm::Unary)
        }
    }
}

/// What tonic said about a request that it could not read, as grpc-go says it. Other statuses stay as they
/// are.
pub fn as_grpc_go(status: &Status, reading: RequestForm) -> Option<Status> {
    let text = status.message();
    if let Some(lengths) = text.strip_prefix("Error, decoded message length too large: found ") {
        let (found, limit) = lengths.split_once(" bytes, the limit is: ")?;
        let limit = limit.strip_suffix(" bytes")?;
        return Some(too_large(found.parse().ok()?, limit.parse().ok()?));
    }
    text.starts_with("failed to decode Protobuf message").then(|| malformed(reading))
}

/// A message that is larger than this member takes.
pub fn too_large(bytes: usize, bytes_max: usize) -> Status {
    Status::resource_exhausted(format!("grpc: received message larger than max ({bytes} vs. {bytes_max})"))
}

/// A message marked as compressed in a call that announced no compression.
pub fn compressed_unannounced() -> Status {
    Status::internal("grpc: compressed flag set with identity or empty encoding")
}

/// A stream whose messages are compressed. Other methods answer so as well.
pub fn compressed(encoding: &str) -> Status {
    Status::unimplemented(format!("Content is compressed with `{encoding}` which isn't supported"))
}

/// A stream of requests that ends inside a message.
pub fn cut_short() -> Status {
    Status::internal("unexpected EOF")
}

/// A unary request that ends before its message does, or before the prefix of its message. In the words of
/// grpc-go, as all of these.
pub fn unary_cut_short(has_prefix: bool) -> Status {
    Status::unknown(if has_prefix { "unexpected EOF" } else { "EOF" })
}

/// A prefix whose first byte says neither that the message is compressed nor that it is not.
pub fn unknown_format(flag: u8) -> Status {
    Status::internal(format!("grpc: received unexpected payload format {flag}"))
}

/// A unary request with bytes after its one message.
pub fn more_than_one_message() -> Status {
    Status::internal("cardinality violation: a unary call carries one message")
}

/// A response that gRPC's length field cannot hold.
pub fn too_large_to_send(bytes: usize) -> Status {
    Status::resource_exhausted(format!(
        "grpc: trying to send message larger than max ({bytes} vs. {})",
        u32::MAX
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: &Status, code: Code, text: &str) {
        assert_eq!((status.code(), status.message()), (code, text));
    }

    #[test]
    fn a_write_that_is_not_replicated_says_why_in_etcds_words() {
        use ProposeError as Raft;
        for (error, code, text) in [
            (Raft::NoLeader, Code::DeadlineExceeded, "context deadline exceeded"),
            (Raft::TooManyRequests, Code::Unknown, "etcdserver: too many requests"),
            (
                Raft::TooLarge { bytes: 2, bytes_max: 1 },
                Code::InvalidArgument,
                "etcdserver: request is too large",
            ),
            (Raft::Timeout, Code::Unavailable, "etcdserver: request timed out"),
            (Raft::Stopped, Code::Unavailable, "etcdserver: server stopped"),
        ] {
            check(&proposal(error), code, text);
        }
        let refusal = refused(Error::NoSpace);
        check(&refusal, Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
    }

    #[test]
    fn what_tonic_says_of_an_unreadable_request_becomes_what_grpc_go_says() {
        let tonic = Status::out_of_range(
            "Error, decoded message length too large: found 2500000 bytes, the limit is: 2097152 bytes",
        );
        check(
            &as_grpc_go(&tonic, RequestForm::Unary).unwrap(),
            Code::ResourceExhausted,
            "grpc: received message larger than max (2500000 vs. 2097152)",
        );
        let tonic = Status::internal("failed to decode Protobuf message: buffer underflow");
        check(
            &as_grpc_go(&tonic, RequestForm::Unary).unwrap(),
            Code::Internal,
            "grpc: error unmarshalling request: proto: cannot parse invalid wire-format data",
        );
        check(
            &as_grpc_go(&tonic, RequestForm::Stream).unwrap(),
            Code::Internal,
            "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data",
        );
        assert!(as_grpc_go(&refused(Error::EmptyKey), RequestForm::Unary).is_none());
    }

    /// tonic's words are matched above, so a new version of it must not change them unnoticed.
    #[test]
    fn prost_still_begins_its_complaint_as_it_did() {
        use prost::Message;
        let error = api::etcdserverpb::PutRequest::decode(&b"\x0a\x05a"[..]).unwrap_err();
        assert!(error.to_string().starts_with("failed to decode Protobuf message"), "{error}");
    }
}
