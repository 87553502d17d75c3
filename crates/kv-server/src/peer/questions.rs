//! What members ask each other besides Raft: hashes of the history, digests of parts of the state as it is
//! now, for comparison, and figures.
//!
//! A hash ends when the asking member goes away or no longer waits.

use std::time::Duration;

use api::etcdserverpb::Member;
use api::peer::changes_digest_response::Answer;
use api::peer::recount_response::Answer as Recount;
use api::peer::{
    ChangesDigestRequest, ChangesDigestResponse, FiguresRequest, Hello, HistoryHashRequest,
    HistoryHashResponse, RecountRequest, RecountResponse,
};
use bytes::Bytes;
use futures_util::future::join_all;
use mvcc::{KvHash, LogIndex, RecountAnswer, RecountSpan, Revision, SpanDigest};
use state_machine::CommandLevel;
use tonic::{Response, Status};

use super::context::hello;
use super::link::{PeerConnection, REQUEST_TIMEOUT, answers_as, dial, reason_of};
use crate::member::{Figures, Hasher};
use data_dir::Identity;
use transport::tls::Dialer;

/// Time for one hash: gigabytes of history, read from a disk, and others that run before it.
const HASH_TIMEOUT: Duration = Duration::from_secs(120);

/// Time for a digest, which is in memory.
const DIGEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks a member at its URLs, one after another, each `within` a time. The error says why the last one gave
/// no answer.
async fn ask_in_turn<A, F: Future<Output = Result<Response<A>, Status>>>(
    dialer: &Dialer,
    urls: &[String],
    within: Duration,
    call: impl Fn(PeerConnection) -> F,
) -> Result<A, String> {
    let mut reason = "no peer URL".to_owned();
    for url in urls {
        let asked = async { call(dial(dialer, url).await?).await.map_err(|status| reason_of(&status)) };
        match answer_within(within, asked).await {
            Ok(answer) => return Ok(answer),
            Err(error) => reason = error,
        }
    }
    Err(reason)
}

async fn answer_within<A>(
    within: Duration,
    asked: impl Future<Output = Result<Response<A>, String>>,
) -> Result<A, String> {
    let late = |_| format!("no answer within {within:?}");
    tokio::time::timeout(within, asked).await.map_err(late)?.map(Response::into_inner)
}

/// Asks a member over the connection that its link has; a member whose link is broken is not asked. For
/// questions that come often: a connection for each cost more than the answer, inside TLS many times as much.
async fn ask_linked<A, F: Future<Output = Result<Response<A>, Status>>>(
    connection: Option<PeerConnection>,
    within: Duration,
    call: impl FnOnce(PeerConnection) -> F,
) -> Result<A, String> {
    let connection = connection.ok_or("the peer is inactive")?;
    answer_within(within, async { call(connection).await.map_err(|status| reason_of(&status)) }).await
}

/// The hash of each member, or why there is none.
pub type HashAnswers = Vec<(u64, Result<KvHash, String>)>;

/// The answer to a member.
pub(crate) async fn answer(hasher: &Hasher, at: i64) -> Result<HistoryHashResponse, Status> {
    let KvHash { hash, compact_revision, hash_revision, revision } = hasher.hash(at).await?;
    Ok(HistoryHashResponse { hash, compact_revision, hash_revision, revision })
}

/// The hashes of all other members of a list, before this one has started.
///
/// A member that starts as well has bound its port and answers nothing: on it a hash would be waited for in
/// vain, and so would a whole cluster that starts. It is left out when it does not answer a probe.
pub async fn at_start(
    dialer: &Dialer,
    identity: &Identity,
    members: &[Member],
    level: CommandLevel,
    at: i64,
) -> HashAnswers {
    let own = members.iter().find(|member| member.id == identity.member_id);
    let own_urls = own.map(|own| own.peer_ur_ls.join(",")).unwrap_or_default();
    let others = members.iter().filter(|member| member.id != identity.member_id);
    let asked = others.map(|other| {
        let hello = hello(identity, other.id, own_urls.clone(), level, false);
        async move {
            if answers_as(dialer, &other.peer_ur_ls, hello.clone()).await {
                return (other.id, ask(dialer, &other.peer_ur_ls, hello, at).await);
            }
            (other.id, Err("it does not serve members".to_owned()))
        }
    });
    join_all(asked).await
}

/// Asks a member that listens at `urls`. The error says why there is no hash.
pub async fn ask(dialer: &Dialer, urls: &[String], hello: Hello, at: i64) -> Result<KvHash, String> {
    let call = |mut client: PeerConnection| {
        let request = HistoryHashRequest { hello: Some(hello.clone()), revision: at };
        async move { client.history_hash(request).await }
    };
    let answer = ask_in_turn(dialer, urls, HASH_TIMEOUT, call).await?;
    let HistoryHashResponse { hash, compact_revision, hash_revision, revision } = answer;
    Ok(KvHash { hash, compact_revision, hash_revision, revision })
}

/// The answer to a member.
pub(crate) fn digest(hasher: &Hasher, request: &ChangesDigestRequest) -> ChangesDigestResponse {
    let answer = match hasher.store.span_digest(LogIndex(request.after), LogIndex(request.to)) {
        SpanDigest::Known(digest) => Some(Answer::Digest(digest)),
        SpanDigest::NotYet => Some(Answer::IsBehind(true)),
        SpanDigest::NotKept => None,
    };
    ChangesDigestResponse { answer }
}

/// Asks a linked member for the digest of a span of entries.
pub async fn ask_digest(
    connection: Option<PeerConnection>,
    request: ChangesDigestRequest,
) -> Result<SpanDigest, String> {
    let call = |mut client: PeerConnection| async move { client.changes_digest(request).await };
    Ok(match ask_linked(connection, DIGEST_TIMEOUT, call).await?.answer {
        Some(Answer::Digest(digest)) => SpanDigest::Known(digest),
        Some(Answer::IsBehind(_)) => SpanDigest::NotYet,
        None => SpanDigest::NotKept,
    })
}

/// Time for one part of a state, some thousands of records: its blocks may have to be read from a slow disk.
const RECOUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// The answer to a member.
pub(crate) async fn recount(hasher: &Hasher, request: &RecountRequest) -> Result<RecountResponse, Status> {
    let RecountRequest { hello: _, from, from_sub, to, to_sub, compacted, applied } = *request;
    let (from, to) = (Revision { main: from, sub: from_sub }, Revision { main: to, sub: to_sub });
    let span = RecountSpan { from, to, compacted, applied: LogIndex(applied) };
    let answer = match hasher.recount(span).await?.0 {
        RecountAnswer::Digest(digest) => Recount::Digest(digest),
        RecountAnswer::NotYet => Recount::IsBehind(true),
        RecountAnswer::Compacted => Recount::IsCompacted(true),
        RecountAnswer::Damaged => Recount::IsDamaged(true),
    };
    Ok(RecountResponse { answer: Some(answer) })
}

/// Asks a linked member for the digest of a part of its state as it is now. The error says why there is no
/// answer.
pub async fn ask_recount(
    connection: Option<PeerConnection>,
    hello: Hello,
    span: RecountSpan,
) -> Result<RecountAnswer, String> {
    let RecountSpan { from, to, compacted, applied: LogIndex(applied) } = span;
    let hello = Some(hello);
    let (from, from_sub, to, to_sub) = (from.main, from.sub, to.main, to.sub);
    let request = RecountRequest { hello, from, from_sub, to, to_sub, compacted, applied };
    let call = |mut client: PeerConnection| async move { client.recount(request).await };
    match ask_linked(connection, RECOUNT_TIMEOUT, call).await?.answer {
        Some(Recount::Digest(digest)) => Ok(RecountAnswer::Digest(digest)),
        Some(Recount::IsBehind(_)) => Ok(RecountAnswer::NotYet),
        Some(Recount::IsCompacted(_)) => Ok(RecountAnswer::Compacted),
        Some(Recount::IsDamaged(_)) => Ok(RecountAnswer::Damaged),
        None => Err("an answer of another version".to_owned()),
    }
}

/// The figures of a member that listens at `urls`. None of one that does not answer, or knows no figures.
pub async fn ask_figures(dialer: &Dialer, urls: &[String], hello: Hello, figures: Figures) -> Option<Bytes> {
    let history = figures == Figures::History;
    let call = |mut client: PeerConnection| {
        let request = FiguresRequest { hello: Some(hello.clone()), history };
        async move { client.figures(request).await }
    };
    ask_in_turn(dialer, urls, REQUEST_TIMEOUT, call).await.ok().map(|answer| answer.document)
}
