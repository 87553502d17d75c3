//! The answers that clients of a cluster received over many rounds of load, and the checks against its
//! members.
//!
//! * What was read once is the baseline of the next check, together with the requests since, and those of
//!   unknown fate from the first round on.
//! * All members have the same history at one revision.

use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::RngExt;
use rand::rngs::SmallRng;

use super::claim::{Claim, Effect, MemberKeys, check, check_order};
use super::client::MemberClient;
use crate::failure::Result;

/// Acknowledged writes of the last round that are read back at their own revision.
const HISTORY_SAMPLE: usize = 30;
/// Between two comparisons of members of which one has dropped more history than another.
const COMPARED_EVERY: Duration = Duration::from_millis(20);

/// Kinds of violation, with all of each kind.
pub type Violations = Vec<(&'static str, Vec<String>)>;

/// Claims and what was read.
#[derive(Default)]
pub struct ClaimLog {
    /// Requests since the baseline, and all of unknown fate.
    claims: Vec<Claim>,
    baseline: MemberKeys,
    acknowledged: u64,
}

impl ClaimLog {
    /// Of clients that began when the cluster had `baseline`.
    pub fn after(baseline: MemberKeys) -> ClaimLog {
        ClaimLog { baseline, ..ClaimLog::default() }
    }

    /// Takes in the answers of a round of load.
    pub fn add(&mut self, claims: Vec<Claim>) -> Violations {
        let violations = check_order(&claims);
        self.acknowledged += claims.iter().filter(|claim| claim.answer.is_some()).count() as u64;
        self.claims.extend(claims);
        vec![("order", violations)]
    }

    /// Compares what the cluster has with what it said. `client` reads linearizably.
    pub async fn check(&mut self, client: &mut MemberClient, chance: &mut SmallRng) -> Result<Violations> {
        let state = client.everything().await?;
        let lost = check(&self.claims, u64::MAX, &self.baseline, &state);
        let answered: Vec<&Claim> = self.claims.iter().filter(|claim| claim.answer.is_some()).collect();
        let mut rewritten = Vec::new();
        for _ in 0..HISTORY_SAMPLE.min(answered.len()) {
            let claim = answered[chance.random_range(0..answered.len())];
            rewritten.extend(check_history(client, claim).await?);
        }
        self.baseline = state;
        self.claims.retain(|claim| claim.answer.is_none());
        Ok(vec![("state", lost), ("history", rewritten)])
    }

    /// What was read last.
    pub fn baseline(&self) -> &MemberKeys {
        &self.baseline
    }

    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }
}

/// Compares the history up to `revision` of the members at these ports.
pub async fn check_equal(ports: &[u16], revision: i64, patience: Duration) -> Result<Violations> {
    let deadline = Instant::now() + patience;
    loop {
        let mut hashes = Vec::new();
        for port in ports {
            let mut client = MemberClient::connect(*port, patience).await?;
            // A linearizable read first: a member that lags has caught up when it answers.
            client.now(&Bytes::from_static(b"any")).await?;
            hashes.push(client.hash(revision).await?);
        }
        // A compaction may have reached one member earlier than another.
        let comparable = hashes.windows(2).all(|pair| pair[0].1 == pair[1].1);
        if comparable && hashes.windows(2).all(|pair| pair[0] == pair[1]) {
            return Ok(Vec::new());
        }
        if comparable || Instant::now() > deadline {
            return Ok(vec![("hash", vec![format!("members differ at revision {revision}: {hashes:?}")])]);
        }
        tokio::time::sleep(COMPARED_EVERY).await;
    }
}

/// An acknowledged write, read back at its revision: what is wrong with it, if anything. History that was
/// compacted away says nothing.
pub async fn check_history(client: &mut MemberClient, claim: &Claim) -> Result<Option<String>> {
    let Some(answer) = claim.answer else { return Ok(None) };
    let revision = answer.revision;
    for (key, value) in claim.effect.writes() {
        let found = match client.at(key, revision).await {
            Ok(found) => found,
            Err(None) => return Ok(None),
            Err(Some(failure)) => return Err(failure),
        };
        let wrong = match (&found, value) {
            (Some(found), Some(value)) => found.value != *value || found.modified != revision,
            // A delete of nothing returns the revision of another write, and the key is absent all the same.
            (None, None) => false,
            (Some(_), None) | (None, Some(_)) => true,
        };
        if wrong {
            let kind = match claim.effect {
                Effect::Put { .. } => "put",
                Effect::Delete { .. } => "delete",
                Effect::Txn { .. } => "txn",
            };
            let found = found.map(|found| (found.modified, found.value.len()));
            return Ok(Some(format!("{kind} of {key:?} at revision {revision}: found there {found:?}")));
        }
    }
    Ok(None)
}
