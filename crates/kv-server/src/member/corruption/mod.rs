//! Detection of corrupt members: etcd's hash checks of the history, on the leader at intervals and at start,
//! and continuous comparison of digests of recent changes and of the current state.
//!
//! ```text
//!   leader ─▶ local hash ─▶ hashes of all peers at the same revision ─▶ verdict ─▶ alarm CORRUPT
//! ```
//!
//! * Periodic checks run on the leader only, each check after the previous one has completed.
//! * An unreachable member is skipped. No request waits for a check.
//! * A fenced leader makes no comparison; it transfers leadership if another member is eligible.
//! * Members already named by an alarm are skipped.
//! * A hash takes a permit of the gate for clients' hash requests and runs on a blocking thread.

mod changes; // digests of changes, continuously
mod recount; // digests of the current state, continuously
mod verdict; // identifies corrupt members

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use mvcc::KvHash;
use tokio::time::sleep;

use super::handle::{Member, ProposeError};
use changes::Changes;
use config::CorruptionChecks;
use process::log::causes;
use process::shutdown::Stop;
use verdict::{PeerValue, Verdict, named};

pub(crate) use verdict::{Differs, compare as compare_at_start, give_up_leadership};

/// Starts the continuous comparisons and the enabled periodic checks. They run until `stop`.
pub(crate) fn start(member: &Arc<Member>, checks: CorruptionChecks, stop: &Stop) {
    tokio::spawn(until(stop.clone(), changes_at_intervals(Arc::clone(member))));
    tokio::spawn(until(stop.clone(), recounts(Arc::clone(member))));
    if let Some(interval) = checks.interval {
        tokio::spawn(until(stop.clone(), newest_at_intervals(Arc::clone(member), interval)));
    }
    if let Some(interval) = checks.compaction_interval {
        tokio::spawn(until(stop.clone(), compactions_at_intervals(Arc::clone(member), interval)));
    }
}

async fn until(stop: Stop, checks: impl Future<Output = Infallible>) {
    tokio::select! {
        never = checks => match never {},
        () = stop.stopped() => {}
    }
}

async fn changes_at_intervals(member: Arc<Member>) -> Infallible {
    let mut changes = Changes::default();
    loop {
        sleep(changes::ROUND).await;
        if leads(&member) && member.fence.is_up() {
            give_up_leadership(&member).await;
        }
        if !compares(&member) || member.roster.others().is_empty() {
            continue;
        }
        raise_all(&member, &changes.differing(&member).await).await;
    }
}

async fn recounts(member: Arc<Member>) -> Infallible {
    let mut recount = recount::Recount::new();
    loop {
        if compares(&member) && !member.roster.others().is_empty() {
            raise_all(&member, &recount.turn(&member).await).await;
        } else {
            sleep(changes::ROUND).await;
            recount.restart();
        }
    }
}

async fn newest_at_intervals(member: Arc<Member>, interval: Duration) -> Infallible {
    loop {
        sleep(interval).await;
        newest(&member).await;
    }
}

async fn compactions_at_intervals(member: Arc<Member>, interval: Duration) -> Infallible {
    let mut checked = 0;
    loop {
        sleep(interval).await;
        compactions(&member, &mut checked).await;
    }
}

fn leads(member: &Member) -> bool {
    member.status().leader == Some(member.ids.member)
}

/// Reports whether this member leads and is not known to be corrupt.
fn compares(member: &Member) -> bool {
    leads(member) && !member.fence.is_up()
}

/// Compares hashes at the current revision.
async fn newest(member: &Member) {
    if !compares(member) {
        return;
    }
    match corrupt_now(member).await {
        Ok(corrupt) => raise_all(member, &corrupt).await,
        Err(error) => tracing::warn!(error, "failed peer corruption check"),
    }
}

async fn corrupt_now(member: &Member) -> Result<Vec<u64>, String> {
    let own = async || member.hasher.hash(0).await.map_err(|status| causes(&status));
    let before = own().await?;
    let peers = hashes_of_others(member, before.hash_revision).await;
    member.raft.read_point_for_member().await.map_err(|error| causes(&error))?;
    let after = own().await?;
    Ok(verdict::of_newest(member.ids.member, before, after, &peers))
}

/// Compares compaction hashes, latest first, down to the last revision that was already checked.
async fn compactions(member: &Member, checked: &mut i64) {
    if !compares(member) {
        return;
    }
    let mut hashes = member.store.compaction_hashes();
    hashes.retain(|hash| hash.hash_revision > *checked);
    hashes.sort_by_key(|hash| std::cmp::Reverse(hash.hash_revision));
    for own in hashes {
        let peers = hashes_of_others(member, own.hash_revision).await;
        if peers.is_empty() {
            continue;
        }
        match verdict::of_compaction(member.ids.member, own, &peers) {
            Verdict::Incomplete => {}
            Verdict::Agreed => {
                *checked = own.hash_revision;
                tracing::info!(revision = own.hash_revision, "successfully checked hash on whole cluster");
                return;
            }
            Verdict::Corrupt(members) => return raise_all(member, &members).await,
        }
    }
}

/// Fetches the hashes at a revision from all other members that no alarm names, sequentially.
async fn hashes_of_others(member: &Member, at: i64) -> Vec<PeerValue<KvHash>> {
    let (mut hashes, named) = (Vec::new(), named(member));
    for other in member.roster.others() {
        if named.contains(&other.id) {
            continue;
        }
        let asked = member.reach.ask_hash(other.id, at).await;
        let value: Option<KvHash> = asked
            .inspect_err(|error| {
                let peer = format!("{:x}", other.id);
                tracing::warn!(peer, revision = at, error, "failed hash kv request");
            })
            .ok();
        hashes.push(PeerValue { member: other.id, is_voter: !other.is_learner, value });
    }
    hashes
}

/// Raises an alarm for each corrupt member. A leader that is corrupt transfers leadership.
async fn raise_all(member: &Member, corrupt: &[u64]) {
    let named = named(member);
    for id in corrupt.iter().filter(|id| !named.contains(id)) {
        raise(member, *id).await;
    }
    if corrupt.contains(&member.ids.member) {
        give_up_leadership(member).await;
    }
}

/// Raises the alarm CORRUPT for a member; 0 if the corrupt member cannot be identified.
async fn raise(member: &Member, corrupt: u64) {
    tracing::error!(member = format!("{corrupt:x}"), "member hashes differ; raising alarm CORRUPT");
    let raised: Result<(), ProposeError> = member.raise_corrupt(corrupt).await;
    if let Err(error) = raised {
        tracing::warn!(error = causes(&error), "alarm was not raised; the next check retries");
    }
}
