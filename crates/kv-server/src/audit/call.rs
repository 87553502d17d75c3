//! An audited call, from its start to its line.

use std::net::SocketAddr;
use std::sync::Arc;

use api::{CODE_NAMES, Error, Method};
use bytes::Bytes;
use serde::Serialize;
use tonic::{Code, Status};

use super::queue::{AuditError, AuditQueue, now};
use super::subject::{AuditSubject, start_of};
use auth::{Auth, Requester};
use config::{AuditLevel, AuditSettings};
use telemetry::metrics::AuditMetrics;

/// The target of audit lines, and the level that selects calls.
#[derive(Debug)]
pub struct AuditLog {
    queue: AuditQueue,
    level: AuditLevel,
    auth: Arc<Auth>,
}

/// A call in progress. Its line is written when it completes. A call dropped before that was cancelled by
/// its client.
#[derive(Debug)]
pub struct AuditedCall {
    log: Arc<AuditLog>,
    requester: Requester,
    /// Resolved at the start: the call may invalidate its own token.
    user: Option<String>,
    is_root: bool,
    method: Method,
    request: Bytes,
    /// The subject of the request, if it is known already.
    subject: Option<AuditSubject>,
    has_ended: bool,
}

impl AuditLog {
    /// Returns None without `--audit-log`.
    pub fn start(
        settings: Option<&AuditSettings>,
        auth: &Arc<Auth>,
        metrics: &AuditMetrics,
    ) -> Result<Option<Arc<AuditLog>>, AuditError> {
        let Some(AuditSettings { target, level }) = settings else { return Ok(None) };
        let queue = AuditQueue::start(target, metrics.clone())?;
        Ok(Some(Arc::new(AuditLog { queue, level: *level, auth: Arc::clone(auth) })))
    }

    /// Flushes the remaining lines, for a second at most. Blocks.
    pub fn close(&self) {
        self.queue.close();
    }

    /// Starts auditing a call.
    pub fn begin(self: &Arc<Self>, requester: Requester, method: Method) -> AuditedCall {
        let caller = self.auth.user_of(&requester.identity);
        let (user, is_root) = (caller.user().map(str::to_owned), caller.is_root());
        let (log, request) = (Arc::clone(self), Bytes::new());
        AuditedCall { log, requester, user, is_root, method, request, subject: None, has_ended: false }
    }
}

impl AuditedCall {
    /// Sets the encoded request.
    pub fn with_request(mut self, request: Bytes) -> AuditedCall {
        self.request = request;
        self
    }

    /// Sets the subject of a request that is not retained.
    pub fn with_subject(mut self, subject: AuditSubject) -> AuditedCall {
        self.subject = Some(subject);
        self
    }

    /// Completes the call with the revision of its response, or with an error.
    pub fn end(mut self, result: Result<Option<i64>, &Status>) {
        self.finish(result);
    }

    /// Completes a call with a request that is not encoded; see [`AuditedCall::end`].
    pub fn end_of(self, subject: AuditSubject, result: Result<Option<i64>, &Status>) {
        self.with_subject(subject).end(result);
    }

    fn finish(&mut self, result: Result<Option<i64>, &Status>) {
        self.has_ended = true;
        let is_refused = result.is_err_and(|status| self.is_refusal(status));
        if !is_refused && self.log.level == AuditLevel::Refused {
            return;
        }
        let subject = self.subject.take().unwrap_or_else(|| {
            let caller = is_refused.then(|| self.log.auth.user_of(&self.requester.identity));
            let refused_user = caller.filter(|caller| caller.user().is_some());
            let request = std::mem::take(&mut self.request);
            AuditSubject::of(self.method, request, refused_user)
        });
        let is_logged = match self.log.level {
            AuditLevel::Refused => is_refused,
            AuditLevel::Changes => is_refused || subject.is_change,
            AuditLevel::Requests => true,
        };
        if !is_logged {
            return;
        }
        let user = self.user.take().or_else(|| {
            // The token may have become known while the call was in progress.
            self.log.auth.user_of(&self.requester.identity).user().map(str::to_owned)
        });
        let line = AuditLine {
            ts: now(),
            user: user.as_deref().map(start_of),
            common_name: self
                .requester
                .connection
                .certificate
                .as_ref()
                .map(|session| start_of(session.user())),
            address: self.requester.connection.address,
            method: self.method.path(),
            subject: &subject,
            revision: result.ok().flatten(),
            refused: is_refused,
            result: result.map_or_else(|status| code_name(status.code()), |_| code_name(Code::Ok)),
            error: result.err().map(|status| start_of(status.message())),
        };
        self.log.queue.push(line.text(), self.requester.ip());
    }

    /// Reports whether the call failed because of its caller.
    fn is_refusal(&self, status: &Status) -> bool {
        const REFUSALS: [Error; 5] = [
            Error::UserEmpty,
            Error::PermissionDenied,
            Error::InvalidAuthToken,
            Error::AuthOldRevision,
            Error::AuthFailed,
        ];
        REFUSALS.iter().any(|error| status.message() == error.message())
            || (self.method == Method::Authenticate && status.message() == grpc_errors::no_password_user().message())
            // A certificate or a signed token may name an unknown user.
            || (status.message() == Error::UserNotFound.message() && !self.is_root)
    }
}

impl Drop for AuditedCall {
    fn drop(&mut self) {
        if !self.has_ended {
            self.finish(Err(&Status::cancelled("the client canceled the call")));
        }
    }
}

/// One line. The order of the fields is that of the output.
#[derive(Serialize)]
struct AuditLine<'a> {
    ts: String,
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    common_name: Option<&'a str>,
    address: Option<SocketAddr>,
    method: &'static str,
    #[serde(flatten)]
    subject: &'a AuditSubject,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<i64>,
    refused: bool,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl AuditLine<'_> {
    fn text(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers are JSON")
    }
}

fn code_name(code: Code) -> &'static str {
    CODE_NAMES.get(code as usize).copied().unwrap_or("Unknown")
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::etcdserverpb::request_op::Request as Op;
    use api::etcdserverpb::*;
    use prost::Message;

    fn line(method: Method, request: &impl Message, result: Result<Option<i64>, &Status>) -> String {
        let subject = AuditSubject::of(method, request.encode_to_vec().into(), None);
        let line = AuditLine {
            ts: "T".to_owned(),
            user: Some("alice\"\n"),
            common_name: None,
            address: Some(([127, 0, 0, 1], 7).into()),
            method: method.path(),
            subject: &subject,
            revision: result.ok().flatten(),
            refused: result.is_err(),
            result: result.map_or_else(|status| code_name(status.code()), |_| code_name(Code::Ok)),
            error: result.err().map(Status::message),
        };
        line.text()
    }

    #[test]
    fn a_line_has_what_the_request_names_and_no_value_and_no_password() {
        let put = |key: &'static str, lease| PutRequest {
            key: key.into(),
            value: "s3cret".into(),
            lease,
            ..PutRequest::default()
        };
        let op = |op| RequestOp { request: Some(op) };
        let inner = TxnRequest {
            failure: vec![op(Op::RequestPut(put("n", 9)))],
            compare: vec![Compare { key: "c".into(), range_end: "d".into(), ..Compare::default() }],
            ..TxnRequest::default()
        };
        let delete = DeleteRangeRequest { key: "x".into(), range_end: "\0".into(), prev_kv: true };
        let txn = TxnRequest {
            success: vec![op(Op::RequestTxn(inner)), op(Op::RequestDeleteRange(delete))],
            ..TxnRequest::default()
        };
        let user = AuthUserAddRequest { name: "bob".into(), password: "s3cret".into(), ..Default::default() };
        let denied = Status::permission_denied("etcdserver: permission denied");
        let head = r#"{"ts":"T","user":"alice\"\n","address":"127.0.0.1:7","method":"/etcdserverpb."#;
        for (line, wanted) in [
            (
                line(Method::KvPut, &put("a\"", 7), Ok(Some(5))),
                r#"KV/Put","keys":[{"access":"write","key":"YSI="}],"lease":7,"revision":5,"refused":false,"result":"OK"}"#,
            ),
            (
                line(Method::KvTxn, &txn, Err(&denied)),
                r#"KV/Txn","keys":[{"access":"read","key":"Yw==","range_end":"ZA=="},{"access":"write","key":"bg=="},{"access":"delete","key":"eA==","range_end":"AA=="}],"lease":9,"refused":true,"result":"PermissionDenied","error":"etcdserver: permission denied"}"#,
            ),
            (
                line(Method::AuthUserAdd, &user, Ok(None)),
                r#"Auth/UserAdd","of_user":"bob","refused":false,"result":"OK"}"#,
            ),
        ] {
            assert_eq!(line, format!("{head}{wanted}"));
            assert!(!line.contains("s3cret") && !line.contains("czNjcmV0"), "{line}");
        }
    }

    #[test]
    fn a_line_names_the_member_whose_state_is_given_up() {
        let request = api::kvserver::ReseedRequest { member_id: 0xab };
        let line = line(Method::RepairReseed, &request, Ok(None));
        assert!(line.contains(r#"Repair/Reseed","member":"ab","refused""#), "{line}");
    }

    #[test]
    fn a_line_is_short_whatever_the_request_is() {
        let range = |n: usize| {
            let range = RangeRequest { key: vec![b'k'; 1000 + n].into(), ..RangeRequest::default() };
            RequestOp { request: Some(Op::RequestRange(range)) }
        };
        let txn = TxnRequest { success: (0..100).map(range).collect(), ..TxnRequest::default() };
        let line = line(Method::KvTxn, &txn, Ok(None));
        assert!(line.len() < 12 << 10 && line.contains(r#""truncated":true"#), "{} bytes", line.len());
    }

    /// The transaction is followed by an invalid byte, which must not be read.
    #[test]
    fn a_transaction_is_read_no_further_than_its_line_needs() {
        let put = PutRequest { key: "k".into(), ..PutRequest::default() };
        for (op, count) in [(Op::RequestPut(put), 17), (Op::RequestRange(RangeRequest::default()), 500)] {
            let op = RequestOp { request: Some(op) };
            let mut message =
                TxnRequest { success: vec![op; count], ..TxnRequest::default() }.encode_to_vec();
            message.push(0xff);
            let subject = AuditSubject::of(Method::KvTxn, message.into(), None);
            let text = serde_json::to_string(&subject).unwrap();
            assert!(text.matches("access").count() == 16 && text.contains(r#""truncated":true"#), "{text}");
            assert!(subject.is_change, "what is not read may be one");
        }
    }

    #[test]
    fn a_transaction_that_only_reads_is_no_change() {
        let read = RequestOp { request: Some(Op::RequestRange(RangeRequest::default())) };
        let write = RequestOp { request: Some(Op::RequestPut(PutRequest::default())) };
        let of = |op: RequestOp| {
            let txn = TxnRequest { failure: vec![op], ..TxnRequest::default() };
            AuditSubject::of(Method::KvTxn, txn.encode_to_vec().into(), None).is_change
        };
        assert!(!of(read) && of(write));
        let alarm = |action| {
            let request = AlarmRequest { action, ..AlarmRequest::default() };
            AuditSubject::of(Method::MaintenanceAlarm, request.encode_to_vec().into(), None).is_change
        };
        assert!(!alarm(0) && alarm(1) && alarm(2));
    }
}
