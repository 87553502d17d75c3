//! What members ask each other besides Raft.

pub(super) mod hashes; // hashes of the history, parts of the state as it is now
pub(super) mod leases; // leases, to the leader

use std::time::Duration;

use api::peer::{FiguresRequest, Hello};
use bytes::Bytes;
use tonic::{Response, Status};

use super::link::{ASK_WITHIN, PeerConnection, dial, reason_of};
use crate::member::Figures;
use transport::tls::Dialer;

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
        match tokio::time::timeout(within, asked).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(error)) => reason = error,
            Err(_) => reason = format!("no answer within {within:?}"),
        }
    }
    Err(reason)
}

/// The figures of a member that listens at `urls`. None of one that does not answer, or knows no figures.
pub(super) async fn ask_figures(
    dialer: &Dialer,
    urls: &[String],
    hello: Hello,
    figures: Figures,
) -> Option<Bytes> {
    let history = figures == Figures::History;
    let call = |mut client: PeerConnection| {
        let request = FiguresRequest { hello: Some(hello.clone()), history };
        async move { client.figures(request).await }
    };
    ask_in_turn(dialer, urls, ASK_WITHIN, call).await.ok().map(|answer| answer.document)
}
