//! Inquiries of members with an empty log at their start, as in the server's `peer::confirming`.

use raft_node::{Event, PeerState};

use super::event::WorldEvent;
use super::state::World;
use crate::count::Statistic;
use crate::member::MemberError;
use crate::plan::{MILLISECOND, SECOND};

/// Rounds per thousand in which the current member list is requested without a reason.
const ASKED_ANYHOW: u64 = 125;

impl World {
    /// Queries all peers, and schedules the next round.
    pub fn inquire(&mut self, to: u64, boot: u64) -> Result<(), MemberError> {
        if self.is_away(to, boot) || self.see(to).up.as_ref().is_none_or(|up| up.inquiry.is_none()) {
            return Ok(());
        }
        let pause = self.chances.inquiries.within(20 * MILLISECOND, SECOND);
        self.after(pause, WorldEvent::Inquire { to, boot });
        if self.pause_left(to).is_some() {
            return Ok(());
        }
        self.take_newer_list(to)?;
        let round = self.site(to).up.as_mut().and_then(|up| up.inquiry.as_mut()).expect("it inquires");
        round.inquiry.ask_again();
        round.number += 1;
        let round = round.number;
        let roster = &self.see(to).up.as_ref().expect("it is up").roster;
        let others: Vec<u64> = roster.members().voters.iter().copied().filter(|peer| *peer != to).collect();
        for peer in others {
            if let Some(delay) = self.passes(to, peer) {
                self.after(delay, WorldEvent::Asked { to: peer, asker: to, boot, round });
            }
        }
        Ok(())
    }

    /// Requests the current member list, for a joining member. Responses with different voters do not confirm
    /// it, and the voters of an outdated list may all be removed.
    fn take_newer_list(&mut self, id: u64) -> Result<(), MemberError> {
        let up = self.see(id).up.as_ref().expect("it inquires");
        let (listed, asked) = (up.roster.members().clone(), up.roster.linked());
        let is_doubtful = up.inquiry.as_ref().is_some_and(|round| round.inquiry.mismatches() > 0);
        if !self.see(id).joins() || !(is_doubtful || self.chances.inquiries.per_mille(ASKED_ANYHOW)) {
            return Ok(());
        }
        let mut lists = self.lists_with(id, &asked);
        lists.retain(|members| *members != listed && members.voters.iter().any(|voter| *voter != id));
        let Some(members) = self.chances.inquiries.pick_any(&lists).cloned() else { return Ok(()) };
        self.count(Statistic::ToldAnew);
        self.site(id).begin_inquiry_anew(members.clone());
        self.follow_addresses(id)?;
        self.site(id).handle(Event::PeerMembership(members))?;
        self.turn(id)
    }

    pub fn asked(&mut self, to: u64, asker: u64, boot: u64, round: u64) -> Result<(), MemberError> {
        if let Some(left) = self.pause_left(to) {
            self.after(left, WorldEvent::Asked { to, asker, boot, round });
            return Ok(());
        }
        // A connection is closed when the process that opened it exits.
        if !self.answers(asker, to) {
            return Ok(());
        }
        let Some(up) = self.site(to).up.as_mut() else { return Ok(()) };
        let Some(answer) = up.node.answer_member(asker) else { return Ok(()) };
        if let Some(delay) = self.passes(to, asker) {
            self.after(delay, WorldEvent::Answered { to: asker, boot, round, peer: to, answer });
        }
        self.turn(to)
    }

    /// Handles a response, which counts in its round only.
    pub fn answered(
        &mut self,
        to: u64,
        (boot, number): (u64, u64),
        peer: u64,
        answer: PeerState,
    ) -> Result<(), MemberError> {
        if self.is_away(to, boot) {
            return Ok(());
        }
        let up = self.site(to).up.as_mut().expect("it is up");
        let Some(round) = up.inquiry.as_mut().filter(|round| round.number == number) else { return Ok(()) };
        round.inquiry.note(peer, answer, 0);
        let Some(confirmation) = round.inquiry.confirmation() else { return Ok(()) };
        self.count(Statistic::Confirmed);
        self.site(to).up.as_mut().expect("it is up").inquiry = None;
        self.tell(|| format!("member {to}: {confirmation:?}"));
        self.site(to).handle(Event::Confirmed(confirmation))?;
        self.turn(to)
    }

    /// Marks a wiped member as recovered once it has all entries of its lost log, synced. From then on the
    /// loss of a second disk counts as a single one.
    pub fn note_caught_up(&mut self, id: u64) {
        let site = self.see(id);
        let Some(last) = site.lost_log else { return };
        let synced = site.synced.as_ref().map(|log| log.last().index);
        let is_back = site.up.as_ref().is_some_and(|up| {
            !up.node.is_held() && synced == Some(up.node.gauges().last_index) && site.applied() >= last
        });
        if is_back {
            (self.site(id).lost_log, self.site(id).is_fresh) = (None, false);
            self.count(Statistic::CaughtUp);
        }
    }

    /// Returns the delay of a message, if both directions are connected.
    pub(super) fn passes(&mut self, from: u64, to: u64) -> Option<u64> {
        let is_open = self.network.reaches(from, to) && self.network.reaches(to, from);
        let chance = &mut self.chances.inquiries;
        let delay = chance.within(50, self.network.faults.delay_max + 51);
        (is_open && !chance.per_mille(self.network.faults.loss)).then_some(delay)
    }
}
