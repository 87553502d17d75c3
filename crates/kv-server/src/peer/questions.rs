//! Requests between members besides Raft: hashes of the history, digests of parts of the current state for
//! comparison, and status metrics.
//!
//! A hash computation is cancelled when the requesting member disconnects or times out.

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

/// Timeout of one hash: gigabytes of history read from a disk, and hashes queued before it.
const HASH_TIMEOUT: Duration = Duration::from_secs(120);

/// Timeout of a digest, which is computed in memory.
const DIGEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends a request to a member's URLs one after another, each `within` a timeout. Returns the error of the
/// last URL if all of them fail.
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

/// Sends a request over the member's existing link; fails if the link is broken. Meant for frequent
/// requests: a connection per request cost more than the request, and many times as much with TLS.
async fn ask_linked<A, F: Future<Output = Result<Response<A>, Status>>>(
    connection: Option<PeerConnection>,
    within: Duration,
    call: impl FnOnce(PeerConnection) -> F,
) -> Result<A, String> {
    let connection = connection.ok_or("the peer is inactive")?;
    answer_within(within, async { call(connection).await.map_err(|status| reason_of(&status)) }).await
}

/// Hash of each member, or the reason it is missing.
pub type HashAnswers = Vec<(u64, Result<KvHash, String>)>;

/// Computes the hash that a peer requested.
pub(crate) async fn answer(hasher: &Hasher, at: i64) -> Result<HistoryHashResponse, Status> {
    let KvHash { hash, compact_revision, hash_revision, revision } = hasher.hash(at).await?;
    Ok(HistoryHashResponse { hash, compact_revision, hash_revision, revision })
}

/// Returns the hashes of all listed peers, before this member has started.
///
/// A member that is starting too has bound its port but does not serve it yet. Waiting for its hash would
/// be in vain, and would block the start of a whole cluster, so members that do not respond to a probe are
/// skipped.
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
            (other.id, Err("it does not serve peers yet".to_owned()))
        }
    });
    join_all(asked).await
}

/// Requests the hash of the member at `urls`. The error names the reason of a missing hash.
pub async fn ask(dialer: &Dialer, urls: &[String], hello: Hello, at: i64) -> Result<KvHash, String> {
    let call = |mut client: PeerConnection| {
        let request = HistoryHashRequest { hello: Some(hello.clone()), revision: at };
        async move { client.history_hash(request).await }
    };
    let answer = ask_in_turn(dialer, urls, HASH_TIMEOUT, call).await?;
    let HistoryHashResponse { hash, compact_revision, hash_revision, revision } = answer;
    Ok(KvHash { hash, compact_revision, hash_revision, revision })
}

/// Computes the digest that a peer requested.
pub(crate) fn digest(hasher: &Hasher, request: &ChangesDigestRequest) -> ChangesDigestResponse {
    let answer = match hasher.store.span_digest(LogIndex(request.after), LogIndex(request.to)) {
        SpanDigest::Known(digest) => Some(Answer::Digest(digest)),
        SpanDigest::NotYet => Some(Answer::IsBehind(true)),
        SpanDigest::NotKept => None,
    };
    ChangesDigestResponse { answer }
}

/// Requests the digest of a span of entries from a linked member.
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

/// Timeout of one part of a state, some thousands of records that may be read from a slow disk.
const RECOUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// Recomputes the part of the state that a peer requested.
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

/// Requests the digest of a part of a linked member's current state. The error names the reason of a
/// failure.
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
        None => Err("a response of another version".to_owned()),
    }
}

/// Requests the metrics of the member at `urls`. None if it does not respond or does not support the
/// request.
pub async fn ask_figures(dialer: &Dialer, urls: &[String], hello: Hello, figures: Figures) -> Option<Bytes> {
    let history = figures == Figures::History;
    let call = |mut client: PeerConnection| {
        let request = FiguresRequest { hello: Some(hello.clone()), history };
        async move { client.figures(request).await }
    };
    ask_in_turn(dialer, urls, REQUEST_TIMEOUT, call).await.ok().map(|answer| answer.document)
}
