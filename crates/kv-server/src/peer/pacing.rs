//! The pace of a store that is sent: as fast as the syncs of this member's log allow.
//!
//! * Every fifth of a second it is judged how long syncs took. Where they took clearly longer than usual, the
//!   pace is halved; where they did not, and the pace was what limited the stream, it grows: by a step while
//!   there are syncs, twofold while there are none.
//! * Usual is the shortest of late. At the slowest pace it rises, by 5 % a second, so a disk that has become
//!   slower for other reasons is not taken for good for one that the stream slows.
//! * It is never below [`SLOWEST`], and there is no fastest.
//! * A receiver that takes less than the pace keeps the pace where it is: its disk, through the connection's
//!   window.
//!
//! Time is an argument.

use std::time::{Duration, Instant};

/// Bytes per second that were found to delay the syncs of logs on the same disk by little (see
/// docs/decisions).
pub(super) const SLOWEST: f64 = (8 << 20) as f64;
const STEP: f64 = SLOWEST;
const JUDGED_EVERY: Duration = Duration::from_millis(200);
/// What a sync may take above the usual: so much, and half as much again.
const SLACK: Duration = Duration::from_micros(500);
/// What is made up for after a late moment: four chunks, or what a timer is late by.
const LATE_CHUNKS: u32 = 4;
const LATE: Duration = Duration::from_millis(2);

/// All syncs of the log since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SyncTotals {
    pub syncs: u64,
    pub took: Duration,
}

impl SyncTotals {
    /// The mean of those since then, if there were any.
    fn mean_since(&self, before: SyncTotals) -> Option<Duration> {
        let syncs = u32::try_from(self.syncs.saturating_sub(before.syncs)).ok().filter(|syncs| *syncs > 0)?;
        Some(self.took.saturating_sub(before.took) / syncs)
    }
}

/// The pace of one stream.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: f64,
    due: Instant,
    judged: Instant,
    /// Since then.
    sent: u64,
    before: SyncTotals,
    usual: Option<Duration>,
}

impl Pace {
    pub fn new(now: Instant, syncs: SyncTotals) -> Self {
        let usual = syncs.mean_since(SyncTotals::default());
        Pace { bytes_per_second: SLOWEST, due: now, judged: now, sent: 0, before: syncs, usual }
    }

    /// When the next chunk is due.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// A chunk is sent.
    pub fn sent(&mut self, bytes: usize, now: Instant, syncs: SyncTotals) {
        self.sent += bytes as u64;
        let passed = now.saturating_duration_since(self.judged);
        if passed >= JUDGED_EVERY {
            self.judge(self.sent as f64 / passed.as_secs_f64(), syncs.mean_since(self.before));
            (self.judged, self.sent, self.before) = (now, 0, syncs);
        }
        let pause = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
        // From the time it was due, not from now: a moment's delay is made good. But not one of many chunks,
        // which would come as a burst.
        let made_good = (LATE_CHUNKS * pause).max(LATE);
        self.due = self.due.max(now.checked_sub(made_good).unwrap_or(self.due)) + pause;
    }

    fn judge(&mut self, reached: f64, sync: Option<Duration>) {
        // What the stream itself has made slower is not usual.
        let rise = if self.bytes_per_second > SLOWEST { 0 } else { 1 };
        let usual = match (self.usual, sync) {
            (Some(usual), Some(sync)) => Some(sync.min(usual + rise * usual / 100)),
            (usual, sync) => sync.or(usual),
        };
        self.usual = usual;
        let is_slow = sync.zip(usual).is_some_and(|(sync, usual)| sync > usual + usual / 2 + SLACK);
        let has_limited = reached > 0.75 * self.bytes_per_second;
        self.bytes_per_second = match sync {
            _ if is_slow => (self.bytes_per_second / 2.0).max(SLOWEST),
            _ if !has_limited => self.bytes_per_second,
            Some(_) => self.bytes_per_second + STEP,
            None => self.bytes_per_second * 2.0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = (1 << 20) as f64;
    const CHUNK: usize = 64 << 10;

    /// A log with so many syncs a second, on a disk where a sync takes a millisecond and longer with the
    /// stream's pace: by as much again at each `shared` MiB per second.
    struct Disk {
        syncs_per_second: f64,
        shared: f64,
    }

    /// Sends for so many seconds to a receiver of this speed. Returns the pace of each second, in MiB/s.
    fn send(
        pace: &mut Pace,
        now: &mut Instant,
        totals: &mut SyncTotals,
        disk: &Disk,
        receiver: f64,
        seconds: u64,
    ) -> Vec<f64> {
        let (mut paces, mut owed) = (Vec::new(), 0.0);
        for _ in 0..seconds {
            let (begin, mut bytes) = (*now, 0);
            while now.duration_since(begin) < Duration::from_secs(1) {
                let at = pace.due().max(*now + Duration::from_secs_f64(CHUNK as f64 / receiver / MIB));
                owed += at.duration_since(*now).as_secs_f64() * disk.syncs_per_second;
                let sync = Duration::from_secs_f64(0.001 * (1.0 + pace.bytes_per_second / MIB / disk.shared));
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

    fn begun() -> (Pace, Instant, SyncTotals) {
        let now = Instant::now();
        let totals = SyncTotals { syncs: 1000, took: Duration::from_secs(1) };
        (Pace::new(now, totals), now, totals)
    }

    #[test]
    fn without_syncs_the_pace_has_no_ceiling() {
        let (mut pace, mut now, mut totals) = begun();
        let idle = Disk { syncs_per_second: 0.0, shared: 1.0 };
        let paces = send(&mut pace, &mut now, &mut totals, &idle, 1e6, 3);
        assert!(paces[0] > 8.0 && paces[2] > 1000.0, "{paces:?}");
    }

    #[test]
    fn syncs_that_the_stream_does_not_delay_let_it_grow_by_steps() {
        let (mut pace, mut now, mut totals) = begun();
        let separate = Disk { syncs_per_second: 500.0, shared: 1e9 };
        let paces = send(&mut pace, &mut now, &mut totals, &separate, 1e6, 10);
        assert!(paces.is_sorted() && (300.0..500.0).contains(&paces[9]), "{paces:?}");
    }

    #[test]
    fn syncs_that_the_stream_delays_bring_it_down_and_it_grows_again_after_them() {
        let (mut pace, mut now, mut totals) = begun();
        let busy = Disk { syncs_per_second: 500.0, shared: 40.0 };
        let paces = send(&mut pace, &mut now, &mut totals, &busy, 1e6, 30);
        let mean = paces[5..].iter().sum::<f64>() / 25.0;
        assert!(paces.iter().all(|pace| (7.5..60.0).contains(pace)) && mean < 45.0, "{mean}: {paces:?}");
        let idle = Disk { syncs_per_second: 0.0, shared: 40.0 };
        let paces = send(&mut pace, &mut now, &mut totals, &idle, 1e6, 3);
        assert!(paces[2] > 500.0, "{paces:?}");
    }

    #[test]
    fn a_disk_that_each_byte_delays_gets_the_slowest_pace_and_never_less() {
        let (mut pace, mut now, mut totals) = begun();
        let weak = Disk { syncs_per_second: 500.0, shared: 1.0 };
        let paces = send(&mut pace, &mut now, &mut totals, &weak, 1e6, 10);
        assert!(paces.iter().all(|pace| (7.5..20.0).contains(pace)), "{paces:?}");
    }

    #[test]
    fn a_slow_receiver_leaves_the_pace_near_what_it_takes() {
        let (mut pace, mut now, mut totals) = begun();
        let idle = Disk { syncs_per_second: 0.0, shared: 1.0 };
        send(&mut pace, &mut now, &mut totals, &idle, 30.0, 10);
        assert!((30.0..130.0).contains(&(pace.bytes_per_second / MIB)), "{pace:?}");
    }

    #[test]
    fn a_disk_that_became_slower_for_other_reasons_is_used_again_after_a_while() {
        let (mut pace, mut now, mut totals) = begun();
        // A sync takes as long as five did before, at any pace.
        let slower = Disk { syncs_per_second: 200.0, shared: SLOWEST / MIB / 4.0 };
        pace.usual = Some(Duration::from_millis(1));
        let mut paces = Vec::new();
        for _ in 0..60 {
            let shared = slower.shared * pace.bytes_per_second / SLOWEST;
            paces.extend(send(&mut pace, &mut now, &mut totals, &Disk { shared, ..slower }, 1e6, 1));
        }
        assert!(paces[5] < 9.0 && paces[59] > 16.0, "{paces:?}");
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
