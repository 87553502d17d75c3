//! The result of a verification, as text and as JSON.

use super::timeline::Timeline;
use crate::{CheckCounts, Violation};
use serde::Serialize;
use std::fmt::Write;

#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    pub endpoints: Vec<String>,
    /// Number of unreachable, thus unchecked, members.
    pub unreached: usize,
    pub seconds: f64,
    #[serde(flatten)]
    pub checked: CheckCounts,
    pub violation: Option<Violation>,
    /// Reason why the run could not continue.
    pub failed: Option<String>,
    /// Number of operations with a revision that no watcher has reached.
    pub undecided: usize,
    /// Endpoints with a watcher that did not receive everything in time.
    pub late: Vec<String>,
    pub interrupted: bool,
    /// True if a comparison of the members' hashes was requested.
    pub hashes_wanted: bool,
    /// Faults injected by a proxy in front of the first member, with counts.
    pub lies: Vec<(String, u64)>,
    pub timeline: Timeline,
}

impl VerifyReport {
    /// Reports whether everything was checked without a contradiction.
    pub fn is_clean(&self) -> bool {
        self.violation.is_none() && self.failed.is_none() && self.unchecked().is_empty()
    }

    /// Lists the requested checks that did not happen.
    pub fn unchecked(&self) -> Vec<String> {
        let mut all = Vec::new();
        // An unresponsive cluster contradicts no guarantee.
        if self.checked.writes == 0 || self.checked.linearizable_reads == 0 {
            all.push("anything: no write or no linearizable read succeeded".into());
        }
        if self.unreached > 0 {
            all.push(format!("{} unreachable members", self.unreached));
        }
        if self.undecided > 0 {
            all.push(format!("{} operations: no watcher reached their revisions", self.undecided));
        }
        all.extend(self.late.iter().map(|endpoint| format!("{endpoint}: its watcher is late")));
        if self.hashes_wanted && self.endpoints.len() > 1 && self.checked.hashes == 0 {
            all.push("hashes: no two members reported one at the same revision".into());
        }
        if self.violation.is_none() {
            let undetected = |(lie, times): &(String, u64)| {
                format!("the guarantee of {lie}: the fault was injected {times} times and not detected")
            };
            all.extend(self.lies.iter().map(undetected));
        }
        all
    }

    /// Formats the result for a terminal.
    pub fn text(&self) -> String {
        let mut out = format!("Checked in {:.1} s: {}.\n", self.seconds, brief(&self.checked));
        let mut line = |text: String| writeln!(out, "{text}").expect("a string accepts text");
        for (number, endpoint) in self.endpoints.iter().enumerate() {
            line(format!("Member and watcher {number}: {endpoint}"));
        }
        for leader in &self.timeline.leaders {
            let name = leader.endpoint.as_deref().unwrap_or("none");
            line(format!("Leader from {:.1} s: {name}, term {}", leader.at_seconds, leader.term));
        }
        for window in &self.timeline.windows {
            let (from, to) = (window.from_seconds, window.to_seconds);
            line(format!("No acknowledged write from {from:.1} s to {to:.1} s ({:.1} s).", to - from));
        }
        if self.checked.leases_expired > 0 {
            let seconds = self.checked.lease_latest_ms as f64 / 1e3;
            line(format!("Maximum delay of a lease expiry: {seconds:.1} s."));
        }
        if self.checked.too_old > 0 {
            line(format!("{} serializable reads were too old to be checked.", self.checked.too_old));
        }
        for (lie, times) in &self.lies {
            line(format!("Injected in front of member 0: {lie}, {times} times."));
        }
        self.failed.iter().for_each(|reason| line(format!("Stopped early: {reason}.")));
        if self.violation.is_none() {
            // After a violation, the remaining checks are not completed.
            self.unchecked().iter().for_each(|what| line(format!("Not checked: {what}.")));
        }
        match &self.violation {
            Some(violation) => line(violation.to_string()),
            None if self.is_clean() => line("No violation.".into()),
            None => line("No violation among the completed checks.".into()),
        }
        out
    }
}

/// Summarizes the checks so far.
pub fn brief(checked: &CheckCounts) -> String {
    let CheckCounts { writes, linearizable_reads, serializable_reads, unknown, events, .. } = checked;
    let CheckCounts { leases_expired, leases_revoked, hashes, holds, .. } = checked;
    format!(
        "{writes} writes, {linearizable_reads} linearizable and {serializable_reads} serializable reads, \
         {events} events, {leases_expired} expired and {leases_revoked} revoked leases, \
         {hashes} equal hashes, {holds} locks and elections; {unknown} failed calls"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_completely_checked_run_is_clean() {
        let checked =
            CheckCounts { writes: 3, linearizable_reads: 1, too_old: 2, hashes: 1, ..Default::default() };
        let clean = VerifyReport {
            endpoints: vec!["a:1".into(), "b:1".into()],
            hashes_wanted: true,
            seconds: 1.0,
            checked,
            ..VerifyReport::default()
        };
        type Changed = fn(&mut VerifyReport);
        let cases: [(Changed, Option<&str>); 12] = [
            (|_| {}, None),
            (|it| it.undecided = 1, Some("1 operations")),
            (|it| it.late = vec!["b:1".into()], Some("b:1: its watcher")),
            (|it| it.checked.linearizable_reads = 0, Some("anything: ")),
            (|it| it.checked.writes = 0, Some("anything: ")),
            (|it| it.unreached = 1, Some("1 unreachable")),
            (|it| it.checked.hashes = 0, Some("hashes: ")),
            (|it| (it.checked.hashes, it.hashes_wanted) = (0, false), None),
            (|it| (it.checked.hashes, it.endpoints) = (0, vec!["a:1".into()]), None),
            (|it| it.lies = vec![("wrong-hash".into(), 3)], Some("the guarantee of wrong-hash")),
            (|it| it.failed = Some("z".into()), Some("")),
            (|it| it.violation = Some(Violation { rule: "x".into(), evidence: vec!["y".into()] }), Some("")),
        ];
        for (number, (change, unchecked)) in cases.into_iter().enumerate() {
            let mut report = clean.clone();
            change(&mut report);
            let text = report.text();
            let last = match (&report.violation, unchecked) {
                (Some(_), _) => "  y",
                (None, None) => "No violation.",
                (None, Some(_)) => "No violation among the completed checks.",
            };
            assert_eq!(
                (report.is_clean(), text.lines().last()),
                (unchecked.is_none(), Some(last)),
                "{number}"
            );
            let reason = unchecked.filter(|what| !what.is_empty());
            assert_eq!(text.contains("Not checked: "), reason.is_some(), "{text}");
            reason.iter().for_each(|what| assert!(text.contains(&format!("Not checked: {what}")), "{text}"));
        }
    }
}
