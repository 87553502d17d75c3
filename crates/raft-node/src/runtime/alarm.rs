//! Wakes the driver for its next tick, with a timer of the kernel.
//!
//! tokio's timer wakes the runtime twice for delays above 64 ms: the first time only to move the timer to a
//! finer slot. This would wake an idle member more often than its ticks.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A one-shot timer.
pub(super) struct Alarm {
    timer: AsyncFd<OwnedFd>,
    /// Time of the alarm, if set.
    at: Option<Instant>,
}

impl Alarm {
    /// Must be called within a runtime with I/O enabled.
    pub fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[allow(
            deprecated,
            reason = "an OwnedFd keeps its descriptor open, which is what its successor asks for"
        )]
        let timer = AsyncFd::new(timer)?;
        Ok(Alarm { timer, at: None })
    }

    /// Sets the alarm to `at`, and cancels an earlier setting.
    pub fn set(&mut self, at: Instant) -> io::Result<()> {
        if self.at == Some(at) {
            return Ok(());
        }
        // Zero would disarm it.
        let left = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        let it_value = Timespec { tv_sec: seconds, tv_nsec: left.subsec_nanos().into() };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
        self.at = Some(at);
        Ok(())
    }

    /// Polls for the alarm.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut rung = ready!(self.timer.poll_read_ready(context))?;
            // The timer is not read: the next setting triggers it again.
            rung.clear_ready();
            if self.at.is_some_and(|at| at <= Instant::now()) {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn an_alarm_rings_at_each_time_that_it_was_set_to_and_not_before() {
        let mut alarm = Alarm::new().unwrap();
        for milliseconds in [1, 80, 0, 30] {
            let at = Instant::now() + Duration::from_millis(milliseconds);
            alarm.set(at - Duration::from_millis(milliseconds / 2)).unwrap();
            alarm.set(at).unwrap();
            poll_fn(|context| alarm.poll(context)).await.unwrap();
            assert!(Instant::now() >= at);
        }
    }
}
