//! Schedules client requests and selects their members.

use raft_node::RequestOrigin;

use super::event::WorldEvent;
use super::state::{LEASE_CLIENTS, World};
use crate::count::Statistic;
use crate::member::{CommandRoute, MemberError, TaskResult, is_task};
use crate::plan::{KnownBug, MILLISECOND, SECOND};
use crate::requests::{Asker, MemberInput, RequestId, Trade, UserView, is_member_change, read};

/// Final period without client requests, in which all members must catch up.
const QUIET: u64 = 6 * SECOND;
impl World {
    /// Selects a member. A member that considers itself the leader is preferred, since some clients
    /// know the leader.
    fn choose_member(&mut self) -> u64 {
        let mut present = self.ids();
        present.retain(|id| !self.absent.contains_key(id));
        let leaders: Vec<u64> = present.iter().copied().filter(|id| self.see(*id).leads()).collect();
        if !leaders.is_empty() && self.chances.clients.per_mille(300) {
            return *self.chances.clients.pick(&leaders);
        }
        *self.chances.clients.pick(&present)
    }

    pub fn client(&mut self, client: u64, member: u64) -> Result<(), MemberError> {
        if self.now + QUIET > self.end {
            return Ok(()); // The end is near: clients stop.
        }
        let member = if member == 0 { self.choose_member() } else { member };
        if let Some(left) = self.pause_left(member) {
            // The request waits in a socket, like messages of peers.
            let jitter = self.chances.clients.within(0, 3 * MILLISECOND);
            self.after(left + jitter, WorldEvent::Client { client, member });
            return Ok(());
        }
        if self.see(member).up.is_none() {
            self.rest(client);
            return Ok(());
        }
        let (asker, access) = (Asker { client, member, trade: self.trade(client) }, self.access(member));
        let chance = match asker.trade {
            Trade::Keys => &mut self.chances.clients,
            Trade::Leases => &mut self.chances.leases,
            Trade::Users => &mut self.chances.users,
        };
        let (request, handed) = self.clients.ask(asker, self.now, &access, &self.config, chance);
        if let (MemberInput::Read, KnownBug::ReadsAskNobody) = (&handed, self.plan.known_bug) {
            return self.read(member, request);
        }
        let up = self.site(member).up.as_mut().expect("looked at just now");
        let is_let_in = match handed {
            MemberInput::Propose(command) => {
                up.propose(RequestOrigin::Client, command, request, CommandRoute::Batched)
            }
            MemberInput::Read => up.ask(RequestOrigin::Client, request),
            MemberInput::Lease(question) => {
                self.ask_leader(member, request, question);
                return Ok(());
            }
            MemberInput::Serializable(range, user) => {
                let store = up.store.clone();
                let found = read(&range, user, &store, &access, &self.truth.get())?;
                let count =
                    if found.is_some() { Statistic::SerializableReads } else { Statistic::ReadsRefused };
                self.report.add(count, 1);
                self.rest(client);
                return Ok(());
            }
        };
        if !is_let_in {
            self.count(Statistic::NotLetIn);
            self.clients.not_let_in(request);
            self.rest(client);
            return Ok(());
        }
        self.turn(member)
    }

    /// Returns the kind of a client by its number: keys, then leases, then users.
    fn trade(&self, client: u64) -> Trade {
        match client.checked_sub(self.plan.clients) {
            None => Trade::Keys,
            Some(0..LEASE_CLIENTS) => Trade::Leases,
            Some(_) => Trade::Users,
        }
    }

    pub fn access(&self, member: u64) -> UserView {
        let up = self.see(member).up.as_ref().expect("only a running member is asked");
        UserView { table: up.applier.machine().users().clone(), applied: up.applier.applied().index }
    }

    pub fn rest(&mut self, client: u64) {
        let delay = self.chances.clients.within(MILLISECOND, self.config.think_max);
        self.after(delay, WorldEvent::Client { client, member: 0 });
    }

    pub fn gone(&mut self, request: RequestId) {
        if is_member_change(request) {
            return self.change_gone(request);
        }
        if is_task(request) {
            self.plan_lease_step(request, TaskResult::Failed);
            return;
        }
        if let Some(client) = self.clients.gone(request) {
            self.report.add(Statistic::Unanswered, 1);
            self.rest(client);
        }
    }
}
