//! The longest time in which no write was acknowledged.
//!
//! Times are nanoseconds since the experiment began.

use std::time::Duration;

/// What was done from one time to another.
#[derive(Clone, Debug)]
pub struct Period {
    pub from: u64,
    pub to: u64,
    pub what: String,
    /// A member was killed, paused or cut off, or came back.
    pub has_fault: bool,
}

/// A time without a fault after which it is said at once: two election timeouts.
const LONG: u64 = 2_000_000_000;

/// The longest one, and what was done during it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Longest {
    lasted: u64,
    during: Vec<String>,
}

#[derive(Debug, Default)]
pub struct Silence {
    any: Longest,
    /// Only changes of the membership happened meanwhile.
    without_fault: Longest,
}

impl Silence {
    /// Takes in a round of load: from when to when, when writes were acknowledged, and what was done.
    ///
    /// Returns a line for each time of two seconds or more without a fault.
    pub fn add(&mut self, (from, to): (u64, u64), mut answered: Vec<u64>, periods: &[Period]) -> Vec<String> {
        let mut long = Vec::new();
        answered.retain(|at| (from..to).contains(at));
        answered.extend([from, to]);
        answered.sort_unstable();
        for pair in answered.windows(2) {
            let lasted = pair[1] - pair[0];
            if lasted <= self.any.lasted && lasted <= self.without_fault.lasted && lasted < LONG {
                continue;
            }
            let during = periods.iter().filter(|period| period.from < pair[1] && pair[0] < period.to);
            let has_fault = during.clone().any(|period| period.has_fault);
            let longest = Longest { lasted, during: during.map(|period| period.what.clone()).collect() };
            if lasted >= LONG && !has_fault {
                let (from, to) = (Duration::from_nanos(pair[0]), Duration::from_nanos(pair[1]));
                long.push(format!(
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
        long
    }

    pub fn lines(&self) -> [String; 2] {
        let line = |kind: &str, longest: &Longest| {
            let lasted = Duration::from_nanos(longest.lasted).as_millis();
            format!(
                "longest time without an acknowledged write{kind}: {lasted} ms ({})",
                longest.during.join("; ")
            )
        };
        [line("", &self.any), line(", without a fault", &self.without_fault)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_is_found_with_and_without_faults() {
        let period = |from, to, what: &str, has_fault| Period { from, to, what: what.to_owned(), has_fault };
        let cases = [
            // Answers, periods, longest, longest without a fault.
            (vec![10, 20, 90], vec![], 70, 70),
            (vec![], vec![], 100, 100),
            (vec![40, 60], vec![period(50, 100, "kill", true)], 40, 40),
            (vec![30, 60], vec![period(50, 100, "kill", true)], 40, 30),
            (vec![30, 60], vec![period(50, 100, "add", false)], 40, 40),
            (vec![5, 300], vec![], 95, 95),
        ];
        for (answered, periods, any, without_fault) in cases {
            let mut silence = Silence::default();
            silence.add((0, 100), answered.clone(), &periods);
            assert_eq!(
                (silence.any.lasted, silence.without_fault.lasted),
                (any, without_fault),
                "{answered:?}"
            );
        }
        let mut silence = Silence::default();
        silence.add((0, 100), vec![30, 60], &[period(50, 100, "kill", true), period(0, 40, "add", false)]);
        assert_eq!(silence.any.during, ["kill"]);
        assert_eq!(silence.without_fault.during, ["add"]);
    }
}
