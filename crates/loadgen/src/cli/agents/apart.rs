//! Keys that differ from agent to agent: watchers of one agent must not receive the events of another one.

use crate::run::LoadPlan;
use crate::workload::Workload;
use bytes::Bytes;
use std::sync::Arc;

/// Bytes of a key that belong to the agent.
const OWN_BYTES: usize = 8;
/// The number of a key has ten bytes at most.
const KEY_BYTES_MIN: usize = OWN_BYTES + 10;

/// The plan of `watch` with keys of this agent alone.
pub fn watched(mut plan: LoadPlan) -> Result<LoadPlan, String> {
    let own: [u8; OWN_BYTES] = rand::random();
    let Some(watching) = &mut plan.watching else { return Ok(plan) };
    let key = |key: &Bytes| {
        let kept = key.len().checked_sub(OWN_BYTES).filter(|_| key.len() >= KEY_BYTES_MIN);
        let reason = format!("--key-size: {KEY_BYTES_MIN} at least with --agents, which have separate keys");
        kept.map(|kept| Bytes::from([&key[..kept], &own].concat())).ok_or(reason)
    };
    let keys: Arc<[Bytes]> = watching.keys.iter().map(key).collect::<Result<Vec<_>, _>>()?.into();
    watching.keys = keys.clone();
    if let Workload::PutKeys { keys: written, .. } = &mut plan.workload {
        *written = keys;
    }
    Ok(plan)
}
