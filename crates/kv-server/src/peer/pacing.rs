//! Rate control of an outgoing snapshot: as fast as the syncs of this member's log allow.
//!
//! * Sync latency is evaluated every 200 ms. If it is clearly above the baseline, the rate is halved.
//!   Otherwise, if the rate was the bottleneck, it grows: by a step while there are syncs, twofold while
//!   there are none.
//! * The baseline is the sync latency at the minimum rate. It is measured when the stream starts and again
//!   before each halving, because load and disk may have changed and the stream's own effect must not count.
//!   A lower latency at any rate replaces it.
//! * The rate is at least [`SLOWEST`] and has no maximum.
//! * A snapshot is useful only while the log retains the entries after it. If the stream is too slow for
//!   that, the rate doubles regardless of sync latency: sending the snapshot again would delay more syncs.
//! * If the receiver is the bottleneck, through the connection's flow control window, the rate stays the
//!   same.
//!
//! Time is an argument, for tests.

use std::time::{Duration, Instant};

/// Minimum rate in bytes per second. It was measured to have little effect on syncs of logs on the same disk
/// (see docs/decisions).
pub(super) const SLOWEST: f64 = (8 << 20) as f64;
const STEP: f64 = SLOWEST;
const EVALUATION_INTERVAL: Duration = Duration::from_millis(200);
/// Tolerance above the baseline, in addition to half of the baseline.
const SLACK: Duration = Duration::from_micros(500);
/// Maximum delay that is caught up: four chunks, or the delay of a timer.
const LATE_CHUNKS: u32 = 4;
const LATE: Duration = Duration::from_millis(2);
/// Fraction of the retained log's growth within which the snapshot is to be sent. The rest is for the
/// receiver, which fetches the log afterwards while more is written.
const LOG_SHARE: f64 = 0.5;

/// Totals of the log since process start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogTotals {
    pub syncs: u64,
    pub took: Duration,
    pub bytes: u64,
}

impl LogTotals {
    /// Mean sync latency since `before`; None without syncs.
    fn mean_since(&self, before: LogTotals) -> Option<Duration> {
        let syncs = u32::try_from(self.syncs.saturating_sub(before.syncs)).ok().filter(|syncs| *syncs > 0)?;
        Some(self.took.saturating_sub(before.took) / syncs)
    }
}

/// Rate of one stream.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: f64,
    due: Instant,
    judged: Instant,
    /// Bytes sent since `judged`.
    sent: u64,
    before: LogTotals,
    usual: Option<Duration>,
    /// Rate to continue with after the baseline is measured.
    measuring: Option<f64>,
    store_bytes: u64,
    /// Fraction of the store that was sent.
    share: f64,
    /// Log bytes when the stream started, and the number that may be written after that.
    log_before: u64,
    log_bytes_max: u64,
}

impl Pace {
    /// Starts at the minimum rate. The snapshot is useful until the log has grown to `log_bytes_max`, counted
    /// like `log.bytes`.
    pub fn new(now: Instant, log: LogTotals, store_bytes: u64, log_bytes_max: u64) -> Self {
        Pace {
            bytes_per_second: SLOWEST,
            due: now,
            judged: now,
            sent: 0,
            before: log,
            usual: None,
            measuring: Some(SLOWEST),
            store_bytes,
            share: 0.0,
            log_before: log.bytes,
            log_bytes_max: log_bytes_max.saturating_sub(log.bytes),
        }
    }

    /// Returns when to send the next chunk.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Records a sent chunk, and adjusts the rate if an evaluation is due.
    pub fn sent(&mut self, bytes: usize, now: Instant, log: LogTotals) {
        self.sent += bytes as u64;
        self.share += bytes as f64 / self.store_bytes as f64;
        let passed = now.saturating_duration_since(self.judged);
        if passed >= EVALUATION_INTERVAL {
            let written = log.bytes.saturating_sub(self.log_before) as f64;
            let is_late = written > self.share * LOG_SHARE * self.log_bytes_max as f64;
            self.judge(self.sent as f64 / passed.as_secs_f64(), log.mean_since(self.before), is_late);
            (self.judged, self.sent, self.before) = (now, 0, log);
        }
        let pause = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
        // Count from the due time, so that short delays are caught up, but no long ones, which would cause a
        // burst.
        let made_good = (LATE_CHUNKS * pause).max(LATE);
        self.due = self.due.max(now.checked_sub(made_good).unwrap_or(self.due)) + pause;
    }

    fn judge(&mut self, reached: f64, sync: Option<Duration>, is_late: bool) {
        let then = self.measuring.take();
        self.usual = match (self.usual, sync, then) {
            (usual, None, _) => usual,
            (_, Some(sync), Some(_)) => Some(sync),
            (usual, Some(sync), None) => usual.map(|usual| usual.min(sync)),
        };
        if let Some(pace) = then {
            self.bytes_per_second = pace;
            return;
        }
        let is_usual = |sync| self.usual.is_some_and(|usual| sync <= usual + usual / 2 + SLACK);
        let has_limited = reached > 0.75 * self.bytes_per_second;
        match sync {
            Some(sync) if !is_late && !is_usual(sync) => {
                self.measuring = Some((self.bytes_per_second / 2.0).max(SLOWEST));
                self.bytes_per_second = SLOWEST;
            }
            _ if !has_limited => {}
            Some(_) if !is_late => self.bytes_per_second += STEP,
            _ => self.bytes_per_second *= 2.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = (1 << 20) as f64;
    const CHUNK: usize = 64 << 10;

    /// Model of a disk: `syncs_per_second` at a latency of `alone` milliseconds without the stream, and one
    /// more for each `shared` MiB/s of it.
    #[derive(Clone, Copy)]
    struct Disk {
        syncs_per_second: f64,
        alone: f64,
        shared: f64,
        /// Rate of log writes in MiB/s.
        log: f64,
    }

    const IDLE: Disk = Disk { syncs_per_second: 0.0, alone: 1.0, shared: 40.0, log: 0.0 };
    const BUSY: Disk = Disk { syncs_per_second: 500.0, ..IDLE };

    /// Sends for `seconds` to a receiver of this speed. Returns the rate in each second, in MiB/s.
    fn send(
        pace: &mut Pace,
        now: &mut Instant,
        totals: &mut LogTotals,
        disk: &Disk,
        receiver: f64,
        seconds: u64,
    ) -> Vec<f64> {
        let (mut paces, mut owed) = (Vec::new(), 0.0);
        for _ in 0..seconds {
            let (begin, mut bytes) = (*now, 0);
            while now.duration_since(begin) < Duration::from_secs(1) {
                let at = pace.due().max(*now + Duration::from_secs_f64(CHUNK as f64 / receiver / MIB));
                let passed = at.duration_since(*now).as_secs_f64();
                owed += passed * disk.syncs_per_second;
                totals.bytes += (passed * disk.log * MIB) as u64;
                let sync = 0.001 * (disk.alone + pace.bytes_per_second / MIB / disk.shared);
                let sync = Duration::from_secs_f64(sync);
                totals.syncs += owed as u64;
                totals.took += sync * owed as u32;
                owed -= owed.floor();
                *now = at;
                pace.sent(CHUNK, at, *totals);
                bytes += CHUNK;
            }
            paces.push(bytes as f64 / MIB / now.duration_since(begin).as_secs_f64());
        }
        paces
    }

    fn begun() -> (Pace, Instant, LogTotals) {
        let now = Instant::now();
        let totals = LogTotals { syncs: 1000, took: Duration::from_secs(1), bytes: 1 << 30 };
        (Pace::new(now, totals, u64::MAX, u64::MAX), now, totals)
    }

    #[test]
    fn without_syncs_the_pace_has_no_ceiling() {
        let (mut pace, mut now, mut totals) = begun();
        let paces = send(&mut pace, &mut now, &mut totals, &IDLE, 1e6, 3);
        assert!(paces[0] > 8.0 && paces[2] > 1000.0, "{paces:?}");
    }

    #[test]
    fn syncs_that_the_stream_does_not_delay_let_it_grow_by_steps() {
        let (mut pace, mut now, mut totals) = begun();
        let separate = Disk { shared: 1e9, ..BUSY };
        let paces = send(&mut pace, &mut now, &mut totals, &separate, 1e6, 10);
        assert!(paces.is_sorted() && (300.0..500.0).contains(&paces[9]), "{paces:?}");
    }

    #[test]
    fn syncs_that_the_stream_delays_bring_it_down_and_it_grows_again_after_them() {
        let (mut pace, mut now, mut totals) = begun();
        let paces = send(&mut pace, &mut now, &mut totals, &BUSY, 1e6, 30);
        let mean = paces[5..].iter().sum::<f64>() / 25.0;
        assert!(paces.iter().all(|pace| (7.5..60.0).contains(pace)) && mean < 45.0, "{mean}: {paces:?}");
        let paces = send(&mut pace, &mut now, &mut totals, &IDLE, 1e6, 3);
        assert!(paces[2] > 500.0, "{paces:?}");
    }

    #[test]
    fn a_disk_that_each_byte_delays_gets_the_slowest_pace_and_never_less() {
        let (mut pace, mut now, mut totals) = begun();
        let weak = Disk { shared: 1.0, ..BUSY };
        let paces = send(&mut pace, &mut now, &mut totals, &weak, 1e6, 10);
        assert!(paces.iter().all(|pace| (7.5..20.0).contains(pace)), "{paces:?}");
    }

    #[test]
    fn a_slow_receiver_leaves_the_pace_near_what_it_takes() {
        let (mut pace, mut now, mut totals) = begun();
        send(&mut pace, &mut now, &mut totals, &IDLE, 30.0, 10);
        assert!((30.0..130.0).contains(&(pace.bytes_per_second / MIB)), "{pace:?}");
    }

    #[test]
    fn a_disk_that_became_slower_for_other_reasons_is_used_again_after_a_while() {
        let (mut pace, mut now, mut totals) = begun();
        let disk = Disk { shared: 1e9, ..BUSY };
        send(&mut pace, &mut now, &mut totals, &disk, 1e6, 1);
        let paces = send(&mut pace, &mut now, &mut totals, &Disk { alone: 5.0, ..disk }, 1e6, 60);
        assert!(paces[59] > 100.0, "{paces:?}");
    }

    #[test]
    fn syncs_that_were_slow_before_the_load_are_not_taken_for_usual() {
        // No syncs yet; a few slow syncs while creating files; a loaded disk.
        let before = [(0, 0, IDLE), (50, 2, IDLE), (0, 0, Disk { alone: 20.0, ..BUSY })];
        for (syncs, seconds, before) in before {
            let now = Instant::now();
            let totals = LogTotals { syncs, took: Duration::from_secs(seconds), bytes: 0 };
            let pace = Pace::new(now, totals, u64::MAX, u64::MAX);
            let (mut pace, mut now, mut totals) = (pace, now, totals);
            send(&mut pace, &mut now, &mut totals, &before, 1e3, 3);
            let paces = send(&mut pace, &mut now, &mut totals, &BUSY, 1e3, 30);
            let mean = paces[10..].iter().sum::<f64>() / 20.0;
            assert!(mean < 45.0, "{syncs} in {seconds} s: {mean}: {paces:?}");
        }
    }

    #[test]
    fn a_store_is_sent_while_the_log_keeps_what_follows_it() {
        const GIB: u64 = 1 << 30;
        // The stream delays syncs, and the write load is high.
        for (store, log) in [(1.0, 4.0), (8.0, 20.0), (8.0, 60.0), (32.0, 20.0)] {
            let disk = Disk { shared: 1.0, log, ..BUSY };
            let (_, mut now, mut totals) = begun();
            let (begin, before) = (now, totals.bytes);
            let store_bytes = (store * GIB as f64) as u64;
            let mut pace = Pace::new(now, totals, store_bytes, before + 8 * GIB);
            let mut sent = 0.0;
            while sent < store * 1024.0 {
                sent += send(&mut pace, &mut now, &mut totals, &disk, 1e3, 1)[0];
            }
            let (written, mean) = (totals.bytes - before, sent / now.duration_since(begin).as_secs_f64());
            assert!(written < 9 * GIB / 2, "{store} GiB, {log} MiB/s: {written} bytes of log, {mean} MiB/s");
            let least = f64::max(SLOWEST / MIB, store * log / 4.0);
            assert!((least * 0.9..least * 1.5).contains(&mean), "{store} GiB, {log} MiB/s: {mean} MiB/s");
        }
    }

    #[test]
    fn a_moment_is_made_good_and_a_long_delay_is_not() {
        let (mut pace, now, totals) = begun();
        let chunk = Duration::from_secs_f64(CHUNK as f64 / SLOWEST);
        pace.sent(CHUNK, now + 2 * chunk, totals);
        assert_eq!(pace.due(), now + chunk);
        let late = now + Duration::from_millis(150);
        pace.sent(CHUNK, late, totals);
        assert!(pace.due() > late - 4 * chunk, "a burst");
    }
}
