//! Health of the cluster, as sentences derived from a member's status document.

use std::collections::BTreeMap;

use crate::metrics::SlowCall;
use crate::status::{Document, Finding, Health, MemberStatus, Severity};

/// A member that lacks more entries than are kept for slow followers will need a snapshot.
const LAG_ENTRIES: u64 = 5000;
const QUOTA_PERCENT: u64 = 80;
/// The part from which on a forecast of less than [`QUOTA_FORECAST_S`] is a finding as well.
const QUOTA_FORECAST_PERCENT: u64 = 70;
const QUOTA_FORECAST_S: u64 = 86_400;
const CERTIFICATE_S: i64 = 14 * 86_400;
/// Duration of a sync at which etcd warns of a slow disk.
pub const SYNC_US: u64 = 100_000;
/// Spans of 5 s per minute with such a sync: a single one may be caused by a neighbour's burst.
const SYNCS_SLOW: u64 = 3;
const ELECTIONS_HOUR: u64 = 3;
const WAITING: u64 = 16;
/// Slow calls in a minute.
const SLOW_CALLS: usize = 10;
/// Share of a member's requests above which a client is named as the likely cause.
const CLIENT_PERCENT: f64 = 60.0;
/// Difference at which etcd warns of it.
const CLOCK_MS: u64 = 1000;

/// Returns all findings, most severe first, and the summary.
pub fn of(document: &Document) -> Health {
    let mut findings = Vec::new();
    members(document, &mut findings);
    alarms(document, &mut findings);
    space(document, &mut findings);
    pace(document, &mut findings);
    slow_calls(document, &mut findings);
    certificates(document, &mut findings);
    let leader = document.members.iter().find(|member| member.is_leader).map(name).unwrap_or_default();
    let good = match document.members.len() {
        1 => "The only member serves".to_owned(),
        count => format!("All {count} members answer, {leader} leads"),
    };
    summed(findings, good)
}

/// Returns the findings of all reachable members without duplicates, the requested one first. Texts that
/// differ only in times and shares are duplicates. The page's script does the same.
pub fn of_cluster<'a>(asked: &'a Health, others: impl IntoIterator<Item = &'a Health>) -> Health {
    let mut findings: Vec<Finding> = asked.findings.clone();
    for finding in others.into_iter().flat_map(|other| &other.findings) {
        if findings.iter().all(|known| without_amounts(&known.text) != without_amounts(&finding.text)) {
            findings.push(finding.clone());
        }
    }
    summed(findings, asked.text.clone())
}

fn without_amounts(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let is_amount = |at: usize| {
        let number = words[at].trim_start_matches('(');
        let unit = words.get(at + 1).map(|unit| unit.trim_end_matches([')', ',', ';']));
        number.parse::<u64>().is_ok() && matches!(unit, Some("%" | "s" | "min" | "h" | "d"))
    };
    let kept = (0..words.len()).filter(|at| !is_amount(*at) && (*at == 0 || !is_amount(at - 1)));
    kept.map(|at| words[at]).collect::<Vec<_>>().join(" ")
}

fn summed(mut findings: Vec<Finding>, good: String) -> Health {
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let severity = findings.first().map_or(Severity::Good, |finding| finding.severity);
    let text = match findings.as_slice() {
        [] => good,
        [only] => only.text.clone(),
        [first, rest @ ..] => format!("{}; {} more below", first.text, rest.len()),
    };
    Health { severity, text, findings }
}

fn name(member: &MemberStatus) -> String {
    if member.name.is_empty() { member.id.clone() } else { member.name.clone() }
}

fn finding(severity: Severity, text: String, todo: &str, see: &str) -> Finding {
    Finding { severity, text, todo: todo.to_owned(), see: see.to_owned() }
}

/// Formats a duration: `3 s`, `5 min`, `2 h`, `4 d`.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn members(document: &Document, findings: &mut Vec<Finding>) {
    let is_up = |member: &&MemberStatus| member.is_self || member.linked_s.is_some();
    let voters: Vec<&MemberStatus> = document.members.iter().filter(|member| !member.is_learner).collect();
    let (up, majority) =
        (voters.iter().copied().filter(|member| is_up(member)).count(), voters.len() / 2 + 1);
    let down: Vec<&MemberStatus> = document.members.iter().filter(|member| !is_up(member)).collect();
    let names: Vec<String> = down
        .iter()
        .map(|member| match member.down_s {
            Some(since) => format!("{} (for {})", name(member), span(since)),
            None => name(member),
        })
        .collect();
    let names = names.join(", ");
    let start = "Start the members that do not answer, or see why they are not reached";
    if document.leader.is_empty() {
        let text = if up < majority {
            format!(
                "No quorum: {up} of {} voters answer, {majority} are needed; silent: {names}",
                voters.len()
            )
        } else {
            "No leader is known: an election is under way".to_owned()
        };
        findings.push(finding(Severity::Bad, text, start, "Members"));
    } else if !down.is_empty() {
        let verb = if down.len() == 1 { "does" } else { "do" };
        let more = if up == majority { "; one more loss stops the cluster" } else { "" };
        let text = format!("{names} {verb} not answer{more}");
        findings.push(finding(Severity::Warn, text, start, "Members"));
    }
    let late = document.members.iter().filter(|member| is_up(member) && !member.is_self);
    for member in late.filter(|member| member.lag.is_some_and(|lag| lag > LAG_ENTRIES)) {
        let text = format!("{} lacks {} entries", name(member), member.lag.unwrap_or_default());
        let todo =
            "It catches up by itself, by a snapshot if need be; if it does not, see its disk and its log";
        findings.push(finding(Severity::Warn, text, todo, "Snapshots between members"));
    }
    if document.elections_hour >= ELECTIONS_HOUR {
        let text = format!("{} changes of the leader in the last hour", document.elections_hour);
        let todo = "See the round trips and the disks; raise --election-timeout if they are as slow as that";
        findings.push(finding(Severity::Warn, text, todo, "Members"));
    }
}

fn alarms(document: &Document, findings: &mut Vec<Finding>) {
    for alarm in &document.alarms {
        let of = document.members.iter().find(|member| member.id == alarm.member);
        let text = format!("Alarm {} of {}", alarm.alarm, of.map_or_else(|| alarm.member.clone(), name));
        let todo = match alarm.alarm.as_str() {
            "NOSPACE" => "Puts are refused: delete or compact, then `etcdctl alarm disarm`",
            "CORRUPT" => "Its state differs: `kvctl member reseed` replaces it",
            _ => "`etcdctl alarm list`",
        };
        findings.push(finding(Severity::Bad, text, todo, "Alarms"));
    }
}

fn space(document: &Document, findings: &mut Vec<Finding>) {
    let (used, quota) = (document.space.store_bytes, document.space.quota_bytes);
    let percent = used.saturating_mul(100).checked_div(quota).unwrap_or_default();
    let is_soon = document.quota_full_s.is_some_and(|seconds| seconds < QUOTA_FORECAST_S);
    if percent < if is_soon { QUOTA_FORECAST_PERCENT } else { QUOTA_PERCENT } {
        return;
    }
    let forecast = document.quota_full_s.map(|seconds| format!(", full in {}", span(seconds)));
    let text = format!("{percent} % of the quota is in use{}", forecast.unwrap_or_default());
    let todo = "Compact, delete, or raise --quota-backend-bytes of all members";
    findings.push(finding(Severity::Warn, text, todo, "Alarms"));
}

fn pace(document: &Document, findings: &mut Vec<Finding>) {
    if document.syncs_slow >= SYNCS_SLOW {
        let text = format!(
            "The disk of {} is slow: syncs took up to {} ms in the last minute",
            document.name,
            document.sync_slowest_us / 1000
        );
        let todo = "See what else uses the disk; put --wal-dir on a separate one";
        findings.push(finding(Severity::Warn, text, todo, "State and disk"));
    }
    let waiting = document.queues.reads_waiting + document.queues.commands_waiting;
    if waiting > WAITING {
        let text = format!("{waiting} requests wait for memory or for their turn");
        let todo = "See the top clients (--metrics-top); page large ranges, or raise --memory-limit";
        findings.push(finding(Severity::Warn, text, todo, "Alert rules"));
    }
}

fn slow_calls(document: &Document, findings: &mut Vec<Finding>) {
    let is_new = |call: &&SlowCall| document.now_ms.saturating_sub(call.at_ms) < 60_000;
    let slow: Vec<&SlowCall> = document.slow_calls.iter().filter(is_new).collect();
    if slow.len() < SLOW_CALLS {
        return;
    }
    let mut stages: BTreeMap<&str, usize> = BTreeMap::new();
    slow.iter().for_each(|call| *stages.entry(&call.stage).or_default() += 1);
    let stage = stages.into_iter().max_by_key(|(_, count)| *count).map_or("other", |(stage, _)| stage);
    let mut text =
        format!("{} or more slow calls of {} in a minute, most in {stage}", slow.len(), document.name);
    // Without its address, since other members show this text as well.
    let clients = document.top.iter().flat_map(|top| &top.clients);
    let (most, all) = clients.fold((0.0, 0.0), |(most, all), it| (it.requests.max(most), it.requests + all));
    if most * 100.0 > all * CLIENT_PERCENT {
        let part = (most / all * 100.0).round();
        text += &format!("; one client sends {part} % of the requests, see the top clients there");
    }
    let todo =
        "See the slow calls of that member, its processor and disk, and who sends most (--metrics-top)";
    findings.push(finding(Severity::Warn, text, todo, "Alert rules"));
}

/// Adds the clock finding, which needs a comparison with the requesting member.
pub fn compare_clock(document: &mut Document, asked_by: &str) {
    let Some(off) = document.clock_off_ms.filter(|off| off.unsigned_abs() > CLOCK_MS) else { return };
    let (seconds, way) = (off.unsigned_abs().div_ceil(1000), if off > 0 { "ahead of" } else { "late by" });
    let text = format!("The clock of {} is {seconds} s or more {way} that of {asked_by}", document.name);
    let todo = "Let all machines follow the same time servers; certificates and tokens go by this clock";
    document.health.findings.push(finding(Severity::Warn, text, todo, "Members"));
}

fn certificates(document: &Document, findings: &mut Vec<Finding>) {
    for certificate in document.certificates.iter().filter(|it| it.ends_s < CERTIFICATE_S) {
        let todo = "Replace its files; they are read again without a restart";
        let (severity, text) = match u64::try_from(certificate.ends_s) {
            Ok(left) => (Severity::Warn, format!("expires in {}", span(left))),
            Err(_) => (Severity::Bad, "has expired".to_owned()),
        };
        let text = format!("The certificate of {}'s {} port {text}", document.name, certificate.port);
        findings.push(finding(severity, text, todo, "Clients and TLS"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Alarm, CertificateEnd};
    use crate::usage::{Rows, Top};

    /// Three members, seen by m1: `m1* m2 m3!`, where * leads and ! does not answer.
    fn document(members: &str) -> Document {
        let member = |word: &str| MemberStatus {
            id: word[..2].to_owned(),
            name: word[..2].to_owned(),
            is_self: word.starts_with("m1"),
            is_leader: word.contains('*'),
            linked_s: (!word.contains('!')).then_some(60),
            down_s: word.contains('!').then_some(200),
            ..MemberStatus::default()
        };
        let members: Vec<MemberStatus> = members.split(' ').map(member).collect();
        let leader = members.iter().find(|it| it.is_leader).map(|it| it.id.clone()).unwrap_or_default();
        Document { name: "m1".to_owned(), leader, members, ..Document::default() }
    }

    #[test]
    fn a_clock_that_is_far_off_is_found() {
        for (off, wanted) in [
            (None, None),
            (Some(1000), None),
            (Some(-900), None),
            (Some(90_500), Some("The clock of m1 is 91 s or more ahead of that of m2")),
            (Some(-3000), Some("The clock of m1 is 3 s or more late by that of m2")),
        ] {
            let mut document = Document { clock_off_ms: off, ..document("m1* m2") };
            compare_clock(&mut document, "m2");
            let found = document.health.findings.first().map(|it| it.text.as_str());
            assert_eq!(found, wanted, "{off:?}");
        }
    }

    /// 12 slow calls in the last minute and as many before, and clients with so many requests.
    fn slow(document: &mut Document, requests: &[f64]) {
        document.now_ms = 100_000;
        let call = |at: u64| SlowCall { at_ms: at * 5000, stage: "read".to_owned(), ..SlowCall::default() };
        document.slow_calls = (0..=20).rev().map(call).collect();
        let client = |requests: &f64| Top { requests: *requests, ..Top::default() };
        document.top = Some(Rows { clients: requests.iter().map(client).collect(), ..Rows::default() });
    }

    type Change = fn(&mut Document);

    const SENTENCES: [(&str, Change, Severity, &str); 15] = [
        ("m1* m2 m3", |_| {}, Severity::Good, "All 3 members answer, m1 leads"),
        ("m1*", |_| {}, Severity::Good, "The only member serves"),
        (
            "m1* m2 m3!",
            |_| {},
            Severity::Warn,
            "m3 (for 3 min) does not answer; one more loss stops the cluster",
        ),
        (
            "m1 m2! m3!",
            |_| {},
            Severity::Bad,
            "No quorum: 1 of 3 voters answer, 2 are needed; silent: m2 (for 3 min), m3 (for 3 min)",
        ),
        ("m1 m2 m3", |_| {}, Severity::Bad, "No leader is known: an election is under way"),
        (
            "m1* m2 m3!",
            |it| it.alarms = vec![Alarm { member: "m2".to_owned(), alarm: "NOSPACE".to_owned() }],
            Severity::Bad,
            "Alarm NOSPACE of m2; 1 more below",
        ),
        (
            "m1* m2 m3",
            |it| (it.space.store_bytes, it.space.quota_bytes) = (85, 100),
            Severity::Warn,
            "85 % of the quota is in use",
        ),
        (
            "m1* m2 m3",
            |it| {
                (it.space.store_bytes, it.space.quota_bytes) = (70, 100);
                it.quota_full_s = Some(7300);
            },
            Severity::Warn,
            "70 % of the quota is in use, full in 2 h",
        ),
        (
            "m1* m2 m3",
            |it| {
                (it.space.store_bytes, it.space.quota_bytes) = (69, 100);
                it.quota_full_s = Some(7300);
            },
            Severity::Good,
            "All 3 members answer, m1 leads",
        ),
        (
            "m1* m2 m3",
            |it| (it.sync_slowest_us, it.syncs_slow) = (250_000, 3),
            Severity::Warn,
            "The disk of m1 is slow: syncs took up to 250 ms in the last minute",
        ),
        (
            "m1* m2 m3",
            |it| slow(it, &[3.0, 2.0]),
            Severity::Warn,
            "12 or more slow calls of m1 in a minute, most in read",
        ),
        (
            "m1* m2 m3",
            |it| slow(it, &[72.0, 3.0]),
            Severity::Warn,
            "12 or more slow calls of m1 in a minute, most in read; one client sends 96 % of the \
             requests, see the top clients there",
        ),
        ("m1* m2 m3", |it| it.members[1].lag = Some(6000), Severity::Warn, "m2 lacks 6000 entries"),
        ("m1* m2 m3", |it| it.elections_hour = 4, Severity::Warn, "4 changes of the leader in the last hour"),
        (
            "m1* m2 m3",
            |it| it.certificates = vec![CertificateEnd { port: "client".to_owned(), ends_s: 9 * 86_400 }],
            Severity::Warn,
            "The certificate of m1's client port expires in 9 d",
        ),
    ];

    #[test]
    fn the_sentence_names_the_gravest_reason() {
        for (members, change, severity, text) in SENTENCES {
            let mut document = document(members);
            change(&mut document);
            let health = of(&document);
            assert_eq!((health.severity, health.text.as_str()), (severity, text), "{members}");
            let page = include_str!("../../../docs/operate/troubleshoot.md");
            for finding in health.findings {
                assert!(page.contains(&format!("\n## {}\n", finding.see)), "{}", finding.see);
            }
        }
    }

    #[test]
    fn the_health_of_a_cluster_is_what_its_members_say_once_each() {
        let says = |texts: &[(Severity, &str)]| {
            let findings =
                texts.iter().map(|(severity, text)| finding(*severity, (*text).to_owned(), "", ""));
            summed(findings.collect(), "All 3 members answer".to_owned())
        };
        let (warn, bad) = (Severity::Warn, Severity::Bad);
        for (asked, other, wanted) in [
            (says(&[]), says(&[]), "All 3 members answer"),
            (says(&[]), says(&[(warn, "The disk of m2 is slow")]), "The disk of m2 is slow"),
            (
                says(&[(warn, "m3 (for 3 s) does not answer; one more loss stops the cluster")]),
                says(&[(warn, "m3 (for 4 min) does not answer; one more loss stops the cluster")]),
                "m3 (for 3 s) does not answer; one more loss stops the cluster",
            ),
            (says(&[(warn, "81 % of the quota")]), says(&[(warn, "82 % of the quota")]), "81 % of the quota"),
            (says(&[(warn, "m1 is slow")]), says(&[(bad, "m2 is slow")]), "m2 is slow; 1 more below"),
        ] {
            assert_eq!(of_cluster(&asked, [&other]).text, wanted);
        }
    }
}
