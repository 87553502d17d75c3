//! Periodic checks of a worker (links that may dial, overdue calls, unreachable endpoints), and its final
//! counts.

use super::caller::CallerState;
use super::{Worker, WorkerRun};
use crate::client::failure::{CallFailure, Code};
use crate::client::link::Link;
use crate::stats::progress::WaitingCalls;
use std::time::{Duration, Instant};

impl Worker {
    pub(super) fn check_periodically(&mut self, running: &WorkerRun) {
        let now = Instant::now();
        if let Some(gap) = self.stillness.look() {
            self.tallies[0].stood_still(gap);
        }
        for (slot, link) in self.setup.links.iter().enumerate() {
            if !link.is_up() {
                self.ready.push(slot as u32);
            }
        }
        if let Some(timeout) = self.setup.request_timeout {
            self.fail_overdue(now, timeout);
        }
        self.show_waiting(now);
        if self.setup.leader.is_some() {
            // Another member with an open link may have become the leader.
            self.wake_stranded();
        }
        self.given_up = running.schedule.is_over_since(now, self.setup.patience);
        let stranded_for = self.stranded.iter().filter_map(|&slot| match self.caller(slot) {
            CallerState::Stranded { since, .. } => Some(now - *since),
            _ => None,
        });
        if stranded_for.max().is_some_and(|longest| longest > self.setup.patience) {
            let down = |(index, link): &(usize, &Link)| !link.is_up() && self.is_wanted(*index);
            let link = self.setup.links.iter().enumerate().find(down).map(|(_, link)| link);
            let reason =
                link.map_or_else(String::new, |link| format!("{}: {}", link.endpoint(), link.reason()));
            let patience = self.setup.patience;
            let elapsed = self.start.elapsed().as_secs();
            self.setup
                .control
                .stop(format!("no endpoint answered for {patience:?} at {elapsed} s ({reason})"));
        }
    }

    /// Publishes the requests without a reply for observers of the run.
    fn show_waiting(&self, now: Instant) {
        let mut whole = WaitingCalls::default();
        let mut by_endpoint = vec![WaitingCalls::default(); self.setup.by_endpoint.len()];
        for caller in &self.callers {
            let Some((_, since)) = caller.waits(now) else { continue };
            let in_flight = u64::from(matches!(caller, CallerState::Calling(_)));
            let oldest = Some(since.saturating_duration_since(self.start.at()));
            let one = WaitingCalls { in_flight, overdue: 1 - in_flight, oldest };
            whole.add(one);
            if let Some(link) = caller.link() {
                by_endpoint[self.setup.places[link as usize]].add(one);
            }
        }
        self.setup.counters.set_waiting(whole);
        self.setup.by_endpoint.iter().zip(by_endpoint).for_each(|(of, waiting)| of.set_waiting(waiting));
    }

    fn fail_overdue(&mut self, now: Instant, timeout: Duration) {
        for index in 0..self.callers.len() {
            let caller = &self.callers[index];
            let link = match caller {
                CallerState::Calling(call) if now - call.sent_at > timeout => Some(call.link),
                CallerState::Queued { since, .. } if now - *since > timeout => None,
                _ => continue,
            };
            let (position, since) = caller.waits(now).expect("it calls or is queued");
            // Dropping the call resets its stream.
            self.callers[index] = CallerState::Free;
            if let Some(link) = link {
                self.call_ended(link);
                self.of_link(link).add_failed(Code::DEADLINE_EXCEEDED.0);
            }
            let failure = CallFailure::new(Code::DEADLINE_EXCEEDED, format!("no answer within {timeout:?}"));
            self.record_failure(position, &failure, &self.start.wait(since, now));
            self.ready.push(self.slot(index));
        }
    }

    /// Counts requests in flight and due ones with their waiting time, at the end of the run.
    pub(super) fn count_unanswered(&mut self, now: Instant) {
        for caller in std::mem::take(&mut self.callers) {
            if let Some((position, since)) = caller.waits(now) {
                let kind = self.setup.source.kind(position);
                self.tallies[kind].unanswered(position, &self.start.wait(since, now));
            }
        }
    }
}
