//! Starts a member: reads the log, builds the node, starts the threads, and returns two tasks to be spawned
//! by the process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wal::{Fs, Recovery, Wal};

use super::driver::{Driver, Outlets, TickClock};
use super::queue::{InputQueue, Pump, replies};
use super::shared::RuntimeShared;
use super::threads::{Applying, run_apply, run_log};
use crate::core::CoreSetup;
use crate::log::RecoveredLog;
use crate::node::Applier;
use crate::node::{Node, NodeSetup};
use crate::{Config, Fatal, Handle, Host, Observer, StartError, StateMachine, Transport};

/// Delay before a read round without a response is retried, same as in etcd.
const READ_RETRY: Duration = Duration::from_millis(500);

/// An opened log together with its recovery.
///
/// The process opens or creates the log, because it manages identity and directory. Afterwards the log
/// belongs to the member's log thread, and other threads read through its reader.
pub struct Log<F: Fs> {
    wal: Wal<F>,
    found: RecoveredLog<F>,
}

impl<F: Fs> Log<F> {
    /// Returns a new, empty log.
    pub fn created(wal: Wal<F>) -> Self {
        let found = RecoveredLog::created(&wal);
        Log { wal, found }
    }

    /// Returns a reopened log.
    pub fn opened(wal: Wal<F>, recovery: Recovery) -> Self {
        let found = RecoveredLog::opened(&wal, recovery);
        Log { wal, found }
    }
}

/// The member's threads: log and apply.
pub struct Threads {
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Waits until both have exited, which they do after the driver: after [`Handle::stop`] or a fatal
    /// error. Blocks the thread, so the driver must not depend on it.
    pub fn join(self) {
        for handle in self.handles {
            // A panic was caught and reported inside.
            let _ = handle.join();
        }
    }
}

/// A member that runs as soon as its two tasks are spawned.
pub struct StartedMember<O> {
    /// Interface of the member.
    pub handle: Handle<O>,
    /// Task for the runtime that serves peers.
    pub driver: Driver<O>,
    /// Task for the runtime that serves clients.
    pub pump: Pump<O>,
    pub threads: Threads,
}

/// Starts the member's threads without waiting; when its tasks run it joins its cluster, or elects itself if
/// it is the only member.
///
/// `on_fatal` is called at most once, from the driver or one of the threads.
pub fn start<S: StateMachine, F: Fs>(
    config: Config,
    log: Log<F>,
    state_machine: S,
    transport: Arc<dyn Transport>,
    on_fatal: Box<dyn Fn(Fatal) + Send + Sync>,
    host: Arc<dyn Host>,
    observer: Arc<dyn Observer>,
) -> Result<StartedMember<S::Outcome>, StartError> {
    check(&config)?;
    let config = Config { limits: config.limits.clone().within_log(), ..config };
    // The machine's state must come from this log: replay starts right after it.
    let applied = state_machine.applied();
    let Log { wal, found } = log;
    let last = found.last.index;
    if applied.index > last {
        return Err(StartError::AppliedBeyondLog { applied: applied.index, last });
    }
    let node = Node::open(&node_setup(&config), &config.voters, found, applied)
        .map_err(|fatal| StartError::State { reason: base::causes(&fatal) })?;

    let shared = Arc::new(RuntimeShared::new(config.id, &config.limits, host, observer, on_fatal));
    shared.applied.store(applied.index.0, Ordering::SeqCst);
    shared.publish(node.gauges());
    shared.publish_start(node.is_unconfirmed(), node.start());
    let (replies, pump) = replies();
    let jobs = (Arc::new(InputQueue::new()), Arc::new(InputQueue::new()));
    let applying = Arc::new(Applying::new(Applier::new(state_machine), shared.clone(), replies.clone()));
    let for_driver = applying.clone();
    let outlets = Outlets {
        shared: shared.clone(),
        log: jobs.0.clone(),
        apply: jobs.1.clone(),
        apply_brief: Box::new(move |job| for_driver.apply_brief(job)),
        replies,
        transport: transport.clone(),
    };
    let clock = TickClock::new(config.tick, Instant::now());
    // Created first: if a thread does not start, dropping it stops the threads that depend on it.
    let driver = Driver::new(node, outlets, clock, 2 * config.election_ticks);

    let for_log = shared.clone();
    let for_apply = shared.clone();
    let mut threads = Spawner { shared: &shared, handles: Vec::new() };
    threads.spawn("raft-log", move || run_log(wal, &jobs.0, &for_log, &*transport))?;
    threads.spawn("raft-apply", move || run_apply(&applying, &jobs.1, &for_apply))?;
    let handles = threads.handles;
    Ok(StartedMember { handle: Handle { shared }, driver, pump, threads: Threads { handles } })
}

/// Starts threads that report their exit.
struct Spawner<'a, O> {
    shared: &'a Arc<RuntimeShared<O>>,
    handles: Vec<JoinHandle<()>>,
}

impl<O: Send + 'static> Spawner<'_, O> {
    fn spawn(
        &mut self,
        name: &'static str,
        body: impl FnOnce() -> Result<(), Fatal> + Send + 'static,
    ) -> Result<(), StartError> {
        let shared = self.shared.clone();
        let guarded = move || match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => {}
            Ok(Err(fatal)) => shared.fail(fatal),
            Err(panic) => shared.fail(Fatal::panicked(name, &*panic)),
        };
        let spawned = std::thread::Builder::new().name(name.into()).spawn(guarded);
        let handle = spawned.map_err(|source| StartError::Thread { name, source })?;
        self.handles.push(handle);
        Ok(())
    }
}

/// Rejects invalid settings, before anything is opened.
fn check(config: &Config) -> Result<(), StartError> {
    let refuse = |reason: String| Err(StartError::Config { reason });
    let mut voters = config.voters.clone();
    voters.sort_unstable();
    voters.dedup();
    if voters.is_empty() {
        return refuse("a cluster without voters".into());
    }
    let is_fixed = config.membership.is_none();
    if config.id == 0 || (is_fixed && !voters.contains(&config.id)) {
        return refuse(format!("member {} is not among the voters {:?}", config.id, config.voters));
    }
    if voters.len() != config.voters.len() || voters[0] == 0 {
        return refuse(format!("the voters {:?} are not distinct members", config.voters));
    }
    if config.tick.is_zero() || config.heartbeat_ticks == 0 {
        return refuse("the heartbeat interval must be positive".into());
    }
    if config.election_ticks <= config.heartbeat_ticks {
        return refuse(format!(
            "an election timeout of {} ticks must exceed the heartbeat interval of {}",
            config.election_ticks, config.heartbeat_ticks
        ));
    }
    Ok(())
}

/// Returns the part of `election_ticks..2 * election_ticks` from which only this member draws its timeouts.
///
/// Members that campaign in the same tick split the votes, and the cluster waits for another timeout. With
/// disjoint parts, only the scheduler can cause that. With too few ticks, all members share them.
fn own_share(config: &Config) -> std::ops::Range<u32> {
    let voters = u32::try_from(config.voters.len()).unwrap_or(u32::MAX);
    let below = config.voters.iter().filter(|voter| **voter < config.id).count();
    let rank = u32::try_from(below).unwrap_or(u32::MAX);
    let all = config.election_ticks;
    if all < voters {
        return all..2 * all;
    }
    let border =
        |rank: u32| all + u32::try_from(u64::from(all) * u64::from(rank) / u64::from(voters)).unwrap_or(all);
    border(rank)..border(rank + 1)
}

/// Converts times to ticks; beyond this point only the driver's clock depends on the length of a tick.
fn node_setup(config: &Config) -> NodeSetup {
    let limits = &config.limits;
    NodeSetup {
        core: CoreSetup {
            id: config.id,
            heartbeat_ticks: config.heartbeat_ticks,
            election_ticks: config.election_ticks,
            timeout_ticks: own_share(config),
            apply_bytes_max: limits.apply_bytes_max,
            entry_bytes_max: limits.entry_bytes_max(),
            catch_up_entries: config.catch_up_entries,
            store: config.store,
            empty_log: config.empty_log,
            membership: config.membership.clone(),
            removed_by: config.removed_by,
            keeps_voters: config.keeps_voters,
            change_check: config.change_check.clone(),
        },
        boot_nonce: config.boot_nonce,
        batch_bytes_max: limits.batch_bytes_max,
        cache_bytes_max: limits.cache_bytes_max,
        request_timeout_ticks: ticks(limits.request_timeout, config.tick),
        read_retry_ticks: ticks(READ_RETRY, config.tick),
    }
}

fn ticks(time: Duration, tick: Duration) -> u64 {
    assert!(!tick.is_zero(), "a tick takes time");
    let ticks = time.as_nanos().div_ceil(tick.as_nanos());
    u64::try_from(ticks).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests;
