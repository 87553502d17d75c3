//! A timer with nanosecond resolution: a timerfd in the worker's event loop.
//!
//! tokio's timers have a resolution of one millisecond, which at 5,000 requests per second would send them
//! in bursts.

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::io::unix::AsyncFd;

/// Fires once, at the time of its last setting.
#[derive(Debug)]
pub struct Timer {
    fd: AsyncFd<OwnedFd>,
    set_to: Option<Instant>,
}

impl Timer {
    /// Must be called inside a runtime with I/O enabled.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe, for types that may close their descriptor; OwnedFd does not"
        )]
        let fd = AsyncFd::new(fd)?;
        Ok(Self { fd, set_to: None })
    }

    /// Returns ready once `due` has passed; otherwise wakes the task of `context` at that time.
    pub fn poll_due(
        &mut self,
        due: Instant,
        now: Instant,
        context: &mut Context<'_>,
    ) -> io::Result<Poll<()>> {
        if due <= now {
            return Ok(Poll::Ready(()));
        }
        if self.set_to != Some(due) {
            self.set(due, now)?;
        }
        match self.fd.poll_read_ready(context) {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(guard) => {
                // It fired, possibly for an earlier setting: consume the event and check the clock.
                guard?.clear_ready();
                self.set_to = None;
                if due <= Instant::now() {
                    return Ok(Poll::Ready(()));
                }
                context.waker().wake_by_ref();
                Ok(Poll::Pending)
            }
        }
    }

    fn set(&mut self, due: Instant, now: Instant) -> io::Result<()> {
        let wait = due - now;
        let once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value =
            Timespec::try_from(wait).map_err(|_| io::Error::other("alarm is too far in the future"))?;
        let setting = Itimerspec { it_interval: once, it_value: value };
        rustix::time::timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::empty(), &setting)?;
        self.set_to = Some(due);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn until(timer: &mut Timer, due: Instant) -> io::Result<()> {
        std::future::poll_fn(|context| match timer.poll_due(due, Instant::now(), context) {
            Ok(poll) => poll.map(Ok),
            Err(error) => Poll::Ready(Err(error)),
        })
        .await
    }

    #[test]
    fn the_timer_fires_soon_after_the_time_and_never_before() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let mut timer = Timer::new().unwrap();
            for micros in [100, 300, 0, 2_000] {
                let due = Instant::now() + Duration::from_micros(micros);
                until(&mut timer, due).await.unwrap();
                assert!(Instant::now() >= due, "{micros}");
            }
        });
    }

    #[test]
    fn an_earlier_setting_replaces_a_later_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let mut timer = Timer::new().unwrap();
            let begin = Instant::now();
            let far = begin + Duration::from_secs(100);
            let polled =
                std::future::poll_fn(|context| Poll::Ready(timer.poll_due(far, begin, context))).await;
            assert!(polled.unwrap().is_pending());
            until(&mut timer, begin + Duration::from_millis(1)).await.unwrap();
            assert!(begin.elapsed() < Duration::from_secs(50));
        });
    }
}
