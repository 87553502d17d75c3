//! Outcomes as a Markdown table, etcd's column next to ours.

use super::outcome::{AttackOutcome, Latency, millis};

type CellText = fn(&AttackOutcome) -> String;

const COLUMNS: [(&str, CellText); 7] = [
    ("verdict", verdict),
    ("p50 / p99 in ms before, during, after", latencies),
    ("failed of calls", |o| format!("{} of {}", o.failed, o.calls)),
    ("RSS in MiB before, peak, 5 s after", |o| o.rss_mib.map(|mib| mib.to_string()).join(", ")),
    ("CPU", |o| format!("{} %", o.cpu_percent)),
    ("descriptors, threads left", left),
    ("normal after", normal),
];

/// One row per attack; a column per figure and program.
pub fn markdown(programs: &[String], outcomes: &[AttackOutcome]) -> String {
    let mut table = "| attack |".to_owned();
    for (title, _) in COLUMNS {
        programs.iter().for_each(|program| table.push_str(&format!(" {title}: {program} |")));
    }
    table.push_str("\n|---|");
    table.push_str(&"---|".repeat(COLUMNS.len() * programs.len()));
    table.push('\n');
    let mut attacks: Vec<&str> = outcomes.iter().map(|outcome| outcome.attack.as_str()).collect();
    attacks.dedup();
    for attack in attacks {
        table.push_str(&format!("| {attack} |"));
        for (_, cell) in COLUMNS {
            for program in programs {
                let outcome = outcomes.iter().find(|o| o.attack == attack && o.program == *program);
                table.push_str(&format!(" {} |", outcome.map_or_else(|| "–".to_owned(), cell)));
            }
        }
        table.push('\n');
    }
    table
}

fn verdict(outcome: &AttackOutcome) -> String {
    if outcome.passed() { "ok".to_owned() } else { format!("**{}**", outcome.faults.join(", ")) }
}

fn latencies(outcome: &AttackOutcome) -> String {
    let pair = |latency: &Latency| format!("{}/{}", millis(latency.p50), millis(latency.p99));
    [&outcome.before, &outcome.during, &outcome.after].map(pair).join(", ")
}

fn left(outcome: &AttackOutcome) -> String {
    let change = |[before, after]: [u64; 2]| format!("{before} → {after}");
    format!("{}; {}", change(outcome.descriptors), change(outcome.threads))
}

fn normal(outcome: &AttackOutcome) -> String {
    outcome.normal_after_seconds.map_or_else(|| "> 5 s".to_owned(), |seconds| format!("{seconds} s"))
}
