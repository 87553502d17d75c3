//! `--feature-gates`: etcd's gates by name. None changes this server.

/// Gates, each with what it means here.
pub const GATES: [(&str, &str); 11] = [
    ("AllAlpha", "no gate changes this server"),
    ("AllBeta", "no gate changes this server"),
    ("CompactHashCheck", "members do not compare hashes by themselves"),
    ("FastLeaseKeepAlive", "keepalives never wait for applies"),
    (
        "InitialCorruptCheck",
        "a member checks its own checksums at a start; it compares no hashes with others",
    ),
    ("LeaseCheckpoint", "remaining TTLs always survive a change of leader"),
    ("LeaseCheckpointPersist", "remaining TTLs always survive a restart"),
    ("PriorityRequest", "requests have no priorities"),
    ("SetMemberLocalAddr", "the system chooses the source address of links"),
    ("StopGRPCServiceOnDefrag", "defragmentation does not block requests"),
    ("TxnModeWriteWithSharedBuffer", "transactions copy no read buffer"),
];

/// `A=true,B=false` as names and values, in order; the last value of a name counts.
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

/// What each gate means here.
pub fn meaning(name: &str) -> &'static str {
    GATES.iter().find(|(known, _)| *known == name).map_or("", |(_, meaning)| meaning)
}

/// A gate that is on without the one it needs, in etcd's words.
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
