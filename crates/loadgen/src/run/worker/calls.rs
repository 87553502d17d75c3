//! A single call: its link, its request, and the record of its result.

use super::caller::CallerState;
use super::{CallerNext, Worker};
use crate::client::call::SentCall;
use crate::client::failure::CallFailure;
use crate::client::reply::CompleteReply;
use crate::run::recorder::CallSample;
use crate::run::schedule::SendSlot;
use crate::stats::progress::WorkerCounters;
use bytes::Bytes;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Context;
use std::time::Instant;

impl Worker {
    /// Sends the request of a slot that was due at `since`, or queues it for a link.
    pub(super) fn begin(
        &mut self,
        caller: usize,
        turn: SendSlot,
        since: Instant,
    ) -> (CallerState, CallerNext) {
        let Some(link) = self.next_link(caller) else {
            self.stranded.push(self.slot(caller));
            return (CallerState::Stranded { turn, since }, CallerNext::Wait);
        };
        if !self.queues[link].is_empty() || !self.setup.links[link].has_room() {
            let slot = self.slot(caller);
            self.queues[link].push_back(slot);
            return (CallerState::Queued { turn, since, link: link as u32 }, CallerNext::Wait);
        }
        self.send(caller, turn, since, since, link)
    }

    /// Handles a caller woken from the queue of a link: the link has capacity, or is down.
    pub(super) fn leave_queue(
        &mut self,
        caller: usize,
        turn: SendSlot,
        since: Instant,
        link: u32,
    ) -> (CallerState, CallerNext) {
        let index = link as usize;
        if !self.setup.links[index].is_up() {
            return self.begin(caller, turn, since);
        }
        if !self.setup.links[index].has_room() {
            let slot = self.slot(caller);
            self.queues[index].push_front(slot);
            return (CallerState::Queued { turn, since, link }, CallerNext::Wait);
        }
        self.send(caller, turn, since, Instant::now(), index)
    }

    fn send(
        &mut self,
        caller: usize,
        turn: SendSlot,
        since: Instant,
        now: Instant,
        index: usize,
    ) -> (CallerState, CallerNext) {
        let request = self.setup.source.request(turn.position);
        let kept = if self.setup.observer.is_some() { request.clone() } else { Bytes::new() };
        let clock_from = turn.counts_from(since);
        if let Some(observer) = &self.setup.observer {
            observer.sent(turn.position, clock_from);
        }
        let mut context = Context::from_waker(self.ready.waker(index as u32));
        match self.setup.links[index].send(request, &mut context) {
            Ok(response) => {
                let slot = self.slot(caller);
                self.unwritten[index].push(slot);
                let call = SentCall::new(turn.position, index as u32, clock_from, now, kept, response);
                (CallerState::Calling(call), CallerNext::Again)
            }
            Err(error) => {
                let endpoint = self.setup.links[index].endpoint();
                let failure = CallFailure::unavailable(format!("send to {endpoint}: {error}"));
                self.of_link(index as u32).add_failed(failure.code.0);
                self.record_failure(turn.position, &failure, &self.start.wait(clock_from, now));
                // Polling the link detects the failure; until then this caller must not retry.
                self.ready.push(index as u32);
                self.ready.push(self.slot(caller));
                (CallerState::Free, CallerNext::Wait)
            }
        }
    }

    /// Handles the completion of a call: the first caller in the queue of its link may send.
    pub(super) fn call_ended(&mut self, link: u32) {
        self.setup.links[link as usize].call_ended();
        while let Some(slot) = self.queues[link as usize].pop_front() {
            // Skips callers that timed out.
            if matches!(self.caller(slot), CallerState::Queued { link: its, .. } if *its == link) {
                self.ready.push(slot);
                return;
            }
        }
    }

    /// Returns the next open link, round-robin, of the connection object of `caller`.
    fn next_link(&mut self, caller: usize) -> Option<usize> {
        let endpoints = self.setup.endpoints_len;
        let conn = caller % self.cursors.len();
        if let Some(leader) = &self.setup.leader {
            let index = conn * endpoints + leader.load(Relaxed);
            return self.setup.links[index].is_up().then_some(index);
        }
        let cursor = &mut self.cursors[conn];
        for _ in 0..endpoints {
            let index = conn * endpoints + *cursor % endpoints;
            *cursor += 1;
            if self.setup.links[index].is_up() {
                return Some(index);
            }
        }
        None
    }

    pub(super) fn of_link(&self, link: u32) -> &WorkerCounters {
        &self.setup.by_endpoint[self.setup.places[link as usize]]
    }

    pub(super) fn record(
        &mut self,
        call: &SentCall,
        result: Result<CompleteReply, CallFailure>,
        now: Instant,
    ) {
        let answer = match result {
            Ok(answer) => answer,
            Err(failure) => {
                let wait = self.start.wait(call.clock_from, now);
                self.of_link(call.link).add_failed(failure.code.0);
                return self.record_failure(call.position, &failure, &wait);
            }
        };
        let sample = self.start.sample(call.clock_from, call.sent_at, now, answer.body_bytes);
        self.tallies[self.setup.source.kind(call.position)].record(&sample);
        let latency_ns = sample.latency.as_nanos() as u64;
        self.setup.counters.add_answered(latency_ns);
        self.of_link(call.link).add_answered(latency_ns);
        if let Some(observer) = &self.setup.observer {
            for (key, _) in self.setup.source.pairs_of(call.position, &call.request) {
                observer.acknowledged(call.position, key, answer.revision);
            }
        }
    }

    pub(super) fn record_failure(&mut self, position: u64, failure: &CallFailure, wait: &CallSample) {
        let tally = &mut self.tallies[self.setup.source.kind(position)];
        tally.failed_at(position, failure, wait, self.setup.failed_calls);
        self.setup.counters.add_failed(failure.code.0);
        if let Some(observer) = &self.setup.observer {
            observer.failed(position, failure);
        }
    }
}
