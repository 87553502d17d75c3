//! What an attack did to one program, and the verdict on it.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::load::HealthyCall;
use super::process::ProcessUsage;

/// Limit of the 99th percentile during an attack, as a multiple of the one before it. Applies only
/// above [`Findings::p99_floor`].
const P99_TIMES_MAX: u32 = 5;
/// Like `P99_TIMES_MAX`, for the time after the attack.
const NORMAL_TIMES_MAX: u32 = 2;

/// Resources that an attack may use up on a member.
#[derive(Clone, Copy, Debug)]
pub struct AttackBounds {
    /// Maximum growth of resident memory at any time, in bytes.
    pub rss_growth: u64,
    /// Maximum number of additional descriptors after the load has settled.
    pub descriptors_left: u64,
}

/// Default bounds. The descriptors allow for files that the store opens during the attack.
pub const BOUNDS: AttackBounds = AttackBounds { rss_growth: 256 << 20, descriptors_left: 64 };
/// Maximum growth of memory between the first and the last of many repetitions: the healthy load
/// also writes during them.
const LEFT_BYTES_MAX: u64 = 64 << 20;
/// Like `LEFT_BYTES_MAX`, for descriptors.
const LEFT_DESCRIPTORS_MAX: u64 = 16;
/// Maximum time until latencies are normal again; the remaining usage is measured then.
pub const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);
/// A window in which the load makes 500 calls: five of them are above the 99th percentile.
pub const NORMAL_WINDOW: Duration = Duration::from_secs(1);
const NORMAL_STEP: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    pub p50: Duration,
    pub p99: Duration,
}

impl Serialize for Latency {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (millis(self.p50), millis(self.p99)).serialize(serializer)
    }
}

pub fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e4).round() / 10.0
}

impl Latency {
    pub fn of<'a>(samples: impl Iterator<Item = &'a HealthyCall>) -> Latency {
        let mut latencies: Vec<Duration> = samples.map(|sample| sample.latency).collect();
        latencies.sort_unstable();
        let at = |percent: usize| {
            latencies.get((latencies.len() * percent / 100).min(latencies.len().saturating_sub(1)))
        };
        let at = |percent| at(percent).copied().unwrap_or_default();
        Latency { p50: at(50), p99: at(99) }
    }
}

/// The phases of a trial.
#[derive(Clone, Debug)]
pub struct Times {
    pub calm: Instant,
    pub attack: Instant,
    pub over: Instant,
    pub frozen: Vec<(Instant, Instant)>,
}

impl Times {
    fn is_before(&self, sample: &HealthyCall) -> bool {
        (self.calm..self.attack).contains(&sample.due)
    }

    fn is_during(&self, sample: &HealthyCall) -> bool {
        let frozen = |(from, to): &(Instant, Instant)| (*from..*to).contains(&sample.due);
        (self.attack..self.over).contains(&sample.due) && !self.frozen.iter().any(frozen)
    }

    fn is_after(&self, sample: &HealthyCall) -> bool {
        sample.due >= self.over
    }
}

/// Resource usage at the phase boundaries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usages {
    pub before: ProcessUsage,
    /// After the first of several repetitions, once all had settled.
    pub first: Option<ProcessUsage>,
    pub over: ProcessUsage,
    pub left: ProcessUsage,
    pub rss_bytes_peak: u64,
}

/// Health of the clients and the process during a trial. Latencies are pairs of p50 and p99 in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct AttackOutcome {
    pub attack: String,
    pub program: String,
    pub members: u16,
    pub seconds: f64,
    /// Acts of the attackers, and the number of sessions that the server closed.
    pub acts: u64,
    pub breaks: u64,
    /// Exit status of the process, and the log line with the cause.
    pub ended: Option<String>,
    pub before: Latency,
    pub during: Latency,
    pub after: Latency,
    pub calls: usize,
    pub failed: usize,
    pub failure: Option<String>,
    pub rss_mib: [u64; 3],
    pub cpu_percent: u64,
    pub descriptors: [u64; 2],
    pub threads: [u64; 2],
    /// None if latencies were not normal within [`SETTLE_TIMEOUT`].
    pub normal_after_seconds: Option<f64>,
    /// Calls lost after stalls that the attack made.
    pub lost: u64,
    /// Violated bounds; empty if the trial passed.
    pub faults: Vec<String>,
}

/// Raw results of a trial, before the verdict.
pub struct Findings {
    pub attack: &'static str,
    pub bounds: AttackBounds,
    pub program: String,
    pub members: u16,
    pub samples: Vec<HealthyCall>,
    /// A 99th percentile below this is always accepted: no client notices it, or the machine is
    /// busy with other work.
    pub p99_floor: Duration,
    pub times: Times,
    pub usages: Usages,
    pub acts: u64,
    pub breaks: u64,
    pub lost: u64,
    pub ended: Option<String>,
}

impl AttackOutcome {
    pub fn of(findings: Findings) -> AttackOutcome {
        let Findings { samples, times, usages, .. } = &findings;
        let latency = |wanted: fn(&Times, &HealthyCall) -> bool| {
            Latency::of(samples.iter().filter(|sample| wanted(times, sample)))
        };
        let struck: Vec<&HealthyCall> = samples.iter().filter(|sample| sample.due >= times.attack).collect();
        let failed = || struck.iter().filter_map(|sample| sample.failure.as_ref());
        let seconds = (times.over - times.attack).as_secs_f64();
        let cpu = usages.over.cpu.saturating_sub(usages.before.cpu);
        let mib = |bytes: u64| bytes >> 20;
        let mut outcome = AttackOutcome {
            attack: findings.attack.to_owned(),
            program: findings.program.clone(),
            members: findings.members,
            seconds,
            acts: findings.acts,
            breaks: findings.breaks,
            ended: findings.ended.clone(),
            before: latency(Times::is_before),
            during: latency(Times::is_during),
            after: latency(Times::is_after),
            calls: struck.len(),
            failed: failed().count(),
            failure: failed().next().cloned(),
            rss_mib: [usages.before.rss_bytes, usages.rss_bytes_peak, usages.left.rss_bytes].map(mib),
            cpu_percent: (cpu.as_secs_f64() / seconds.max(0.001) * 100.0).round() as u64,
            descriptors: [usages.before.descriptors, usages.left.descriptors],
            threads: [usages.before.threads, usages.left.threads],
            normal_after_seconds: None,
            lost: findings.lost,
            faults: Vec::new(),
        };
        outcome.normal_after_seconds = normal_after(samples, times, outcome.before.p99, findings.p99_floor);
        outcome.faults = outcome.judge(usages, findings.bounds, findings.p99_floor);
        outcome
    }

    fn judge(&self, usages: &Usages, bounds: AttackBounds, p99_floor: Duration) -> Vec<String> {
        let mut faults = Vec::new();
        if self.acts == 0 {
            faults.push("the attack did nothing".to_owned());
        }
        if self.ended.is_some() {
            faults.push("the process ended".to_owned());
            return faults;
        }
        if self.during.p99 > allowed(self.before.p99, P99_TIMES_MAX, p99_floor) {
            faults.push("p99 during".to_owned());
        }
        if usages.rss_bytes_peak > usages.before.rss_bytes + bounds.rss_growth {
            faults.push("memory".to_owned());
        }
        if self.normal_after_seconds.is_none() {
            faults.push("not normal in time".to_owned());
        }
        let [before, left] = self.descriptors;
        if left > before + bounds.descriptors_left {
            faults.push("descriptors".to_owned());
        }
        if let Some(first) = usages.first {
            if usages.left.descriptors > first.descriptors + LEFT_DESCRIPTORS_MAX {
                faults.push("descriptors grow".to_owned());
            }
            if usages.left.rss_bytes > first.rss_bytes + LEFT_BYTES_MAX {
                faults.push("memory grows".to_owned());
            }
        }
        if self.lost > 0 {
            faults.push("lost calls".to_owned());
        }
        faults
    }

    pub fn passed(&self) -> bool {
        self.faults.is_empty()
    }
}

fn allowed(before: Duration, times: u32, floor: Duration) -> Duration {
    floor.max(before * times)
}

/// Start of the first window with a normal p99 and without failures, in seconds after the attack.
fn normal_after(samples: &[HealthyCall], times: &Times, before: Duration, floor: Duration) -> Option<f64> {
    let steps = SETTLE_TIMEOUT.as_millis() / NORMAL_STEP.as_millis();
    (0..=u32::try_from(steps).expect("some tens")).map(|step| NORMAL_STEP * step).find_map(|offset| {
        let from = times.over + offset;
        let window = || samples.iter().filter(|sample| (from..from + NORMAL_WINDOW).contains(&sample.due));
        let is_normal = window().next().is_some()
            && window().all(|sample| sample.failure.is_none())
            && Latency::of(window()).p99 <= allowed(before, NORMAL_TIMES_MAX, floor);
        is_normal.then_some(offset.as_secs_f64())
    })
}

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

/// Formats outcomes as a Markdown table: a row per attack, and a column per metric and program,
/// etcd's next to ours.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Findings of a trial with phases of one second, 100 calls a second, and these latencies in
    /// milliseconds.
    fn findings(before: u64, during: u64, after: u64) -> Findings {
        let calm = Instant::now();
        let (attack, over) = (calm + Duration::from_secs(1), calm + Duration::from_secs(2));
        let sample = |number: u32| {
            let due = calm + Duration::from_millis(10) * number;
            let latency = if due < attack {
                before
            } else if due < over {
                during
            } else {
                after
            };
            HealthyCall { due, latency: Duration::from_millis(latency), failure: None }
        };
        Findings {
            attack: "test",
            bounds: BOUNDS,
            program: "kv-server".to_owned(),
            members: 1,
            samples: (0..900).map(sample).collect(),
            p99_floor: Duration::from_millis(20),
            times: Times { calm, attack, over, frozen: Vec::new() },
            usages: Usages::default(),
            acts: 1,
            breaks: 0,
            lost: 0,
            ended: None,
        }
    }

    #[test]
    fn each_verdict_can_fail() {
        type Change = fn(&mut Findings);
        let cases: [(&str, Change); 9] = [
            ("", |_| {}),
            ("the attack did nothing", |f| f.acts = 0),
            ("the process ended", |f| f.ended = Some("signal 9".to_owned())),
            ("memory", |f| f.usages.rss_bytes_peak = BOUNDS.rss_growth + 1),
            ("descriptors", |f| f.usages.left.descriptors = BOUNDS.descriptors_left + 1),
            ("descriptors grow", |f| {
                f.usages.first = Some(ProcessUsage::default());
                f.usages.left.descriptors = LEFT_DESCRIPTORS_MAX + 1;
            }),
            ("memory grows", |f| {
                f.usages.first = Some(ProcessUsage::default());
                f.usages.left.rss_bytes = LEFT_BYTES_MAX + 1;
            }),
            ("lost calls", |f| f.lost = 1),
            ("not normal in time", |f| {
                let over = f.times.over;
                let after = f.samples.iter_mut().filter(|sample| sample.due >= over);
                after.for_each(|sample| sample.failure = Some("lost".to_owned()));
            }),
        ];
        for (fault, change) in cases {
            let mut findings = findings(10, 49, 10);
            change(&mut findings);
            assert_eq!(AttackOutcome::of(findings).faults.join(", "), fault);
        }
        assert_eq!(AttackOutcome::of(findings(10, 51, 10)).faults, ["p99 during"]);
        assert_eq!(AttackOutcome::of(findings(10, 10, 21)).faults, ["not normal in time"]);
        assert!(AttackOutcome::of(findings(1, 20, 20)).passed(), "below the floor");
    }

    #[test]
    fn what_the_attack_itself_stopped_is_not_counted() {
        let mut findings = findings(10, 900, 10);
        findings.times.frozen.push((findings.times.attack, findings.times.over));
        assert!(AttackOutcome::of(findings).passed());
    }
}
