//! The result of `verify` as text.

use super::document::VerifyDocument;
use checker::CheckCounts;

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

/// Formats the result of a run.
pub fn text(document: &VerifyDocument) -> String {
    let VerifyDocument { report, endpoints, lies, .. } = document;
    let mut out = String::new();
    let mut line = |text: String| out.extend([text.as_str(), "\n"]);
    line(format!("Checked in {:.1} s: {}.", report.seconds, brief(&report.checked)));
    for (number, endpoint) in endpoints.iter().enumerate() {
        line(format!("Member and watcher {number}: {endpoint}"));
    }
    if report.checked.leases_expired > 0 {
        let seconds = report.checked.lease_latest_ms as f64 / 1e3;
        line(format!("Leases expired at most {seconds:.1} s after their time."));
    }
    if report.checked.too_old > 0 {
        line(format!("{} serializable reads were too old to be checked.", report.checked.too_old));
    }
    for (lie, times) in lies {
        line(format!("A proxy in front of member 0 had the fault {lie} {times} times."));
    }
    report.failed.iter().for_each(|reason| line(format!("Ended early: {reason}.")));
    document.unchecked().iter().for_each(|what| line(format!("Not checked: {what}.")));
    match &report.violation {
        Some(violation) => line(violation.to_string()),
        None if document.is_clean() => line("No violation.".into()),
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
        let clean = VerifyDocument {
            endpoints: vec!["a:1".into(), "b:1".into()],
            hashes_wanted: true,
            ..VerifyDocument::default()
        };
        let checked =
            CheckCounts { writes: 3, linearizable_reads: 1, too_old: 2, hashes: 1, ..Default::default() };
        type Changed = fn(&mut VerifyDocument);
        let cases: [(Changed, Option<&str>); 12] = [
            (|_| {}, None),
            (|it| it.report.undecided = 1, Some("1 operation, whose")),
            (|it| it.report.behind = vec!["b:1".into()], Some("b:1 to the end")),
            // Missing responses and missing events do not contradict anything.
            (|it| it.report.checked.linearizable_reads = 0, Some("anything: ")),
            (|it| it.report.checked.writes = 0, Some("anything: ")),
            (|it| it.unreached = 1, Some("1 member, without an answer")),
            (|it| it.report.checked.hashes = 0, Some("the members' hashes")),
            (|it| (it.report.checked.hashes, it.hashes_wanted) = (0, false), None),
            (|it| (it.report.checked.hashes, it.endpoints) = (0, vec!["a:1".into()]), None),
            (|it| it.lies = vec![("wrong-hash".into(), 3)], Some("the law that the fault wrong-hash")),
            (|it| it.report.failed = Some("z".into()), Some("")),
            (
                |it| it.report.violation = Some(Violation { rule: "x".into(), evidence: vec!["y".into()] }),
                Some(""),
            ),
        ];
        for (number, (change, unchecked)) in cases.into_iter().enumerate() {
            let mut document = clean.clone();
            document.report = VerifyReport { seconds: 1.0, checked, ..VerifyReport::default() };
            change(&mut document);
            let text = text(&document);
            let last = match (&document.report.violation, unchecked) {
                (Some(_), _) => "  y",
                (None, None) => "No violation.",
                (None, Some(_)) => "No violation among what was checked.",
            };
            assert_eq!(
                (document.is_clean(), text.lines().last()),
                (unchecked.is_none(), Some(last)),
                "{number}"
            );
            let said = unchecked.filter(|what| !what.is_empty());
            assert_eq!(text.contains("Not checked: "), said.is_some(), "{text}");
            said.iter().for_each(|what| assert!(text.contains(&format!("Not checked: {what}")), "{text}"));
            assert!(text.contains("2 serializable reads"), "{text}");
        }
    }
}
