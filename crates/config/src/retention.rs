//! Retention of automatic compaction: `--auto-compaction-mode` and `--auto-compaction-retention`.

use std::time::Duration;

use super::flags::duration;

/// Amount of history to retain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Revisions younger than this.
    Period(Duration),
    /// Number of latest revisions.
    Revisions(i64),
}

/// Invalid retention, with etcd's error texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RetentionError {
    #[error("unknown auto-compaction-mode {0:?}")]
    Mode(String),
    #[error("error parsing CompactionRetention: time: {}", reason(.0))]
    Retention(String),
    #[error("invalid --auto-compaction-retention {0:?}: expected a number of revisions")]
    Revisions(String),
}

/// Returns Go's error text for an invalid duration.
fn reason(text: &str) -> String {
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    let rest = text.trim_start_matches(['-', '+']);
    let unit = rest.trim_start_matches(digits);
    match unit.find(digits).map_or(unit, |end| &unit[..end]) {
        unit if unit.len() == rest.len() => format!("invalid duration {text:?}"),
        "" => format!("missing unit in duration {text:?}"),
        "ns" | "us" | "ms" | "s" | "m" | "h" => format!("invalid duration {text:?}"),
        unit => format!("unknown unit {unit:?} in duration {text:?}"),
    }
}

impl Retention {
    /// Parses the values of the two flags. Returns None if automatic compaction is off.
    pub fn parse(mode: &str, retention: &str) -> Result<Option<Retention>, RetentionError> {
        let text = if retention.is_empty() { "0" } else { retention };
        let number = text.parse::<u64>().ok();
        let retention = match (mode, number) {
            ("periodic", Some(hours)) => Retention::Period(Duration::from_secs(hours.saturating_mul(3600))),
            ("periodic", None) => {
                let period = duration(text).map_err(|_| RetentionError::Retention(text.to_owned()))?;
                Retention::Period(period)
            }
            ("revision", Some(revisions)) => {
                Retention::Revisions(i64::try_from(revisions).unwrap_or(i64::MAX))
            }
            // etcd would use it as a number of nanoseconds.
            ("revision", None) if duration(text).is_ok() => {
                return Err(RetentionError::Revisions(text.to_owned()));
            }
            ("revision", None) => return Err(RetentionError::Retention(text.to_owned())),
            (mode, _) => return Err(RetentionError::Mode(mode.to_owned())),
        };
        let is_off = matches!(retention, Retention::Period(Duration::ZERO) | Retention::Revisions(0));
        Ok((!is_off).then_some(retention))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_is_read_as_etcd_reads_it() {
        let minutes = |minutes: u64| Ok(Some(Retention::Period(Duration::from_secs(60 * minutes))));
        let refused = |text: &str| Err(text.to_owned());
        for (mode, retention, wanted) in [
            ("periodic", "0", Ok(None)),
            ("periodic", "", Ok(None)),
            ("revision", "0", Ok(None)),
            ("periodic", "1", minutes(60)),
            ("periodic", "10m", minutes(10)),
            ("periodic", "72h", minutes(72 * 60)),
            ("revision", "1000", Ok(Some(Retention::Revisions(1000)))),
            ("revision", "5000000000", Ok(Some(Retention::Revisions(5_000_000_000)))),
            ("revision", "x", refused("error parsing CompactionRetention: time: invalid duration \"x\"")),
            (
                "periodic",
                "-1",
                refused("error parsing CompactionRetention: time: missing unit in duration \"-1\""),
            ),
            (
                "revision",
                "0.5",
                refused("error parsing CompactionRetention: time: missing unit in duration \"0.5\""),
            ),
            (
                "periodic",
                "1x",
                refused("error parsing CompactionRetention: time: unknown unit \"x\" in duration \"1x\""),
            ),
            ("foo", "0", refused("unknown auto-compaction-mode \"foo\"")),
            ("periodic", "x", refused("error parsing CompactionRetention: time: invalid duration \"x\"")),
            (
                "revision",
                "10m",
                refused("invalid --auto-compaction-retention \"10m\": expected a number of revisions"),
            ),
        ] {
            let read = Retention::parse(mode, retention).map_err(|error| error.to_string());
            assert_eq!(read, wanted, "{mode:?} {retention:?}");
        }
    }
}
