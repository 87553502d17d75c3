//! `--feature-gates`: etcd's gates by name. Only the gates in `HONOURED` have an effect.

/// Gates with an effect. All are alpha in etcd: `AllAlpha` applies to gates without an explicit setting.
const HONOURED: [&str; 3] = ["CompactHashCheck", "InitialCorruptCheck", "SetMemberLocalAddr"];

/// Known gates, each with its effect here or the reason why it has none.
pub const GATES: [(&str, &str); 11] = [
    ("AllAlpha", "it sets other gates, of which some have an effect"),
    ("AllBeta", "no gate that it sets has an effect"),
    ("CompactHashCheck", "the leader compares the hashes of compactions"),
    ("FastLeaseKeepAlive", "keepalives never wait for applies"),
    ("InitialCorruptCheck", "a member compares its hash with others at a start"),
    ("LeaseCheckpoint", "remaining TTLs always survive a change of leader"),
    ("LeaseCheckpointPersist", "remaining TTLs always survive a restart"),
    ("PriorityRequest", "requests have no priorities"),
    ("SetMemberLocalAddr", "peers are dialled from the first address of --initial-advertise-peer-urls"),
    ("StopGRPCServiceOnDefrag", "defragmentation does not block requests"),
    ("TxnModeWriteWithSharedBuffer", "transactions copy no read buffer"),
];

/// Gates at etcd's beta stage, enabled by default. All other gates are alpha and disabled.
const BETA: [&str; 2] = ["FastLeaseKeepAlive", "TxnModeWriteWithSharedBuffer"];

/// Feature gate as exposed by the metric `etcd_server_feature_enabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureGate {
    pub name: &'static str,
    pub stage: &'static str,
    pub is_on: bool,
}

/// Returns all gates with their state under `text`, which must be valid.
pub fn all(text: &str) -> Vec<FeatureGate> {
    let given = parse(text).unwrap_or_default();
    let value = |wanted: &str| given.iter().find(|(name, _)| *name == wanted).map(|(_, is_on)| *is_on);
    let gate = |(name, _): (&'static str, &str)| {
        let is_beta = name == "AllBeta" || BETA.contains(&name);
        let of_stage = value(if is_beta { "AllBeta" } else { "AllAlpha" });
        let is_on = value(name).or(of_stage).unwrap_or(BETA.contains(&name));
        FeatureGate { name, stage: if is_beta { "BETA" } else { "ALPHA" }, is_on }
    };
    GATES.into_iter().map(gate).collect()
}

/// Parses `A=true,B=false` into names and values, in order. The last value of a repeated name takes effect.
pub fn parse(text: &str) -> Result<Vec<(&'static str, bool)>, String> {
    let mut gates: Vec<(&'static str, bool)> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').ok_or_else(|| format!("missing bool value for {part}"))?;
        let (name, value) = (name.trim(), value.trim());
        let known = GATES.iter().find(|(known, _)| *known == name);
        let (name, _) = known.ok_or_else(|| format!("unrecognized feature gate: {name}"))?;
        let is_on = super::values::switch(value).map_err(|_| {
            format!(
                "invalid value of {name}={value}, err: strconv.ParseBool: parsing {value:?}: invalid syntax"
            )
        })?;
        gates.retain(|(earlier, _)| earlier != name);
        gates.push((name, is_on));
    }
    Ok(gates)
}

/// Returns why a gate has no effect, or None if it has one.
pub fn no_effect(name: &str) -> Option<&'static str> {
    let found = GATES.iter().find(|(known, _)| *known == name && !HONOURED.contains(known));
    found.map(|(_, reason)| *reason)
}

/// Reports whether an honoured gate is enabled by `text`, which must be valid. Panics on other gates.
pub fn is_gate_on(text: &str, name: &str) -> bool {
    assert!(HONOURED.contains(&name), "a gate without effect is not asked for");
    let gates = parse(text).unwrap_or_default();
    let value = |wanted: &str| gates.iter().find(|(name, _)| *name == wanted).map(|(_, is_on)| *is_on);
    value(name).or_else(|| value("AllAlpha")).unwrap_or(false)
}

/// Returns etcd's error if a gate is enabled without the gate that it depends on.
pub fn verify(gates: &[(&str, bool)]) -> Result<(), String> {
    let is_on = |wanted: &str| gates.iter().any(|(name, is_on)| *name == wanted && *is_on);
    let lacks = is_on("LeaseCheckpointPersist") && !is_on("LeaseCheckpoint") && !is_on("AllAlpha");
    if lacks {
        return Err(
            "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint"
                .to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_what_it_was_set_to_or_what_its_stage_was() {
        let on = |text: &str| -> Vec<&str> {
            all(text).into_iter().filter(|gate| gate.is_on).map(|gate| gate.name).collect()
        };
        assert_eq!(on(""), BETA);
        assert_eq!(on("AllBeta=false,CompactHashCheck=true"), ["CompactHashCheck"]);
        assert_eq!(on("AllAlpha=true,LeaseCheckpoint=false").len(), 9);
        let stages = all("").into_iter().filter(|gate| gate.stage == "BETA").count();
        assert_eq!((stages, all("").len()), (3, GATES.len()));
    }
}
