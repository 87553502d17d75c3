//! The longest times without an acknowledged write, in total and per step.
//!
//! Times are nanoseconds since the start of the experiment.

use std::collections::BTreeMap;
use std::time::Duration;

/// An action of the experiment and its time range.
#[derive(Clone, Debug)]
pub struct Period {
    pub from: u64,
    pub to: u64,
    pub what: String,
    /// Category in the statistics.
    pub kind: &'static str,
    /// True if a member was killed, paused or isolated, or returned.
    pub has_fault: bool,
    /// Minimum duration of its fault; 0 without a fault, or if it lasts for several changes.
    pub lasts: u64,
}

/// Two election timeouts. A time without acknowledged writes beyond these and the concurrent faults
/// is reported immediately.
const LONG: u64 = 2_000_000_000;

/// The longest time, and the actions during it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Longest {
    lasted: u64,
    during: Vec<String>,
}

#[derive(Debug, Default)]
pub struct Silence {
    any: Longest,
    /// Only membership changes happened during it.
    without_fault: Longest,
    /// The longest time of each step, by kind.
    by_kind: BTreeMap<&'static str, Vec<u64>>,
    /// Number of times longer than two election timeouts plus the faults.
    late: u64,
}

impl Silence {
    /// Adds a round of load: its time range, the times of acknowledged writes, and the actions.
    ///
    /// Returns a line for each time longer than two election timeouts plus the faults during it.
    pub fn add(&mut self, from: u64, to: u64, mut answered: Vec<u64>, periods: &[Period]) -> Vec<String> {
        let mut late = Vec::new();
        answered.retain(|at| (from..to).contains(at));
        answered.extend([from, to]);
        answered.sort_unstable();
        let mut longest_of = vec![0; periods.len()];
        for pair in answered.windows(2) {
            let lasted = pair[1] - pair[0];
            let overlaps = |period: &Period| period.from < pair[1] && pair[0] < period.to;
            for (_, longest) in periods.iter().zip(&mut longest_of).filter(|(period, _)| overlaps(period)) {
                *longest = lasted.max(*longest);
            }
            if lasted <= self.any.lasted && lasted <= self.without_fault.lasted && lasted < LONG {
                continue;
            }
            let during: Vec<&Period> = periods.iter().filter(|period| overlaps(period)).collect();
            let has_fault = during.iter().any(|period| period.has_fault);
            let faults: u64 = during.iter().map(|period| period.lasts).sum();
            let longest =
                Longest { lasted, during: during.iter().map(|period| period.what.clone()).collect() };
            if lasted >= LONG + faults {
                let (from, to) = (Duration::from_nanos(pair[0]), Duration::from_nanos(pair[1]));
                late.push(format!(
                    "no write acknowledged from {from:.3?} to {to:.3?}: {}",
                    longest.during.join("; ")
                ));
            }
            if lasted > self.without_fault.lasted && !has_fault {
                self.without_fault = longest.clone();
            }
            if lasted > self.any.lasted {
                self.any = longest;
            }
        }
        for (period, longest) in periods.iter().zip(longest_of) {
            self.by_kind.entry(period.kind).or_default().push(longest);
        }
        self.late += late.len() as u64;
        late
    }

    pub fn lines(&self) -> Vec<String> {
        let milliseconds = |nanoseconds| Duration::from_nanos(nanoseconds).as_millis();
        let line = |kind: &str, longest: &Longest| {
            format!(
                "longest time without an acknowledged write{kind}: {} ms ({})",
                milliseconds(longest.lasted),
                longest.during.join("; ")
            )
        };
        let mut lines = vec![line("", &self.any), line(", without a fault", &self.without_fault)];
        for (kind, times) in &self.by_kind {
            let mut times = times.clone();
            times.sort_unstable();
            let at = |part: usize| milliseconds(times[(times.len() - 1) * part / 10]);
            lines.push(format!(
                "longest time of a step, {kind}, {} steps: half within {} ms, nine in ten within {} ms, all within {} ms",
                times.len(),
                at(5),
                at(9),
                at(10)
            ));
        }
        lines.push(format!("longer than two election timeouts and the faults meanwhile: {}", self.late));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_is_found_with_and_without_faults() {
        let period = |from, to, what: &str, has_fault| {
            let what = what.to_owned();
            Period { from, to, what, kind: if has_fault { "fault" } else { "none" }, has_fault, lasts: 0 }
        };
        let cases = [
            // Acknowledgements, periods, longest time, longest time without a fault.
            (vec![10, 20, 90], vec![], 70, 70),
            (vec![], vec![], 100, 100),
            (vec![40, 60], vec![period(50, 100, "kill", true)], 40, 40),
            (vec![30, 60], vec![period(50, 100, "kill", true)], 40, 30),
            (vec![30, 60], vec![period(50, 100, "add", false)], 40, 40),
            (vec![5, 300], vec![], 95, 95),
        ];
        for (answered, periods, any, without_fault) in cases {
            let mut silence = Silence::default();
            silence.add(0, 100, answered.clone(), &periods);
            assert_eq!(
                (silence.any.lasted, silence.without_fault.lasted),
                (any, without_fault),
                "{answered:?}"
            );
        }
        let mut silence = Silence::default();
        silence.add(0, 100, vec![30, 60], &[period(50, 100, "kill", true), period(0, 40, "add", false)]);
        assert_eq!(silence.any.during, ["kill"]);
        assert_eq!(silence.without_fault.during, ["add"]);
        assert_eq!(silence.by_kind, BTreeMap::from([("fault", vec![40]), ("none", vec![30])]));
    }

    #[test]
    fn a_fault_may_last_its_time_and_two_election_timeouts() {
        let cut =
            |lasts| Period { from: 0, to: 3 * LONG, what: "cut".into(), kind: "cut", has_fault: true, lasts };
        let mut silence = Silence::default();
        let answered = vec![0, 2 * LONG, 3 * LONG];
        assert!(silence.add(0, 3 * LONG, answered.clone(), &[cut(LONG + 1)]).is_empty());
        assert_eq!(silence.add(0, 3 * LONG, answered, &[cut(LONG)]).len(), 1);
        assert_eq!(silence.late, 1);
    }
}
