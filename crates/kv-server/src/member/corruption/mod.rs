//! Comparison of members' states: hashes of the history as etcd compares them, at intervals by the leader and
//! at a start; digests of the newest changes and of the state as it is now, all the time.
//!
//! ```text
//!   leader ─▶ hash here ─▶ hashes of all others at the same revision ─▶ verdict ─▶ alarm CORRUPT of a member
//! ```
//!
//! * Only the leader compares at intervals, and one comparison ends before the next one begins.
//! * A member that does not answer is left out. Nothing waits for a comparison.
//! * A fenced leader hands over, as long as another member can lead. It compares nothing.
//! * Members that alarms name already are left out.
//! * A hash takes a turn of the gate that clients' hashes take, on a blocking thread.

mod changes; // what entries changed, all the time
mod recount; // the state as it is now, all the time
mod verdict; // who is corrupt, and what follows

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

/// Starts the comparisons of changes and of the state, and the checks at intervals that are on. They end with
/// `stop`.
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

/// Whether this member leads, and its state is the right one as far as is known.
fn compares(member: &Member) -> bool {
    leads(member) && !member.fence.is_up()
}

/// Compares the newest state.
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

/// Compares hashes of compactions, the newest first, down to the newest one that was compared already.
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

/// The hashes of all other members that no alarm names at a revision, one after the other.
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

/// Reports corrupt members to the cluster. A leader that is one of them hands leadership over.
async fn raise_all(member: &Member, corrupt: &[u64]) {
    let named = named(member);
    for id in corrupt.iter().filter(|id| !named.contains(id)) {
        raise(member, *id).await;
    }
    if corrupt.contains(&member.ids.member) {
        give_up_leadership(member).await;
    }
}

/// Reports a corrupt member to the cluster; 0 if it is not known which one it is.
async fn raise(member: &Member, corrupt: u64) {
    tracing::error!(member = format!("{corrupt:x}"), "hashes of members differ: alarm CORRUPT");
    let raised: Result<(), ProposeError> = member.raise_corrupt(corrupt).await;
    if let Err(error) = raised {
        tracing::warn!(error = causes(&error), "the alarm was not raised; the next check tries again");
    }
}
