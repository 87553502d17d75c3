//! Executes a run: processes scheduled events in order.

use std::cmp::Reverse;

use super::state::{Trace, World};
use crate::count::RunReport;
use crate::member::MemberError;
use crate::oracle::Breach;
use crate::plan::{RunPlan, SECOND};

/// Number of events between two comparisons of a part of all members' states.
const RECOUNT_INTERVAL: u64 = 200;

pub fn run(plan: RunPlan) -> Result<RunReport, Breach> {
    play(plan, None)
}

pub fn run_traced(plan: RunPlan, trace: Trace) -> Result<RunReport, Breach> {
    play(plan, Some(trace))
}

fn play(plan: RunPlan, trace: Option<Trace>) -> Result<RunReport, Breach> {
    let mut world = World::new(plan, trace);
    for id in world.ids() {
        world.guarded(|world| world.boot(id))?;
    }
    while let Some(Reverse(next)) = world.queue.pop() {
        if next.at > world.end {
            break;
        }
        world.now = next.at;
        world.truth.get().times.now = next.at;
        world.note(&next.what);
        world.guarded(|world| world.happen(next.what))?;
        if world.report.events.is_multiple_of(RECOUNT_INTERVAL) {
            world.guarded(World::recount)?;
        }
    }
    world.finish()
}

impl World {
    /// Executes `work`. If it fails because of a disk fault, the affected member stops.
    fn guarded(&mut self, work: impl FnOnce(&mut World) -> Result<(), MemberError>) -> Result<(), Breach> {
        match work(self) {
            Ok(()) => Ok(()),
            Err(MemberError::Disk(id)) => {
                self.disk_failed(id);
                Ok(())
            }
            Err(MemberError::Damaged(id)) => {
                self.damage_found(id);
                Ok(())
            }
            Err(MemberError::TooOld(id)) => self.too_old(id),
            Err(MemberError::Breach(Breach(what))) => {
                let seconds = self.now as f64 / SECOND as f64;
                Err(Breach(format!("at {seconds:.3} s: {what}")))
            }
        }
    }
}
