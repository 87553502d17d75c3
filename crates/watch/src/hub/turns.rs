//! Bounded steps.

use mvcc::Result;

use super::state::Hub;
use crate::types::HubOutput;

impl Hub {
    /// Delivers new events, and history to lagging watchers: about `WatchLimits::step_bytes` of each at most.
    ///
    /// Errors: the store is damaged or its disk fails. The member must stop.
    pub fn turn(&mut self) -> Result<HubOutput> {
        self.promotions_left = self.limits.turn_watchers;
        self.remove_closed();
        self.deliver_new()?;
        self.evict(0);
        self.catch_up()?;
        self.evict(0);
        self.make_parts()?;
        self.resume_held_back();
        self.answer_progress();
        Ok(HubOutput { more: self.has_work() })
    }

    /// Whether a turn has something to do now. Reading an outbox may change it.
    pub fn has_work(&self) -> bool {
        self.position < self.store.revision()
            || self.has_promotions()
            || self.lagging.len() > 0
            || !self.asked.is_empty()
            || self.may_make_parts()
            || self.next_to_resume().is_some()
            || !self.closed.is_empty()
    }
}
