//! The result of `verify` as text.

use crate::client::endpoint::Endpoint;
use crate::verify::Report;
use crate::verify::checker::Checked;

/// What was checked so far.
pub fn brief(checked: &Checked) -> String {
    let Checked { writes, linearizable_reads, serializable_reads, unknown, events, .. } = checked;
    format!(
        "{writes} writes, {linearizable_reads} linearizable and {serializable_reads} serializable reads, \
         {events} events; {unknown} failed calls"
    )
}

/// The result of a run.
pub fn text(report: &Report, members: &[Endpoint]) -> String {
    let mut out = String::new();
    let mut line = |text: String| out.extend([text.as_str(), "\n"]);
    line(format!("Checked in {:.1} s: {}.", report.seconds, brief(&report.checked)));
    for (number, endpoint) in members.iter().enumerate() {
        let behind = report.behind.contains(&endpoint.to_string());
        let state = if behind { ": its watcher did not receive everything before the end" } else { "" };
        line(format!("Member and watcher {number}: {endpoint}{state}"));
    }
    if report.checked.too_old > 0 {
        line(format!("{} serializable reads were too old to be checked.", report.checked.too_old));
    }
    if report.undecided > 0 {
        line(format!("{} operations were not checked: no watcher reached their revision.", report.undecided));
    }
    report.failed.iter().for_each(|reason| line(format!("Ended early: {reason}.")));
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
    use crate::verify::checker::Violation;

    #[test]
    fn only_a_run_that_was_checked_whole_is_clean() {
        let members: Vec<Endpoint> = vec!["a:1".parse().unwrap(), "b:1".parse().unwrap()];
        let clean = Report {
            seconds: 1.0,
            checked: Checked { writes: 3, too_old: 2, ..Checked::default() },
            violation: None,
            failed: None,
            undecided: 0,
            behind: vec!["b:1".into()],
            interrupted: false,
        };
        let violation = Violation { rule: "x", evidence: vec!["y".into()] };
        for (report, is_clean, last) in [
            (clean.clone(), true, "No violation."),
            (Report { undecided: 1, ..clean.clone() }, false, "No violation among what was checked."),
            (
                Report { failed: Some("z".into()), ..clean.clone() },
                false,
                "No violation among what was checked.",
            ),
            (Report { violation: Some(violation), ..clean.clone() }, false, "  y"),
        ] {
            let text = text(&report, &members);
            assert_eq!((report.is_clean(), text.lines().last()), (is_clean, Some(last)));
            assert!(
                text.contains("1: b:1: its watcher did not") && text.contains("2 serializable reads"),
                "{text}"
            );
        }
    }
}
