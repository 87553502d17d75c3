//! Client requests and responses, checked against the state of a member.
//!
//! Every acknowledged write has a revision, so the check needs no search: each key must be in a state that
//! the claims permit, and each revision must contain exactly the write that was acknowledged with it.
//!
//! ```text
//!   baseline (an earlier read)     ─┐
//!   claims: sent, maybe acknowledged┼─▶ check ─▶ violations
//!   state now, history by revision ─┘
//! ```
//!
//! * Values are never sent twice, so a value identifies the request that wrote it.
//! * A request without a response may have been applied once, at any later time, or never.
//! * `at` is the position that the experiment orders by: bytes of a recording, or nanoseconds. Only the
//!   order matters.
//!
//! The crate `checker` needs every change in order, like a watch delivers it. After a power loss only the
//! contents of the store are available, so this module compares states.
//!
//! Independent of processes and disks.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

/// A change requested by a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Put {
        key: Bytes,
        value: Bytes,
    },
    Delete {
        key: Bytes,
    },
    /// Several puts at one revision.
    Txn {
        puts: Vec<(Bytes, Bytes)>,
    },
}

/// A requested effect and its acknowledgement.
#[derive(Clone, Debug)]
pub struct Claim {
    pub effect: Effect,
    pub asked_at: u64,
    pub answer: Option<Acknowledgement>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    pub at: u64,
    pub revision: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyState {
    pub value: Bytes,
    pub created: i64,
    pub modified: i64,
    pub version: i64,
}

#[derive(Clone, Debug, Default)]
pub struct MemberKeys {
    pub revision: i64,
    pub keys: BTreeMap<Bytes, KeyState>,
}

impl Effect {
    /// Returns the written keys with their new values; `None` for a delete.
    pub fn writes(&self) -> Vec<(&Bytes, Option<&Bytes>)> {
        match self {
            Effect::Put { key, value } => vec![(key, Some(value))],
            Effect::Delete { key } => vec![(key, None)],
            Effect::Txn { puts } => puts.iter().map(|(key, value)| (key, Some(value))).collect(),
        }
    }
}

impl Claim {
    /// Returns the revision if it was acknowledged by `cutoff`.
    fn acknowledged(&self, cutoff: u64) -> Option<i64> {
        self.answer.filter(|answer| answer.at <= cutoff).map(|answer| answer.revision)
    }
}

/// Known writes of a key.
#[derive(Default)]
struct KeyFate<'a> {
    /// The latest acknowledged write or delete, with the value.
    newest: Option<(i64, Option<&'a Bytes>)>,
    /// Possible deletes, with the revision if it was acknowledged.
    deletes: Vec<Option<i64>>,
    /// Possible puts by value, with the revision if it was acknowledged, and the index of the claim.
    puts: HashMap<&'a Bytes, (Option<i64>, usize)>,
}

/// Returns all violations in `state`, given that all acknowledgements up to `cutoff` must hold.
/// `baseline` was read earlier from the same member or cluster, and must hold as well.
pub fn check(claims: &[Claim], cutoff: u64, baseline: &MemberKeys, state: &MemberKeys) -> Vec<String> {
    let mut violations = Vec::new();
    let fates = fates(claims, cutoff, baseline);
    let newest = claims.iter().filter_map(|claim| claim.acknowledged(cutoff)).max().unwrap_or(1);
    let promised = newest.max(baseline.revision);
    if state.revision < promised {
        violations.push(format!("revision {} after {promised} was acknowledged", state.revision));
    }
    let asked = i64::try_from(claims.len()).unwrap_or(i64::MAX);
    if state.revision > baseline.revision.max(1) + asked {
        violations.push(format!("revision {} after {asked} writes", state.revision));
    }
    for (key, fate) in &fates {
        if let Some(violation) = check_key(fate, state.keys.get(*key), state.revision) {
            violations.push(format!("key {key:?}: {violation}"));
        }
    }
    let strangers = state.keys.keys().filter(|key| !fates.contains_key(key));
    violations.extend(strangers.map(|key| format!("key {key:?}: no client wrote it")));
    violations.extend(check_revisions(&fates, claims, state));
    violations
}

fn fates<'a>(claims: &'a [Claim], cutoff: u64, baseline: &'a MemberKeys) -> HashMap<&'a Bytes, KeyFate<'a>> {
    let mut fates: HashMap<&Bytes, KeyFate<'_>> = HashMap::new();
    for (key, found) in &baseline.keys {
        let fate = fates.entry(key).or_default();
        fate.newest = Some((found.modified, Some(&found.value)));
        fate.puts.insert(&found.value, (Some(found.modified), usize::MAX));
    }
    for (number, claim) in claims.iter().enumerate() {
        let known = claim.answer.map(|answer| answer.revision);
        for (key, value) in claim.effect.writes() {
            let fate = fates.entry(key).or_default();
            match value {
                Some(value) => {
                    let put = fate.puts.entry(value).or_insert((known, number));
                    put.0 = put.0.or(known);
                }
                None => fate.deletes.push(known),
            }
            if let Some(revision) = claim.acknowledged(cutoff)
                && fate.newest.is_none_or(|(newest, _)| newest < revision)
            {
                fate.newest = Some((revision, value));
            }
        }
    }
    fates
}

fn check_key(fate: &KeyFate<'_>, found: Option<&KeyState>, revision: i64) -> Option<String> {
    let Some(found) = found else {
        let (written, _) = fate.newest.filter(|(_, value)| value.is_some())?;
        let deleted = |at: &Option<i64>| at.is_none_or(|at| at > written);
        return match fate.deletes.iter().any(deleted) {
            true => None,
            false => Some(format!("the write acknowledged at revision {written} is lost")),
        };
    };
    let Some((acknowledged, _)) = fate.puts.get(&found.value) else {
        return Some(format!("holds {} bytes that no client wrote to it", found.value.len()));
    };
    if let Some(revision) = acknowledged.filter(|revision| *revision != found.modified) {
        return Some(format!("the write acknowledged at revision {revision} is found at {}", found.modified));
    }
    if found.modified > revision || found.created > found.modified || found.version < 1 {
        return Some(format!("impossible revisions {found:?} in a store at {revision}"));
    }
    match fate.newest {
        Some((newest, _)) if newest > found.modified => {
            let modified = found.modified;
            Some(format!("acknowledged at revision {newest}, but stands at {modified}"))
        }
        _ => None,
    }
}

/// Checks that each revision belongs to a single request, and that a txn is present completely or absent.
fn check_revisions(
    fates: &HashMap<&Bytes, KeyFate<'_>>,
    claims: &[Claim],
    state: &MemberKeys,
) -> Vec<String> {
    let mut violations = Vec::new();
    let mut owners: HashMap<i64, usize> = HashMap::new();
    for (key, found) in &state.keys {
        let owner = fates.get(key).and_then(|fate| fate.puts.get(&found.value)).map(|(_, owner)| *owner);
        let Some(owner) = owner.filter(|owner| *owner != usize::MAX) else { continue };
        if *owners.entry(found.modified).or_insert(owner) != owner {
            violations.push(format!("revision {} holds two requests", found.modified));
        }
        for (other, _) in claims[owner].effect.writes() {
            let later = match state.keys.get(other) {
                Some(sibling) => sibling.modified >= found.modified,
                None => fates[other].deletes.iter().any(|at| at.is_none_or(|at| at > found.modified)),
            };
            if !later {
                violations.push(format!("half a txn at revision {}: {other:?} is missing", found.modified));
            }
        }
    }
    violations
}

/// Checks properties of any history, crashes included: a write that started after another was acknowledged
/// has the greater revision, and no two requests share one. Deletes without an effect are exempt.
pub fn check_order(claims: &[Claim]) -> Vec<String> {
    let mut violations = Vec::new();
    let answered = || claims.iter().filter_map(|claim| claim.answer.map(|answer| (claim, answer)));
    let is_delete = |claim: &Claim| matches!(claim.effect, Effect::Delete { .. });
    let mut by_end: Vec<_> = answered().map(|(_, answer)| (answer.at, answer.revision)).collect();
    by_end.sort_unstable();
    let mut by_begin: Vec<_> = answered().collect();
    by_begin.sort_by_key(|(claim, _)| claim.asked_at);
    let (mut ended, mut newest) = (by_end.into_iter().peekable(), 0);
    let mut owners = HashMap::new();
    for (claim, answer) in by_begin {
        while let Some((_, revision)) = ended.next_if(|(at, _)| *at < claim.asked_at) {
            newest = newest.max(revision);
        }
        let least = if is_delete(claim) { newest } else { newest + 1 };
        if answer.revision < least {
            violations
                .push(format!("revision {} was given after {newest} was acknowledged", answer.revision));
        }
        if !is_delete(claim) && owners.insert(answer.revision, &claim.effect).is_some() {
            violations.push(format!("revision {} was given twice", answer.revision));
        }
    }
    violations
}

#[cfg(test)]
mod tests;
