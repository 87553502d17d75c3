//! An acknowledged write, read back at its own revision.

use super::claim::{Claim, Effect};
use super::client::MemberClient;
use crate::failure::Result;

/// What is wrong with it, if anything. History that was compacted away says nothing.
pub async fn check(client: &mut MemberClient, claim: &Claim) -> Result<Option<String>> {
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
