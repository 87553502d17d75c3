//! Constructs every gRPC status that a client of this member can receive.
//!
//! * Errors use etcd's exact messages where etcd defines them, including those outside its error
//!   table.
//! * Internal failures are not exposed: they are logged here, and the client receives a one-line
//!   summary.

mod retry; // when the refused come back

use std::error::Error as _;

use api::Error;
use raft_node::{ProposeError, ReadError, TransferError};
use state_machine::command::DecodeError;
use state_machine::validate::StreamRefusal;
use state_machine::{ApplyError, Failure};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

pub fn refused(error: Error) -> Status {
    error.into()
}

pub fn stopped() -> Status {
    refused(Error::Stopped)
}

/// The request body did not arrive before the deadline.
pub fn incomplete_too_long() -> Status {
    Status::deadline_exceeded("kv-server: the request did not arrive in time")
}

/// The request would exceed the memory limit for requests in flight.
pub fn too_many_request_bytes() -> Status {
    later(Status::resource_exhausted("kv-server: too many request bytes in flight"))
}

/// Adds the retry delay for clients that implement gRPC's retry policy.
fn later(mut refusal: Status) -> Status {
    refusal.metadata_mut().insert("grpc-retry-pushback-ms", retry::delay_ms().into());
    refusal
}

pub fn proposal(error: ProposeError) -> Status {
    match error {
        ProposeError::TooManyRequests => refused(Error::TooManyRequests),
        ProposeError::TooLarge { .. } => refused(Error::RequestTooLarge),
        // etcd returns the deadline error of an internal context here, with Go's message.
        ProposeError::NoLeader => deadline_exceeded(),
        ProposeError::Timeout => refused(Error::Timeout),
        ProposeError::TimeoutLeaderFail if base::mutant("timeouts-without-a-reason") => {
            refused(Error::Timeout)
        }
        ProposeError::TimeoutLeaderFail => refused(Error::TimeoutDueToLeaderFail),
        ProposeError::TimeoutConnectionLost => refused(Error::TimeoutDueToConnectionLost),
        ProposeError::Stopped => refused(Error::Stopped),
    }
}

/// Converts the error of a linearizable read that did not obtain a read index.
pub fn read_point(error: ReadError) -> Status {
    match error {
        ReadError::TooManyRequests => refused(Error::TooManyRequests),
        ReadError::Timeout => refused(Error::Timeout),
        ReadError::LeaderChanged => refused(Error::LeaderChanged),
        ReadError::Stopped => refused(Error::Stopped),
    }
}

pub fn read(failure: Failure) -> Status {
    match failure {
        Failure::Refused(error) => refused(error),
        // Bounded reads are retried with more memory, so this client has disconnected.
        Failure::Interrupted => cancelled(),
        Failure::Released => read_too_slowly(),
        Failure::Broken(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "read failed");
            Status::internal("etcdserver: the store cannot be read")
        }
    }
}

/// A record of the server itself cannot be read.
pub fn record(fatal: ApplyError) -> Status {
    tracing::error!(error = %fatal, cause = ?fatal.source(), "reading a server record failed");
    Status::internal("etcdserver: the store cannot be read")
}

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

/// A password was given for a user without one.
pub fn no_password_user() -> Status {
    Status::unknown("auth: authentication failed, password was given for no password user")
}

/// The password is longer than bcrypt accepts; the message is the one of Go's bcrypt.
pub fn password_too_long() -> Status {
    Status::unknown("bcrypt: password length exceeds 72 bytes")
}

pub fn malformed_hash() -> Status {
    Status::unknown("illegal base64 data in the hashed password")
}

pub fn costly_hash(cost_max: u32) -> Status {
    Status::invalid_argument(format!("kv-server: the bcrypt cost of a hashed password is {cost_max} at most"))
}

/// The password could not be hashed: no random numbers, or the member is stopping.
pub fn no_hash() -> Status {
    Status::internal("etcdserver: the password cannot be hashed")
}

/// A token was requested from a member that has only the public key.
pub fn verify_only_key() -> Status {
    Status::unknown("auth: token signing attempted with verify-only key")
}

pub fn unsigned_token() -> Status {
    Status::internal("etcdserver: the token cannot be signed")
}

pub fn stream(refusal: StreamRefusal) -> Status {
    match refusal {
        StreamRefusal::Refused(error) => refused(error),
        StreamRefusal::CustomSort => Status::unimplemented("RangeStream does not support custom sort orders"),
        StreamRefusal::RevisionFilter => {
            Status::unimplemented("RangeStream does not support revision filters")
        }
    }
}

/// A blocking task panicked, or the runtime is shutting down.
pub fn task(error: &tokio::task::JoinError) -> Status {
    tracing::error!(error = %error, "read finished without a response");
    Status::internal("etcdserver: read finished without a response")
}

/// Converts an error of a nested call of a lock or an election, as etcd's client returns it.
/// Cancellation and an expired deadline keep their codes.
pub fn passed_on(status: Status) -> Status {
    match status.code() {
        Code::Cancelled | Code::DeadlineExceeded => status,
        _ => Status::unknown(status.message()),
    }
}

/// The key of a lock was deleted while the client was waiting.
pub fn session_expired() -> Status {
    Status::unknown("mutex: session is expired")
}

/// The proclaimed key does not exist, or has a different create revision.
pub fn not_elected() -> Status {
    Status::unknown("election: not leader")
}

pub fn no_elected_leader() -> Status {
    Status::unknown("election: no leader")
}

pub fn leader_missing() -> Status {
    Status::unknown("\"leader\" field must be provided")
}

/// A task panicked, or the runtime is shutting down.
pub fn unfinished(error: &tokio::task::JoinError) -> Status {
    tracing::error!(error = %error, "call finished without a response");
    Status::internal("etcdserver: call finished without a response")
}

/// The client's deadline has passed; the message is Go's, which etcd returns as is.
pub fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// The pending events of a watch response were compacted, or the client did not read a large
/// response in time. Clients reopen the stream on UNAVAILABLE, and then learn whether their
/// revision is compacted.
pub fn watch_broken() -> Status {
    Status::unavailable("etcdserver: watch canceled")
}

/// The client cancelled the call; the message is Go's.
pub fn cancelled() -> Status {
    Status::cancelled("context canceled")
}

pub fn malformed_timeout(reason: &str) -> Status {
    Status::internal(format!("malformed grpc-timeout: {reason}"))
}

/// The queue of large reads is full, or the read waited too long.
pub fn reads_exhausted() -> Status {
    later(Status::resource_exhausted(
        "etcdserver: too many large reads are under way or waiting; try again later",
    ))
}

/// The blocks of a large range were released because they retained too much space in deleted block
/// files.
fn read_too_slowly() -> Status {
    Status::resource_exhausted(
        "etcdserver: the range was read too slowly while its keys were rewritten; ask for it in pages",
    )
}

/// The client reads a snapshot too slowly. A snapshot in progress prevents compaction from freeing
/// space.
pub fn snapshot_too_slow(bytes_per_second_min: u64) -> Status {
    Status::resource_exhausted(format!(
        "etcdserver: the snapshot is read at less than {bytes_per_second_min} bytes per second"
    ))
}

pub fn answer_too_large(bytes_max: u64) -> Status {
    Status::resource_exhausted(format!(
        "etcdserver: the answer needs more memory than this member allows for one answer ({bytes_max} bytes): \
         ask for it in pages"
    ))
}

pub fn not_this_member(own: u64, wanted: u64) -> Status {
    Status::not_found(format!("kv-server: this is member {own:x}, not {wanted:x}"))
}

/// Reseeding rejected: the member is not known to be corrupt.
pub fn not_corrupt(member: u64) -> Status {
    Status::failed_precondition(format!("kv-server: no alarm CORRUPT names member {member:x}"))
}

/// Reseeding rejected: the member is the leader and could not transfer leadership.
pub fn leads_alone(member: u64) -> Status {
    Status::unavailable(format!("kv-server: member {member:x} leads, and no other member takes over"))
}

/// Unknown alarm action. etcd panics on it.
pub fn unknown_alarm_action() -> Status {
    Status::invalid_argument("etcdserver: unknown alarm action")
}

pub fn unknown_downgrade_action() -> Status {
    Status::unknown("etcdserver: unknown method")
}

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

/// Decoding path of a request, which determines the message of grpc-go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestForm {
    Unary,
    /// A stream message, or the single request of a server-streaming call.
    Stream,
}

/// The request is not a valid protobuf message. The reason is Go's for nearly all of them; our
/// decoder reports different details.
pub fn malformed(reading: RequestForm) -> Status {
    const REASON: &str = "proto: cannot parse invalid wire-format data";
    Status::internal(match reading {
        RequestForm::Unary => format!("grpc: error unmarshalling request: {REASON}"),
        RequestForm::Stream => format!("grpc: failed to unmarshal the received message: {REASON}"),
    })
}

/// The transaction is malformed, has too many operations, or is nested too deeply, which etcd
/// reports as too many operations.
pub fn undecodable(error: &DecodeError) -> Status {
    match error {
        DecodeError::TooDeep | DecodeError::TooMany => refused(Error::TooManyOps),
        DecodeError::Malformed(_) | DecodeError::Field | DecodeError::UnknownKind => {
            malformed(RequestForm::Unary)
        }
    }
}

pub fn too_large(bytes: usize, bytes_max: usize) -> Status {
    Status::resource_exhausted(format!("grpc: received message larger than max ({bytes} vs. {bytes_max})"))
}

/// A message is marked as compressed, but the call declared no compression.
pub fn compressed_unannounced() -> Status {
    Status::internal("grpc: compressed flag set with identity or empty encoding")
}

/// The call declares a compression. The status names the accepted encodings, as gRPC requires.
pub fn compressed(encoding: &str) -> Status {
    let text = format!("Content is compressed with `{encoding}` which isn't supported");
    let mut refusal = Status::unimplemented(text);
    refusal.metadata_mut().insert("grpc-accept-encoding", MetadataValue::from_static("identity"));
    refusal
}

/// The request stream was closed in the middle of a message.
pub fn cut_short() -> Status {
    Status::internal("unexpected EOF")
}

/// A unary request was closed before the end of its message, or of the message prefix. The message
/// is grpc-go's, like the following ones.
pub fn unary_cut_short(has_prefix: bool) -> Status {
    Status::unknown(if has_prefix { "unexpected EOF" } else { "EOF" })
}

/// The payload format of a message prefix is neither 0 nor 1.
pub fn unknown_format(format: u8) -> Status {
    Status::internal(format!("grpc: received unexpected payload format {format}"))
}

/// The call with a stream of responses has more than one request. The messages are grpc-go's.
pub fn more_than_one_message() -> Status {
    Status::internal("cardinality violation: received multiple request messages for non-client-streaming RPC")
}

/// The call with a stream of responses has no request.
pub fn no_message() -> Status {
    Status::internal("cardinality violation: received no request message from non-client-streaming RPC")
}

/// The response exceeds gRPC's 32-bit length field.
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
            (
                Raft::TimeoutLeaderFail,
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
            ),
            (
                Raft::TimeoutConnectionLost,
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to connection lost",
            ),
            (Raft::Stopped, Code::Unavailable, "etcdserver: server stopped"),
        ] {
            check(&proposal(error), code, text);
        }
        let refusal = refused(Error::NoSpace);
        check(&refusal, Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
    }

    #[test]
    fn a_malformed_request_is_rejected_in_the_words_of_grpc_go() {
        let texts = [
            "grpc: error unmarshalling request: proto: cannot parse invalid wire-format data",
            "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data",
        ];
        for (form, text) in [RequestForm::Unary, RequestForm::Stream].into_iter().zip(texts) {
            check(&malformed(form), Code::Internal, text);
        }
    }
}
