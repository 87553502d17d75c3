//! Stages of an open loop: the rate changes linearly from the previous stage's rate to that of the stage.
//!
//! Independent of schedules.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Upper bound that keeps a pace small enough to copy.
const STAGES_MAX: usize = 8;
const SECONDS_MAX: f64 = 30.0 * 86_400.0;
const PER_SECOND_MAX: f64 = 1e9;

/// Stages of a load. The first stage starts at rate 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stages {
    stages: [RateStage; STAGES_MAX],
    len: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct RateStage {
    seconds: f64,
    /// Requests per second at the start and the end of the stage.
    from: f64,
    to: f64,
}

impl RateStage {
    /// Returns the requests due up to a time in the stage.
    fn due(&self, seconds: f64) -> f64 {
        (self.from + (self.to - self.from) * seconds / self.seconds / 2.0) * seconds
    }

    fn total(&self) -> f64 {
        self.due(self.seconds)
    }

    /// Returns the time at which `requests` are due: the root of `due(seconds) = requests`.
    fn when(&self, requests: f64) -> f64 {
        let slope = (self.to - self.from) / self.seconds;
        let root = (self.from * self.from + 2.0 * slope * requests).max(0.0).sqrt();
        if self.from + root == 0.0 { 0.0 } else { (2.0 * requests / (self.from + root)).min(self.seconds) }
    }
}

impl Stages {
    fn all(&self) -> &[RateStage] {
        &self.stages[..self.len]
    }

    /// Returns the requests of all stages.
    pub fn total(&self) -> u64 {
        self.all().iter().map(RateStage::total).sum::<f64>() as u64
    }

    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.all().iter().map(|stage| stage.seconds).sum())
    }

    /// Returns the due time of a position, since the start.
    pub fn when(&self, position: u64) -> Duration {
        let (mut rest, mut begin) = (position as f64, 0.0);
        for stage in self.all() {
            let total = stage.total();
            if rest < total {
                return Duration::from_secs_f64(begin + stage.when(rest));
            }
            rest -= total;
            begin += stage.seconds;
        }
        // A warm-up may be longer: the last rate continues.
        let last = self.all().last().map_or(0.0, |stage| stage.to);
        let later = if last > 0.0 { rest / last } else { SECONDS_MAX };
        Duration::from_secs_f64(begin + later.min(SECONDS_MAX))
    }

    /// Returns the number of requests due after `passed`.
    pub fn due(&self, passed: Duration) -> u64 {
        let mut rest = passed.as_secs_f64();
        let mut due = 0.0;
        for stage in self.all() {
            due += stage.due(rest.clamp(0.0, stage.seconds));
            rest -= stage.seconds;
        }
        due.ceil() as u64
    }
}

impl FromStr for Stages {
    type Err = String;

    /// Parses `10s:1000,30s:1000,5s:0`: durations with the rate at the end of each.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut stages = Self::default();
        let mut from = 0.0;
        for part in text.split(',') {
            let wrong = || format!("{part:?}: expected SECONDSs:RATE");
            let (seconds, to) = part.split_once(':').ok_or_else(wrong)?;
            let seconds: f64 = seconds.strip_suffix('s').and_then(|it| it.parse().ok()).ok_or_else(wrong)?;
            let to: f64 = to.parse().map_err(|_| wrong())?;
            if !(seconds > 0.0 && seconds <= SECONDS_MAX && (0.0..=PER_SECOND_MAX).contains(&to)) {
                return Err(wrong());
            }
            let place = stages.stages.get_mut(stages.len).ok_or(format!("more than {STAGES_MAX} stages"))?;
            *place = RateStage { seconds, from, to };
            stages.len += 1;
            from = to;
        }
        if stages.total() == 0 { Err("these stages send nothing".into()) } else { Ok(stages) }
    }
}

impl fmt::Display for Stages {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stages = self.all().iter().map(|RateStage { seconds, to, .. }| format!("{seconds}s:{to}"));
        formatter.write_str(&stages.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(text: &str) -> Stages {
        text.parse().unwrap()
    }

    #[test]
    fn a_ramp_sends_the_area_below_it() {
        let stages = stages("10s:100,5s:100,10s:0");
        assert_eq!((stages.total(), stages.duration()), (500 + 500 + 500, Duration::from_secs(25)));
        for (seconds, due) in
            [(0, 0), (5, 125), (10, 500), (12, 700), (15, 1000), (20, 1375), (25, 1500), (99, 1500)]
        {
            assert_eq!(stages.due(Duration::from_secs(seconds)), due, "{seconds} s");
        }
    }

    #[test]
    fn each_position_is_due_when_as_many_requests_were_due() {
        let stages = stages("2s:50,3s:20,1s:20,2s:0");
        let mut before = Duration::ZERO;
        for position in 0..stages.total() {
            let when = stages.when(position);
            assert!(when >= before, "{position}");
            let due = stages.due(when);
            assert!(due.abs_diff(position) <= 1, "{position} at {when:?}: {due}");
            before = when;
        }
    }

    #[test]
    fn the_last_rate_goes_on_after_the_last_stage() {
        for (text, position, seconds) in
            [("2s:50", 50, 2.0), ("2s:50", 150, 4.0), ("2s:50,2s:0", 100, 4.0 + SECONDS_MAX)]
        {
            assert_eq!(stages(text).when(position), Duration::from_secs_f64(seconds), "{text} {position}");
        }
    }

    #[test]
    fn stages_are_read_back_or_refused() {
        assert_eq!(stages("0.5s:10,3s:7.5").to_string(), "0.5s:10,3s:7.5");
        for wrong in ["", "5:1", "5s", "0s:5", "5s:-1", "5s:x", "NaNs:5", "5s:0"] {
            assert!(wrong.parse::<Stages>().is_err(), "{wrong}");
        }
        assert!(["1s:1"; 17].join(",").parse::<Stages>().is_err());
    }
}
