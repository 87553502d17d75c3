//! Configuration and start of the parts of a member, for `node`.

use std::sync::Arc;
use std::time::Duration;

use mvcc::Store;
use raft_node::{
    Config, EmptyLog, Fatal, Handle, Membership, StartError, StartedMember, StoreState, Threads,
};
use state_machine::Outcome;

use crate::known_members::{change_check, known_members, on_members};
use crate::member::{Apply, Hasher, LeaderLeases, ReceivePlace, run_lease_clock};
use crate::peer::{self, FirstList, LeaseService, PeerServer, Peers};
use config::Settings;
use data_dir::bootstrap::{IMPORTED_AT, MemberStart};
use process::runtime::Runtimes;
use process::shutdown::Stop;
use transport::tls::Port;

/// Starts Raft's threads and tasks, and reports checkpoints to it. `on_fatal` is called on an unrecoverable
/// error.
pub fn start_raft(
    runtimes: &Runtimes,
    config: Config,
    established: MemberStart,
    apply: Apply,
    peers: &Arc<Peers>,
    apply_slow: Duration,
    on_fatal: fn(Fatal),
) -> Result<(Handle<Outcome>, Threads), StartError> {
    let MemberStart { log, recovery, .. } = established;
    let host = apply.host(on_members(peers, apply.store()));
    let observer = apply.observer(apply_slow);
    let checkpoints = apply.checkpoints().clone();
    let StartedMember { handle, driver, pump, threads } = raft_node::start(
        config,
        raft_node::Log::opened(log, recovery),
        apply,
        Arc::clone(peers) as Arc<dyn raft_node::Transport>,
        Box::new(on_fatal),
        Arc::new(host),
        Arc::new(observer),
    )?;
    let to_notify = handle.clone();
    checkpoints.on_checkpoint(move |applied| to_notify.checkpointed(applied));
    runtimes.clients.spawn(pump.run());
    runtimes.peers().spawn(driver.run());
    Ok((handle, threads))
}

pub fn raft_config(
    settings: &Settings,
    membership: Membership,
    id: u64,
    store: &Store,
    state: StoreState,
) -> Config {
    let heartbeat = settings.clock.heartbeat;
    let ticks = settings.clock.election.as_millis() / heartbeat.as_millis().max(1);
    let defaults = raft_node::RaftLimits::default();
    Config {
        id,
        voters: membership.voters.clone(),
        membership: Some(membership),
        boot_nonce: rand::random(),
        tick: heartbeat,
        heartbeat_ticks: 1,
        election_ticks: u32::try_from(ticks).unwrap_or(u32::MAX),
        catch_up_entries: settings.snapshot_catch_up_entries,
        store: state,
        empty_log: EmptyLog::Unconfirmed,
        removed_by: state_machine::removed_by,
        keeps_voters: state_machine::keeps_voters,
        change_check: change_check(store),
        limits: raft_node::RaftLimits {
            command_bytes_max: defaults.command_bytes_max.max(settings.limits.request_bytes_max),
            request_timeout: settings.request_timeout(),
            ..defaults
        },
    }
}

/// Starts the lease clock and the lease service.
pub fn start_leases(
    leader: Arc<LeaderLeases>,
    peers: &Arc<Peers>,
    request_timeout: Duration,
    stop: &Stop,
) -> LeaseService {
    let expired = peers.context().metrics.leases.expired.clone();
    tokio::spawn(run_lease_clock(Arc::clone(&leader), expired, stop.clone()));
    LeaseService::start(leader, Arc::clone(peers), request_timeout, stop)
}

/// Connects to the other members and serves their requests.
pub fn start_peers(
    peers: &Arc<Peers>,
    incoming: ReceivePlace,
    leases: Arc<LeaderLeases>,
    hasher: Hasher,
    ports: Vec<Port>,
    connections_max: u32,
    stop: &Stop,
) {
    let inbox: Arc<dyn raft_node::Inbox> = Arc::new(leases.raft.clone());
    peers.connect(Arc::clone(&inbox), stop);
    let is_given = peers.context().identity.joined || hasher.store.applied() == IMPORTED_AT;
    let first = if is_given { FirstList::Given } else { FirstList::OfState };
    tokio::spawn(peer::confirm(Arc::clone(peers), Arc::clone(&inbox), first, stop.clone()));
    let store = hasher.store.clone();
    let members = move || known_members(&store);
    let server = PeerServer::new(Arc::clone(peers), inbox, incoming, Arc::new(members))
        .with_leases(leases)
        .with_hasher(hasher);
    peer::serve(ports, &server.with_connections_max(connections_max), stop);
}

/// Maximum total bytes of watchers' keys: a million keys of 256 bytes. Watchers beyond it are rejected.
const WATCH_KEY_BYTES_MAX: usize = 256 << 20;

/// Divisor of `--memory-limit`: one limit for events queued in outboxes, and an equal one for large responses
/// held by streams.
const WATCH_MEMORY_SHARE: u64 = 16;

pub fn watch_limits(settings: &Settings) -> watch::WatchLimits {
    let limits = watch::WatchLimits::default();
    let share = settings.memory_limit.map_or(u64::MAX, |limit| limit / WATCH_MEMORY_SHARE);
    let within = |bytes: usize| bytes.min(usize::try_from(share).unwrap_or(usize::MAX));
    watch::WatchLimits {
        progress_interval: settings.watch_progress_interval(),
        key_bytes_max: WATCH_KEY_BYTES_MAX,
        bodies_bytes: within(limits.bodies_bytes),
        handed_bytes_max: within(limits.handed_bytes_max),
        ..limits
    }
}
