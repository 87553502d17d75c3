//! Schedules the actions of watch clients and of the members' hubs.

use std::time::Duration;

use super::event::{FaultPhase, WorldEvent};
use super::state::World;
use crate::count::Statistic;
use crate::member::{MemberError, MemberHub, is_in};
use crate::oracle::{Breach, OracleView};
use crate::plan::{MILLISECOND, SECOND};

/// Final period in which clients only read.
const QUIET: u64 = 6 * SECOND;
/// Maximum delay between two reads in that period.
const READING_REST_MAX: u64 = 20 * MILLISECOND;

impl World {
    fn time(&self) -> Duration {
        Duration::from_micros(self.now)
    }

    fn watching(&mut self, id: u64) -> &mut MemberHub {
        &mut self.site(id).up.as_mut().expect("only a running member watches").watching
    }

    /// Schedules a turn of the member's hub if it was woken.
    pub(super) fn plan_watching(&mut self, id: u64) {
        if self.site(id).up.as_mut().is_some_and(|up| up.watching.must_plan()) {
            let boot = self.see(id).boots;
            let delay = self.chances.watches.within(10, 3 * MILLISECOND);
            self.after(delay, WorldEvent::Hub { to: id, boot });
        }
    }

    pub(super) fn hub(&mut self, to: u64, boot: u64) -> Result<(), MemberError> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        if let Some(left) = self.pause_left(to) {
            self.after(left, WorldEvent::Hub { to, boot });
            return Ok(());
        }
        let now = self.time();
        let more = self.watching(to).turn(now);
        if more.map_err(|error| self.see(to).store_trouble("watch", &error))? {
            let delay = self.chances.watches.within(1, MILLISECOND);
            self.after(delay, WorldEvent::Hub { to, boot });
        }
        Ok(())
    }

    /// Makes a watch client connect, send a request, read, or disconnect.
    pub(super) fn watch(&mut self, client: u64) -> Result<(), MemberError> {
        let is_quiet = self.now + QUIET > self.end;
        let wait_max = match self.chances.watches.within(0, 20) {
            _ if is_quiet => READING_REST_MAX,
            0 => 5 * SECOND,
            _ => 100 * MILLISECOND,
        };
        let wait = self.chances.watches.within(MILLISECOND, wait_max);
        self.after(rest(self.now, self.end, wait), WorldEvent::Watch { client });
        let connection = self.watches[client as usize].connection;
        let Some((member, _)) = connection.filter(|(member, boot)| !self.is_away(*member, *boot)) else {
            self.connect_watch(client, is_quiet);
            return Ok(());
        };
        if is_quiet && !self.is_member(member) {
            self.watching(member).close(client);
            self.connect_watch(client, is_quiet);
            return Ok(());
        }
        if self.pause_left(member).is_some() {
            return Ok(());
        }
        match self.chances.watches.within(0, 20) {
            0 if !is_quiet => {
                self.watching(member).close(client);
                self.watches[client as usize].disconnected();
            }
            1..5 if !is_quiet && self.phase != FaultPhase::Reduced => {
                let (keys, newest) = (self.config.keys, self.see_revision(member));
                let request = self.watches[client as usize].draw(keys, newest, &mut self.chances.watches);
                self.watching(member).request(client, request);
            }
            _ => self.read_watch(client, member)?,
        }
        self.plan_watching(member);
        Ok(())
    }

    fn see_revision(&self, member: u64) -> i64 {
        self.see(member).up.as_ref().map_or(1, |up| up.store.revision())
    }

    /// Reports whether the latest membership includes it. A removed member that is not notified
    /// keeps running without a leader; clients that require a leader leave it.
    fn is_member(&self, id: u64) -> bool {
        is_in(&self.truth.get().model.members.membership(), id)
    }

    fn connect_watch(&mut self, client: u64, is_quiet: bool) {
        self.watches[client as usize].disconnected();
        let mut present = self.ids();
        present.retain(|id| !is_quiet || self.is_member(*id));
        let member = *self.chances.watches.pick(&present);
        if self.see(member).up.is_none() || self.pause_left(member).is_some() {
            return;
        }
        let (now, boot) = (self.time(), self.see(member).boots);
        self.count(Statistic::WatchStreams);
        self.watching(member).open(client, member, now);
        for request in self.watches[client as usize].connected(member, boot) {
            self.watching(member).request(client, request);
        }
        self.plan_watching(member);
    }

    fn read_watch(&mut self, client: u64, member: u64) -> Result<(), MemberError> {
        let bytes_max = *self.chances.watches.pick(&[64, 1 << 10, 16 << 10]);
        let truth = self.truth.clone();
        for response in self.watching(member).read(client, bytes_max) {
            let store = &self.see(member).up.as_ref().expect("it is up").store;
            let (revision, compact_revision) = (store.revision(), store.compact_revision());
            let truth = truth.get();
            let view = OracleView { model: &truth.model, revision, compact_revision };
            let watcher = &mut self.watches[client as usize];
            let request = watcher.receive(response, view, &mut self.report).map_err(|Breach(what)| {
                Breach(format!("watch client {client} of member {member}: {what}"))
            })?;
            if let Some(request) = request {
                self.watching(member).request(client, request);
            }
        }
        Ok(())
    }

    pub(super) fn check_watched(&self) -> Result<(), Breach> {
        let truth = self.truth.get();
        let (revision, compact_revision) = (truth.model.revision, truth.model.compact_revision);
        let view = OracleView { model: &truth.model, revision, compact_revision };
        match self.watches.iter().find_map(|client| client.lacking(view)) {
            Some(lacking) => Err(format!("at {revision} a watcher lacks events: {lacking}").into()),
            None => Ok(()),
        }
    }
}

/// Limits the delay `wait` of a client, so that it is awake at the start of the read-only period:
/// after a delay of five seconds only one would remain, and unread events would seem lost.
fn rest(now: u64, end: u64, wait: u64) -> u64 {
    wait.min(end.saturating_sub(now + QUIET) + READING_REST_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_does_not_sleep_while_it_has_to_read() {
        let end = 80 * SECOND;
        let quiet = end - QUIET;
        assert_eq!(rest(quiet - 5 * SECOND, end, 5 * SECOND), 5 * SECOND);
        for now in [quiet - SECOND, quiet - 60 * MILLISECOND, quiet - 1, quiet] {
            assert!(now + rest(now, end, 5 * SECOND) <= quiet + READING_REST_MAX, "at {now}");
        }
        assert_eq!(rest(quiet + SECOND, end, 7 * MILLISECOND), 7 * MILLISECOND);
    }
}
