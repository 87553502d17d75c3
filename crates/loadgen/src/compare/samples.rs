//! CPU time and memory during a run: readings, and their differences.

use crate::server;
use bench_report::model::Series;
use std::time::{Duration, Instant};

/// Initial interval between readings; a reading costs some tens of microseconds per process.
const INTERVAL: Duration = Duration::from_millis(100);
/// Beyond this, every second reading is dropped and the interval doubles.
const READINGS_MAX: usize = 128;

/// Readings of a run.
#[derive(Debug)]
pub struct Samples {
    begin: Instant,
    interval: Duration,
    next: Duration,
    pids: Vec<u32>,
    readings: Vec<UsageSample>,
}

#[derive(Debug)]
struct UsageSample {
    at: Duration,
    client_cpu: Duration,
    /// Processor seconds and resident bytes of each member.
    members: Vec<(f64, u64)>,
}

impl Samples {
    /// Starts with a first reading.
    pub fn begin(pids: Vec<u32>) -> Self {
        let begin = Instant::now();
        let mut samples =
            Self { begin, interval: INTERVAL, next: Duration::ZERO, pids, readings: Vec::new() };
        samples.take();
        samples
    }

    /// Takes a reading if it is due.
    pub fn tick(&mut self) {
        if self.begin.elapsed() >= self.next {
            self.take();
        }
    }

    pub fn take(&mut self) {
        let at = self.begin.elapsed();
        let members: Option<Vec<_>> = self.pids.iter().map(|&pid| server::usage(pid)).collect();
        // The run itself detects a member that exited.
        let Some(members) = members else { return };
        self.readings.push(UsageSample { at, client_cpu: crate::run::process_cpu(), members });
        if self.readings.len() > READINGS_MAX {
            let mut index = 0;
            self.readings.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.interval *= 2;
        }
        self.next = at + self.interval;
    }

    /// Fills the columns of readings.
    pub fn fill(&self, series: &mut Series) {
        series.server_cpu_percent = vec![Vec::new(); self.pids.len()];
        series.server_resident_mb = vec![Vec::new(); self.pids.len()];
        for (earlier, later) in self.readings.iter().zip(self.readings.iter().skip(1)) {
            let seconds = (later.at - earlier.at).as_secs_f64();
            if seconds < 0.005 {
                continue; // the kernel counts processor time in hundredths of a second
            }
            series.at_seconds.push(round(later.at.as_secs_f64(), 3));
            let client = (later.client_cpu - earlier.client_cpu).as_secs_f64();
            series.client_cpu_percent.push(round(client / seconds * 100.0, 1));
            for (member, (before, after)) in earlier.members.iter().zip(&later.members).enumerate() {
                let cpu = (after.0 - before.0) / seconds * 100.0;
                series.server_cpu_percent[member].push(round(cpu, 1));
                series.server_resident_mb[member].push(round(after.1 as f64 / 1e6, 1));
            }
        }
    }
}

pub fn round(value: f64, decimals: i32) -> f64 {
    let factor = 10_f64.powi(decimals);
    let rounded = (value * factor).round() / factor;
    if rounded.is_finite() { rounded } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_equal_lengths_and_show_the_use_of_a_process() {
        let mut samples = Samples::begin(vec![std::process::id()]);
        for _ in 0..3 {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(30) {
                std::hint::black_box(begin);
            }
            samples.take();
        }
        let mut series = Series::default();
        samples.fill(&mut series);
        assert_eq!(series.at_seconds.len(), 3);
        assert_eq!((series.server_cpu_percent.len(), series.server_cpu_percent[0].len()), (1, 3));
        assert_eq!((series.client_cpu_percent.len(), series.server_resident_mb[0].len()), (3, 3));
        assert!(series.client_cpu_percent.iter().any(|&percent| percent > 5.0), "{series:?}");
    }

    #[test]
    fn a_long_run_is_thinned_out() {
        let mut samples = Samples::begin(Vec::new());
        (0..10 * READINGS_MAX).for_each(|_| samples.take());
        assert!(samples.readings.len() <= READINGS_MAX + 1);
        assert!(samples.interval >= INTERVAL * 8);
    }

    #[test]
    fn numbers_are_rounded_and_finite() {
        assert_eq!((round(1.23456, 2), round(f64::NAN, 2)), (1.23, 0.0));
    }
}
