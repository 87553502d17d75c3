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
        1 => "Healthy: single member".to_owned(),
        count => format!("Healthy: {count}/{count} members up, leader {leader}"),
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
        [first, _] => format!("{} (+1 more issue)", first.text),
        [first, rest @ ..] => format!("{} (+{} more issues)", first.text, rest.len()),
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
    let down: Vec<String> = down
        .iter()
        .map(|member| match member.down_s {
            Some(since) => format!("{} ({})", name(member), span(since)),
            None => name(member),
        })
        .collect();
    let start = "Start the unreachable members, or check network connectivity";
    if document.leader.is_empty() {
        let text = if up < majority {
            let names = down.join(", ");
            format!("No quorum: {up}/{} voters up, {majority} required; unreachable: {names}", voters.len())
        } else {
            "No leader: election in progress".to_owned()
        };
        findings.push(finding(Severity::Bad, text, start, "Members"));
    } else if !down.is_empty() {
        let more = if up == majority { "; losing one more member loses quorum" } else { "" };
        let text = format!("Unreachable: {}{more}", down.join(", "));
        findings.push(finding(Severity::Warn, text, start, "Members"));
    }
    let late = document.members.iter().filter(|member| is_up(member) && !member.is_self);
    for member in late.filter(|member| member.lag.is_some_and(|lag| lag > LAG_ENTRIES)) {
        let text = format!("{} lags by {} entries", name(member), member.lag.unwrap_or_default());
        let todo = "It catches up by itself, with a snapshot if needed; if not, check its disk and its log";
        findings.push(finding(Severity::Warn, text, todo, "Snapshots between members"));
    }
    if document.elections_hour >= ELECTIONS_HOUR {
        let text = format!("{} leader changes in the last hour", document.elections_hour);
        let todo = "Check round-trip times and disks; raise --election-timeout if they are that slow";
        findings.push(finding(Severity::Warn, text, todo, "Members"));
    }
}

fn alarms(document: &Document, findings: &mut Vec<Finding>) {
    for alarm in &document.alarms {
        let of = document.members.iter().find(|member| member.id == alarm.member);
        let text = format!("Alarm {} on {}", alarm.alarm, of.map_or_else(|| alarm.member.clone(), name));
        let todo = match alarm.alarm.as_str() {
            "NOSPACE" => "Puts are rejected: delete keys or compact, then `etcdctl alarm disarm`",
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
    let todo = "Compact, delete keys, or raise --quota-backend-bytes on all members";
    findings.push(finding(Severity::Warn, text, todo, "Alarms"));
}

fn pace(document: &Document, findings: &mut Vec<Finding>) {
    if document.syncs_slow >= SYNCS_SLOW {
        let text = format!(
            "Slow disk on {}: fsync took up to {} ms in the last minute",
            document.name,
            document.sync_slowest_us / 1000
        );
        let todo = "Find out what else uses the disk; put --wal-dir on a separate disk";
        findings.push(finding(Severity::Warn, text, todo, "State and disk"));
    }
    let waiting = document.queues.reads_waiting + document.queues.commands_waiting;
    if waiting > WAITING {
        let text = format!("{waiting} requests are queued for memory or concurrency");
        let todo = "Check the top clients (--metrics-top); page large ranges, or raise --memory-limit";
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
        format!("{} or more slow requests on {} in a minute, mostly in {stage}", slow.len(), document.name);
    // Without its address, since other members show this text as well.
    let clients = document.top.iter().flat_map(|top| &top.clients);
    let (most, all) = clients.fold((0.0, 0.0), |(most, all), it| (it.requests.max(most), it.requests + all));
    let part = (most / all * 100.0).round();
    // A client that sends everything, as a single kube-apiserver does, is not a likely cause.
    if most * 100.0 > all * CLIENT_PERCENT && part < 100.0 {
        text += &format!("; one client sends {part} % of the requests, see its top clients");
    }
    let todo = "Check that member's slow requests, CPU, disk and top clients (--metrics-top)";
    findings.push(finding(Severity::Warn, text, todo, "Alert rules"));
}

/// Adds the clock finding, which needs a comparison with the requesting member.
pub fn compare_clock(document: &mut Document, asked_by: &str) {
    let Some(off) = document.clock_off_ms.filter(|off| off.unsigned_abs() > CLOCK_MS) else { return };
    let seconds = off.unsigned_abs().div_ceil(1000);
    let own = document.name.as_str();
    let (ahead, late) = if off > 0 { (own, asked_by) } else { (asked_by, own) };
    let text = format!("Clock skew: {ahead} ≥ {seconds} s ahead of {late}");
    let todo =
        "Synchronize all machines with the same time servers; certificates and tokens depend on the clock";
    document.health.findings.push(finding(Severity::Warn, text, todo, "Members"));
}

fn certificates(document: &Document, findings: &mut Vec<Finding>) {
    for certificate in document.certificates.iter().filter(|it| it.ends_s < CERTIFICATE_S) {
        let todo = "Replace the files; certificates reload automatically";
        let (severity, text) = match u64::try_from(certificate.ends_s) {
            Ok(left) => (Severity::Warn, format!("expires in {}", span(left))),
            Err(_) => (Severity::Bad, "has expired".to_owned()),
        };
        let text = format!("Certificate of {}'s {} port {text}", document.name, certificate.port);
        findings.push(finding(severity, text, todo, "Clients and TLS"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Alarm, CertificateEnd};
    use crate::usage::{Rows, Top};

    /// Three members, seen by m1: `m1* m2 m3!`, where * leads and ! is unreachable.
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
    fn a_clock_skew_above_the_limit_is_a_finding() {
        for (off, wanted) in [
            (None, None),
            (Some(1000), None),
            (Some(-900), None),
            (Some(90_500), Some("Clock skew: m1 ≥ 91 s ahead of m2")),
            (Some(-3000), Some("Clock skew: m2 ≥ 3 s ahead of m1")),
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

    const SENTENCES: [(&str, Change, Severity, &str); 16] = [
        ("m1* m2 m3", |_| {}, Severity::Good, "Healthy: 3/3 members up, leader m1"),
        ("m1*", |_| {}, Severity::Good, "Healthy: single member"),
        (
            "m1* m2 m3!",
            |_| {},
            Severity::Warn,
            "Unreachable: m3 (3 min); losing one more member loses quorum",
        ),
        (
            "m1 m2! m3!",
            |_| {},
            Severity::Bad,
            "No quorum: 1/3 voters up, 2 required; unreachable: m2 (3 min), m3 (3 min)",
        ),
        ("m1 m2 m3", |_| {}, Severity::Bad, "No leader: election in progress"),
        (
            "m1* m2 m3!",
            |it| it.alarms = vec![Alarm { member: "m2".to_owned(), alarm: "NOSPACE".to_owned() }],
            Severity::Bad,
            "Alarm NOSPACE on m2 (+1 more issue)",
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
            "Healthy: 3/3 members up, leader m1",
        ),
        (
            "m1* m2 m3",
            |it| (it.sync_slowest_us, it.syncs_slow) = (250_000, 3),
            Severity::Warn,
            "Slow disk on m1: fsync took up to 250 ms in the last minute",
        ),
        (
            "m1* m2 m3",
            |it| slow(it, &[3.0, 2.0]),
            Severity::Warn,
            "12 or more slow requests on m1 in a minute, mostly in read",
        ),
        (
            "m1* m2 m3",
            |it| slow(it, &[72.0, 3.0]),
            Severity::Warn,
            "12 or more slow requests on m1 in a minute, mostly in read; one client sends 96 % of \
             the requests, see its top clients",
        ),
        (
            "m1* m2 m3",
            |it| slow(it, &[75.0]),
            Severity::Warn,
            "12 or more slow requests on m1 in a minute, mostly in read",
        ),
        ("m1* m2 m3", |it| it.members[1].lag = Some(6000), Severity::Warn, "m2 lags by 6000 entries"),
        ("m1* m2 m3", |it| it.elections_hour = 4, Severity::Warn, "4 leader changes in the last hour"),
        (
            "m1* m2 m3",
            |it| it.certificates = vec![CertificateEnd { port: "client".to_owned(), ends_s: 9 * 86_400 }],
            Severity::Warn,
            "Certificate of m1's client port expires in 9 d",
        ),
    ];

    #[test]
    fn the_summary_states_the_most_severe_finding() {
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
    fn the_health_of_a_cluster_merges_equal_findings_of_its_members() {
        let says = |texts: &[(Severity, &str)]| {
            let findings =
                texts.iter().map(|(severity, text)| finding(*severity, (*text).to_owned(), "", ""));
            summed(findings.collect(), "Healthy".to_owned())
        };
        let (warn, bad) = (Severity::Warn, Severity::Bad);
        for (asked, other, wanted) in [
            (says(&[]), says(&[]), "Healthy"),
            (says(&[]), says(&[(warn, "Slow disk on m2")]), "Slow disk on m2"),
            (
                says(&[(warn, "Unreachable: m3 (3 s); losing one more member loses quorum")]),
                says(&[(warn, "Unreachable: m3 (4 min); losing one more member loses quorum")]),
                "Unreachable: m3 (3 s); losing one more member loses quorum",
            ),
            (says(&[(warn, "81 % of the quota")]), says(&[(warn, "82 % of the quota")]), "81 % of the quota"),
            (says(&[(warn, "m1 is slow")]), says(&[(bad, "m2 is slow")]), "m2 is slow (+1 more issue)"),
        ] {
            assert_eq!(of_cluster(&asked, [&other]).text, wanted);
        }
    }
}
