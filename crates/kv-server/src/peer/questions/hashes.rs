//! Hashes of other members, for comparison.
//!
//! A hash ends when the asking member goes away or no longer waits.

use std::time::Duration;

use api::etcdserverpb::Member;
use api::peer::changes_digest_response::Answer;
use api::peer::{
    ChangesDigestRequest, ChangesDigestResponse, Hello, HistoryHashRequest, HistoryHashResponse,
};
use futures_util::future::join_all;
use mvcc::{KvHash, LogIndex, SpanDigest};
use state_machine::CommandLevel;
use tonic::Status;

use super::ask_in_turn;
use crate::member::Hasher;
use crate::peer::context::hello;
use crate::peer::link::{PeerConnection, answers_as};
use data_dir::Identity;
use transport::tls::Dialer;

/// Time for one hash: gigabytes of history, read from a disk, and others that run before it.
const HASH_WITHIN: Duration = Duration::from_secs(120);

/// Time for a digest, which is in memory.
const DIGEST_WITHIN: Duration = Duration::from_secs(2);

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
        let hello = hello(identity, other.id, own_urls.clone(), level);
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
    let answer = ask_in_turn(dialer, urls, HASH_WITHIN, call).await?;
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

/// Asks a member that listens at `urls` for the digest of a span of entries.
pub async fn ask_digest(
    dialer: &Dialer,
    urls: &[String],
    request: ChangesDigestRequest,
) -> Result<SpanDigest, String> {
    let call = |mut client: PeerConnection| {
        let request = request.clone();
        async move { client.changes_digest(request).await }
    };
    Ok(match ask_in_turn(dialer, urls, DIGEST_WITHIN, call).await?.answer {
        Some(Answer::Digest(digest)) => SpanDigest::Known(digest),
        Some(Answer::IsBehind(_)) => SpanDigest::NotYet,
        None => SpanDigest::NotKept,
    })
}
