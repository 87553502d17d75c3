//! Authorization matrix: each call of `interop/cases/authorization.matrix` with each credential, compared
//! with real etcd's outcome.
//!
//! An outcome is `OK`, or the status with its text; for a rejected watcher, the reason in its response. Other
//! contents of responses are compared by the recordings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use api::Method;
use api::etcdserverpb::{AuthenticateRequest, AuthenticateResponse, WatchResponse};
use prost::Message as _;
use serde::Deserialize;

use crate::client::{Client, Requests};
use crate::recording::{Outcome, Packed};
use crate::server::{self, Server};

#[derive(Deserialize)]
struct Matrix {
    /// A token that no server issued.
    garbage: String,
    /// Server flags in addition to those of every replay.
    flags: Vec<String>,
    credentials: Vec<String>,
    /// Outcomes by letter.
    outcomes: HashMap<char, String>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    role: Role,
    /// A letter per credential; empty if the row is not repeated for each credential.
    #[serde(default)]
    outcomes: String,
    call: String,
    method: String,
    /// True for methods with a request stream.
    #[serde(default)]
    sends: bool,
    request: Packed,
}

#[derive(Deserialize, PartialEq, Eq, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Role {
    /// Sent once without a token, before auth is enabled.
    Before,
    /// Sent by root before each call of the next row.
    Root,
    /// Sent with each credential.
    Each,
}

/// An intended difference.
struct Exception {
    call: &'static str,
    credentials: &'static [&'static str],
    etcd: &'static str,
    ours: &'static str,
    why: &'static str,
}

const EXCEPTIONS: &[Exception] = &[
    Exception {
        call: r#"Range key:"c" range_end:"b""#,
        credentials: &["reader"],
        etcd: DENIED,
        ours: "OK",
        why: NO_KEYS,
    },
    Exception {
        call: r#"Range key:"c" range_end:"a""#,
        credentials: &["reader"],
        etcd: DENIED,
        ours: "OK",
        why: NO_KEYS,
    },
    Exception {
        call: r#"Watch create_request:{key:"c" range_end:"b"}"#,
        credentials: &["reader"],
        etcd: "canceled: rpc error: code = PermissionDenied desc = etcdserver: permission denied",
        ours: "canceled: mvcc: watcher range is empty",
        why: NO_KEYS,
    },
    Exception { call: "Txn", credentials: &["none"], etcd: "OK", ours: NO_NAME, why: NO_OPERATION },
    Exception {
        call: "Txn success:{request_txn:{}}",
        credentials: &["none"],
        etcd: "OK",
        ours: NO_NAME,
        why: NO_OPERATION,
    },
    Exception {
        call: "Txn success:{request_txn:{success:{request_txn:{}}}}",
        credentials: &["none"],
        etcd: "OK",
        ours: NO_NAME,
        why: NO_OPERATION,
    },
    Exception { call: "MemberAdd", credentials: &["none"], etcd: BAD_URLS, ours: NO_NAME, why: CALLER_FIRST },
    Exception {
        call: "MemberAdd",
        credentials: &["garbage", "ended"],
        etcd: BAD_URLS,
        ours: "Unauthenticated: etcdserver: invalid auth token",
        why: CALLER_FIRST,
    },
    Exception {
        call: "MemberAdd",
        credentials: &["bare", "reader", "writer", "other", "both"],
        etcd: BAD_URLS,
        ours: DENIED,
        why: CALLER_FIRST,
    },
    Exception {
        call: r#"UserGet name:"""#,
        credentials: &["none"],
        etcd: "FailedPrecondition: etcdserver: user name not found",
        ours: NO_NAME,
        why: "etcd takes a caller without a name for the user without a name",
    },
];

const DENIED: &str = "PermissionDenied: etcdserver: permission denied";
const NO_NAME: &str = "InvalidArgument: etcdserver: user name is empty";
const BAD_URLS: &str = "InvalidArgument: etcdserver: given member URLs are invalid";

const NO_KEYS: &str = "a range without keys is permitted where its first key is; in etcd that depends on how \
                       permissions were cut into ranges";
const NO_OPERATION: &str = "a transaction without an operation needs a user, as every other one does";
const CALLER_FIRST: &str = "the caller is checked before the request";

fn read() -> Matrix {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/recordings/authorization.matrix");
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("parse {}: {error}", path.display()))
}

/// A member with auth enabled, and a client per credential.
struct Player {
    _server: Server,
    clients: HashMap<String, Client>,
}

impl Player {
    async fn start(matrix: &Matrix) -> Self {
        let server = Server::start(&matrix.flags);
        let client = Client::connect(server.client_port()).await.expect("a member that is ready");
        for row in matrix.rows.iter().filter(|row| row.role == Role::Before) {
            assert_eq!(row.call_with(&client).await, "OK", "{}", row.call);
        }
        let mut clients = HashMap::new();
        for name in &matrix.credentials {
            let token = match name.as_str() {
                "none" => String::new(),
                "garbage" => matrix.garbage.clone(),
                user => authenticate(&client, user).await,
            };
            clients.insert(name.clone(), client.with_token(&token));
        }
        Self { _server: server, clients }
    }
}

async fn authenticate(client: &Client, user: &str) -> String {
    let request = AuthenticateRequest { name: user.to_owned(), password: user.to_owned() };
    let outcome = client.call(Method::Authenticate.path(), request.encode_to_vec().into()).await;
    let answer = outcome.answers.first().unwrap_or_else(|| panic!("authenticate {user}: {outcome:?}"));
    AuthenticateResponse::decode(answer.clone()).expect("the answer of Authenticate").token
}

impl Row {
    /// Sends the call, and takes the first response or the status.
    async fn call_with(&self, client: &Client) -> String {
        let requests = if self.sends { Requests::Any } else { Requests::One };
        let mut stream = client.open(&self.method, Some(self.request.unpack()), requests);
        let first = stream.take(1).await;
        stream.cancel();
        outcome(&self.method, &first)
    }
}

fn outcome(method: &str, first: &Outcome) -> String {
    match first.answers.first() {
        None if first.code == "OK" => "OK without an answer".to_owned(),
        None => format!("{}: {}", first.code, first.message),
        Some(answer) if method == Method::Watch.path() => {
            let response = WatchResponse::decode(answer.clone()).expect("the answer of a watch");
            if response.canceled { format!("canceled: {}", response.cancel_reason) } else { "OK".to_owned() }
        }
        Some(_) => "OK".to_owned(),
    }
}

/// Returns the difference of `actual`, if any.
fn judge(call: &str, credential: &str, etcd: &str, actual: &str, exceptions: &[Exception]) -> Option<String> {
    let exception =
        exceptions.iter().find(|entry| entry.call == call && entry.credentials.contains(&credential));
    let what = match exception {
        None if actual == etcd => return None,
        None => "another outcome",
        Some(exception) if exception.etcd != etcd => "the exception has another answer of etcd",
        Some(exception) if exception.ours == actual => return None,
        Some(_) if actual == etcd => "an exception is listed, but the outcome is etcd's: drop the exception",
        Some(_) => "not even the outcome that the exception allows",
    };
    Some(format!("{credential}: {call}\n   {what}\n   - {etcd}\n   + {actual}"))
}

#[tokio::test]
async fn each_call_with_each_credential_has_the_outcome_that_etcd_gave() {
    let matrix = read();
    let exceptions = if server::overridden() { &[] } else { EXCEPTIONS };
    let player = Player::start(&matrix).await;
    let (mut failures, mut by_root) = (Vec::new(), Vec::new());
    for row in matrix.rows.iter().filter(|row| row.role != Role::Before) {
        if row.role == Role::Root {
            by_root.push(row);
            continue;
        }
        for (name, letter) in matrix.credentials.iter().zip(row.outcomes.chars()) {
            for before in &by_root {
                before.call_with(&player.clients["root"]).await; // Its change may have been made already.
            }
            let actual = row.call_with(&player.clients[name]).await;
            failures.extend(judge(&row.call, name, &matrix.outcomes[&letter], &actual, exceptions));
        }
        by_root.clear();
    }
    assert!(failures.is_empty(), "{} outcomes differ\n\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn the_matrix_calls_each_method_with_eight_kinds_of_credential() {
    let matrix = read();
    let answered: Vec<&Row> = matrix.rows.iter().filter(|row| row.role == Role::Each).collect();
    for row in &answered {
        assert_eq!(row.outcomes.len(), matrix.credentials.len(), "{}", row.call);
    }
    let called: BTreeSet<&str> = answered.iter().map(|row| row.method.as_str()).collect();
    let of_etcd = Method::ALL.iter().filter(|method| method.service() != "kvserver.Repair");
    let missing: Vec<_> = of_etcd.filter(|method| !called.contains(method.path())).collect();
    assert!(missing.is_empty(), "no row calls {missing:?}");
    for kind in ["none", "garbage", "ended", "bare", "reader", "writer", "other", "both", "root"] {
        assert!(matrix.credentials.iter().any(|name| name == kind), "{kind}");
    }
}

/// Apart from calls with a user, only these calls have an outcome other than a rejected user.
#[test]
fn a_token_that_is_not_valid_is_refused_by_all_methods_that_need_one() {
    let matrix = read();
    let mut open = BTreeMap::<&str, BTreeSet<&str>>::new();
    for row in matrix.rows.iter().filter(|row| row.role == Role::Each) {
        for (name, letter) in matrix.credentials.iter().zip(row.outcomes.chars()) {
            let is_open = matrix.outcomes[&letter] == "OK" && ["none", "garbage", "ended"].contains(&&**name);
            if is_open {
                open.entry(name.as_str()).or_default().insert(row.method.rsplit('/').next().unwrap_or(""));
            }
        }
    }
    let health_and_passwords = ["Authenticate", "Check", "List", "Watch"];
    let shown = |name: &str| open[name].iter().copied().collect::<Vec<_>>();
    for name in ["garbage", "ended"] {
        assert_eq!(shown(name), health_and_passwords, "{name}");
    }
    // A transaction without an operation reads no key.
    assert_eq!(shown("none"), ["AuthStatus", "Authenticate", "Check", "List", "Txn", "Watch"]);
}

#[test]
fn each_exception_is_of_a_row_and_has_a_reason() {
    let matrix = read();
    for exception in EXCEPTIONS {
        let row = matrix.rows.iter().any(|row| row.call == exception.call && row.role == Role::Each);
        assert!(row && !exception.why.is_empty() && exception.etcd != exception.ours, "{}", exception.call);
        for name in exception.credentials {
            assert!(matrix.credentials.iter().any(|credential| credential == name), "{name}");
        }
    }
}

#[test]
fn an_outcome_is_judged_by_etcds_or_by_an_exception() {
    let exceptions =
        [Exception { call: "Put", credentials: &["bare"], etcd: "OK", ours: "no", why: "a reason" }];
    for (call, credential, etcd, actual, wanted) in [
        ("Put", "root", "OK", "OK", None),
        ("Put", "root", "OK", "no", Some("another outcome")),
        ("Range", "bare", "OK", "no", Some("another outcome")),
        ("Put", "bare", "OK", "no", None),
        ("Put", "bare", "OK", "OK", Some("drop the exception")),
        ("Put", "bare", "OK", "never", Some("not even")),
        ("Put", "bare", "yes", "no", Some("another answer of etcd")),
    ] {
        let difference = judge(call, credential, etcd, actual, &exceptions);
        assert_eq!(difference.is_some(), wanted.is_some(), "{difference:?}");
        assert!(difference.unwrap_or_default().contains(wanted.unwrap_or_default()), "{wanted:?}");
    }
}
