//! Settings of the audit log.

use std::path::PathBuf;

use super::flags::Flags;

/// Destination and level of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    pub target: AuditTarget,
    pub level: AuditLevel,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditTarget {
    Stderr,
    File(PathBuf),
}

/// Selects the requests that are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditLevel {
    /// Requests that were rejected because of the caller's identity.
    Refused,
    /// Rejected requests, and requests that may modify state.
    Changes,
    Requests,
}

/// Invalid combination of the audit log flags.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAudit {
    #[error("--audit-log-level requires --audit-log")]
    NoLog,
    #[error("invalid --audit-log-level {0:?}: expected refused, changes or requests")]
    Level(String),
}

/// Returns None if `--audit-log` is unset or empty.
pub(super) fn of(flags: &Flags) -> Result<Option<AuditSettings>, InvalidAudit> {
    let level = match flags.audit_log_level.as_str() {
        "" | "refused" => AuditLevel::Refused,
        "changes" => AuditLevel::Changes,
        "requests" => AuditLevel::Requests,
        other => return Err(InvalidAudit::Level(other.to_owned())),
    };
    match flags.audit_log.as_deref().filter(|target| !target.is_empty()) {
        None if level != AuditLevel::Refused => Err(InvalidAudit::NoLog),
        None => Ok(None),
        Some("stderr") => Ok(Some(AuditSettings { target: AuditTarget::Stderr, level })),
        Some(path) => Ok(Some(AuditSettings { target: AuditTarget::File(path.into()), level })),
    }
}

#[cfg(test)]
mod tests {
    use super::super::flags::{ParsedFlags, parse};
    use super::*;

    #[test]
    fn the_log_is_off_unless_it_is_asked_for() {
        let file = |level| Ok(Some(AuditSettings { target: AuditTarget::File("a.log".into()), level }));
        let stderr = AuditSettings { target: AuditTarget::Stderr, level: AuditLevel::Refused };
        for (line, wanted) in [
            ("", Ok(None)),
            ("--audit-log=", Ok(None)),
            ("--audit-log stderr", Ok(Some(stderr))),
            ("--audit-log a.log", file(AuditLevel::Refused)),
            ("--audit-log a.log --audit-log-level=refused", file(AuditLevel::Refused)),
            ("--audit-log a.log --audit-log-level=changes", file(AuditLevel::Changes)),
            ("--audit-log a.log --audit-log-level=requests", file(AuditLevel::Requests)),
            ("--audit-log-level=changes", Err(InvalidAudit::NoLog)),
            ("--audit-log a.log --audit-log-level=all", Err(InvalidAudit::Level("all".to_owned()))),
        ] {
            let Ok(ParsedFlags::Flags(flags, _)) = parse(line.split_whitespace().map(Into::into), []) else {
                panic!("{line}")
            };
            assert_eq!(of(&flags), wanted, "{line}");
        }
    }
}
