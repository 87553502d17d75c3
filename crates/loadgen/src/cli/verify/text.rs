//! The result of `verify` as text.

use super::document::VerifyDocument;
use checker::CheckCounts;

/// What was checked so far.
pub fn brief(checked: &CheckCounts) -> String {
    let CheckCounts { writes, linearizable_reads, serializable_reads, unknown, events, .. } = checked;
    let CheckCounts { leases_expired, leases_revoked, hashes, holds, .. } = checked;
    format!(
        "{writes} writes, {linearizable_reads} linearizable and {serializable_reads} serializable reads, \
         {events} events, {leases_expired} expired and {leases_revoked} revoked leases, \
         {hashes} equal hashes, {holds} locks and elections; {unknown} failed calls"
    )
}

/// The result of a run.
pub fn text(document: &VerifyDocument) -> String {
    let VerifyDocument { report, endpoints, lies, .. } = document;
    let mut out = String::new();
    let mut line = |text: String| out.extend([text.as_str(), "\n"]);
    line(format!("Checked in {:.1} s: {}.", report.seconds, brief(&report.checked)));
    for (number, endpoint) in endpoints.iter().enumerate() {
        let behind = report.behind.contains(endpoint);
        let state = if behind { ": its watcher did not receive everything before the end" } else { "" };
        line(format!("Member and watcher {number}: {endpoint}{state}"));
    }
    if document.unreached > 0 {
        line(format!("Members that could not be reached, and were not checked: {}.", document.unreached));
    }
    if report.checked.leases_expired > 0 {
        let seconds = report.checked.lease_latest_ms as f64 / 1e3;
        line(format!("Leases expired at most {seconds:.1} s after their time."));
    }
    if report.checked.too_old > 0 {
        line(format!("{} serializable reads were too old to be checked.", report.checked.too_old));
    }
    if report.undecided > 0 {
        line(format!("{} operations were not checked: no watcher reached their revision.", report.undecided));
    }
    for (lie, times) in lies {
        line(format!("A proxy in front of member 0 had the fault {lie} {times} times."));
    }
    report.failed.iter().for_each(|reason| line(format!("Ended early: {reason}.")));
    if report.is_empty() {
        line("Nothing was checked: no write or no linearizable read was answered.".into());
    }
    match &report.violation {
        Some(violation) => line(violation.to_string()),
        None if report.is_clean() => line("No violation.".into()),
        None => line("No violation among what was checked.".into()),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::VerifyReport;
    use checker::Violation;

    #[test]
    fn only_a_run_that_was_checked_whole_is_clean() {
        let endpoints = vec!["a:1".to_owned(), "b:1".to_owned()];
        let clean = VerifyReport {
            seconds: 1.0,
            checked: CheckCounts { writes: 3, linearizable_reads: 1, too_old: 2, ..CheckCounts::default() },
            ..VerifyReport::default()
        };
        // A member that answers nothing, and watchers that receive nothing, contradict nothing.
        let empty =
            VerifyReport { checked: CheckCounts { linearizable_reads: 0, ..clean.checked }, ..clean.clone() };
        let violation = Violation { rule: "x".into(), evidence: vec!["y".into()] };
        for (report, is_clean, last) in [
            (clean.clone(), true, "No violation."),
            (VerifyReport { undecided: 1, ..clean.clone() }, false, "No violation among what was checked."),
            (
                VerifyReport { behind: vec!["b:1".into()], ..clean.clone() },
                false,
                "No violation among what was checked.",
            ),
            (empty, false, "No violation among what was checked."),
            (
                VerifyReport { failed: Some("z".into()), ..clean.clone() },
                false,
                "No violation among what was checked.",
            ),
            (VerifyReport { violation: Some(violation), ..clean.clone() }, false, "  y"),
        ] {
            let document =
                VerifyDocument { report, endpoints: endpoints.clone(), ..VerifyDocument::default() };
            let (report, text) = (&document.report, text(&document));
            assert_eq!((report.is_clean(), text.lines().last()), (is_clean, Some(last)));
            assert_eq!(text.contains("1: b:1: its watcher did not"), !report.behind.is_empty(), "{text}");
            assert_eq!(text.contains("Nothing was checked: "), report.is_empty(), "{text}");
            assert!(text.contains("2 serializable reads"), "{text}");
        }
    }
}
