//! The responses that clients of a cluster received over many rounds of load, and the checks
//! against its members.
//!
//! * The last read state is the baseline of the next check, together with the requests since then
//!   and all requests of unknown fate.
//! * All members have the same history at a given revision.

use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::RngExt;
use rand::rngs::SmallRng;

use super::claim::{Claim, Effect, MemberKeys, check, check_order};
use super::client::MemberClient;
use crate::failure::Result;

/// Acknowledged writes of the last round that are read back at their own revision.
const HISTORY_SAMPLE: usize = 30;
/// Interval between two comparisons of members that have compacted up to different revisions.
const COMPARE_INTERVAL: Duration = Duration::from_millis(20);

/// Kinds of violation, each with its messages.
pub type Violations = Vec<(&'static str, Vec<String>)>;

/// Claims and the last read state.
#[derive(Default)]
pub struct ClaimLog {
    /// Requests since the baseline, and all of unknown fate.
    claims: Vec<Claim>,
    baseline: MemberKeys,
    acknowledged: u64,
}

impl ClaimLog {
    /// Returns the log of clients that started when the cluster had the state `baseline`.
    pub fn after(baseline: MemberKeys) -> ClaimLog {
        ClaimLog { baseline, ..ClaimLog::default() }
    }

    /// Adds the responses of a round of load.
    pub fn add(&mut self, claims: Vec<Claim>) -> Violations {
        let violations = check_order(&claims);
        self.acknowledged += claims.iter().filter(|claim| claim.answer.is_some()).count() as u64;
        self.claims.extend(claims);
        vec![("order", violations)]
    }

    /// Compares the state of the cluster with its responses. `client` reads linearizably.
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

    /// Returns the last read state.
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
            // The linearizable read returns only after a lagging member has caught up.
            client.now(&Bytes::from_static(b"any")).await?;
            hashes.push(client.hash(revision).await?);
        }
        // Members may have applied a compaction at different times.
        let comparable = hashes.windows(2).all(|pair| pair[0].1 == pair[1].1);
        if comparable && hashes.windows(2).all(|pair| pair[0] == pair[1]) {
            return Ok(Vec::new());
        }
        if comparable || Instant::now() > deadline {
            return Ok(vec![("hash", vec![format!("members differ at revision {revision}: {hashes:?}")])]);
        }
        tokio::time::sleep(COMPARE_INTERVAL).await;
    }
}

/// Reads an acknowledged write back at its revision, and returns the violation, if any. Compacted
/// history is skipped.
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
            // A delete without an effect returns the revision of another write, and the key is absent
            // either way.
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
