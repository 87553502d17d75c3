//! Digests of parts of other members' state as it is now, for comparison.
//!
//! A part is some thousands of records, so an answer takes milliseconds of a blocking thread.

use std::time::Duration;

use api::peer::recount_response::Answer;
use api::peer::{Hello, RecountRequest, RecountResponse};
use mvcc::{RecountAnswer, RecountSpan, Revision};
use tonic::Status;

use super::ask_in_turn;
use crate::member::Hasher;
use crate::peer::link::PeerConnection;
use transport::tls::Dialer;

/// Time for one part: its blocks may have to be read from a slow disk.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The answer to a member.
pub(crate) async fn answer(hasher: &Hasher, request: &RecountRequest) -> Result<RecountResponse, Status> {
    let RecountRequest { hello: _, from, from_sub, to, to_sub, compacted } = *request;
    let (from, to) = (Revision { main: from, sub: from_sub }, Revision { main: to, sub: to_sub });
    let answer = match hasher.recount(RecountSpan { from, to, compacted }).await?.0 {
        RecountAnswer::Digest(digest) => Answer::Digest(digest),
        RecountAnswer::NotYet => Answer::IsBehind(true),
        RecountAnswer::Compacted => Answer::IsCompacted(true),
        RecountAnswer::Damaged => Answer::IsDamaged(true),
    };
    Ok(RecountResponse { answer: Some(answer) })
}

/// Asks a member that listens at `urls`. The error says why there is no answer.
pub async fn ask(
    dialer: &Dialer,
    urls: &[String],
    hello: Hello,
    span: RecountSpan,
) -> Result<RecountAnswer, String> {
    let RecountSpan { from, to, compacted } = span;
    let hello = Some(hello);
    let (from, from_sub, to, to_sub) = (from.main, from.sub, to.main, to.sub);
    let request = RecountRequest { hello, from, from_sub, to, to_sub, compacted };
    let call = |mut client: PeerConnection| {
        let request = request.clone();
        async move { client.recount(request).await }
    };
    match ask_in_turn(dialer, urls, ANSWER_WITHIN, call).await?.answer {
        Some(Answer::Digest(digest)) => Ok(RecountAnswer::Digest(digest)),
        Some(Answer::IsBehind(_)) => Ok(RecountAnswer::NotYet),
        Some(Answer::IsCompacted(_)) => Ok(RecountAnswer::Compacted),
        Some(Answer::IsDamaged(_)) => Ok(RecountAnswer::Damaged),
        None => Err("an answer of another version".to_owned()),
    }
}
