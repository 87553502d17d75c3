//! One member's life: everything started in order, served, and stopped in the opposite order.
//!
//! ```text
//!   bind ports ▶ identity, log ▶ store ▶ store thread ▶ Raft ▶ peers ▶ leader known, own name published ▶ clients
//! ```
//!
//! * A port in use, a foreign directory or a corrupt file is detected before this member sends a message.
//! * "ready to serve client requests" is logged once this member can commit and apply: its own name has
//!   been committed through the log by then.
//! * After a fatal error of log, store or apply the process exits immediately: see [`shutdown::die`].

use std::sync::Arc;
use std::time::Duration;

use api::command::PublishMember;
use mvcc::{LogPosition, Maintainer, Store};
use raft_node::{Fatal, Threads};
use state_machine::{EtcdMachine, level};
use tokio::time::timeout;

use crate::audit::{AuditError, AuditLog};
use crate::discovery::{self, DiscoveryError};
use crate::known_members::{open_fitting_store, roster};
use crate::listeners::{self, ClientPort, Listeners};
use crate::member::Apply;
use crate::member::StoreThread;
use crate::member::{ClockAnchor, LeaderLeases, start_auto_compaction};
use crate::member::{Differs, Fence, Hasher, compare_at_start, start_corruption_checks};
use crate::member::{Ids, LeaderLoss, Member, WatchThread, start_raising_level};
use crate::member::{ReceivePlace, StagingDirectory};
use crate::node_parts::{raft_config, start_leases, start_peers, start_raft, watch_limits};
use crate::peer::{self, Context, LeaseService, Levels, Peers};
use admission::{MemoryLimit, follow_memory};
use api::version;
use auth::{AuthError, Caller};
use config::Settings;
use data_dir::Directory;
use data_dir::Identity;
use data_dir::bootstrap::{self, BootstrapError, Company, MemberStart, RunningCluster};
use data_dir::{OpenStoreError, OpenedStore};
use grpc_server::listen::{BindError, Permits};
use process::descriptors::{Descriptors, TooFew};
use process::log::{self, causes};
use process::notify;
use process::runtime::{Runtimes, TlsOf};
use process::shutdown::{self, Stopper};
use telemetry::metrics::Metrics;
use telemetry::traces::{TraceError, Traces};
use telemetry::usage::Usage;
use transport::tls::{Dialer, HandshakeThreads, Port, ShownAddress, Tls, TlsError};

/// Pause between two attempts to publish this member's name.
const PUBLISH_PAUSE: Duration = Duration::from_millis(50);
/// Heartbeat intervals a stopping member waits for a response from a quorum.
const QUORUM_HEARTBEATS: u32 = 3;
/// Lower bound of that wait: short heartbeats leave too little time for the syncs of a leader change.
const QUORUM_WITHIN_MIN: Duration = Duration::from_millis(300);
/// Time for the shutdown error to reach the clients of interrupted calls.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(200);
/// Timeout of the last checkpoint. It writes at most 64 MiB and only shortens the next start, so a slow
/// disk may abort it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("start the socket threads")]
    Runtime(#[source] std::io::Error),
    #[error(transparent)]
    Descriptors(#[from] TooFew),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error(transparent)]
    OpenStore(#[from] OpenStoreError),
    #[error("read the store")]
    State(#[from] state_machine::ApplyError),
    #[error("start the store thread")]
    StoreThread(#[source] std::io::Error),
    #[error("start the watch thread")]
    WatchThread(#[source] std::io::Error),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error("hash the store")]
    Hash(#[source] mvcc::Error),
    #[error(transparent)]
    Differs(#[from] Differs),
    #[error("start Raft")]
    Raft(#[from] raft_node::StartError),
    #[error(transparent)]
    Traces(#[from] TraceError),
    #[error("wait for signals")]
    Signals(#[source] std::io::Error),
    #[error(
        "write the last checkpoint: timed out after {CLOSE_TIMEOUT:?}; all acknowledged writes are in the log"
    )]
    Close,
}

/// Runs a member until a signal stops it.
pub fn run(settings: Settings, directory: Directory) -> Result<(), NodeError> {
    process::descriptors::forbid_core_file();
    let descriptors = Descriptors::claim(peer::CONNECTIONS_MAX)?;
    let secure = TlsOf { clients: settings.tls.client.is_some(), peers: settings.tls.peer.is_some() };
    let runtimes = Runtimes::build(secure).map_err(NodeError::Runtime)?;
    runtimes.clients.spawn(async {
        if let Err(error) = log::follow_signals().await {
            tracing::warn!(%error, "cannot install signal handlers for the log");
        }
    });
    let threads = HandshakeThreads { clients: runtimes.tls().handle(), peers: runtimes.peer_tls().handle() };
    let tls = Tls::load(&settings, directory.path(), threads)?;
    let Listeners { clients, metrics: probes, peers: peer_ports, files: socket_files } =
        Listeners::bind(&settings, &tls, &runtimes.clients, runtimes.peers())?;
    announce(&settings, &directory);
    let settings = discovery::complete(settings, &directory, runtimes.peers(), runtimes.tls().handle())?;
    let dialer = tls.dialer();
    let ask =
        |identity: &Identity| runtimes.peers().block_on(peer::bootstrapped_elsewhere(&dialer, identity));
    let traces = start_traces(&settings, &runtimes)?;
    let metrics = Arc::new(Metrics { traces: traces.clone(), ..Metrics::default() });
    if settings.metrics_extensive {
        metrics.calls.be_extensive();
    }
    let fs = bootstrap::log_fs(Arc::clone(&metrics));
    let running = |urls: &[String], fits: &dyn Fn(&RunningCluster) -> bool| {
        runtimes.peers().block_on(peer::running_cluster(&dialer, urls, fits))
    };
    let mut established = bootstrap::establish(&settings, &directory, fs.clone(), ask, running)?;
    let company = bootstrap::company(&settings, &established, &directory)?;
    let opened = open_fitting_store(&directory, &established, company)?;
    recovered(&established, &opened);
    if company == Company::Forced {
        let listed = state_machine::members(&opened.store)?;
        bootstrap::check_forced(&established.identity, &listed, running)?;
        established = bootstrap::force_alone(established, &directory, fs)?;
    }
    if company != Company::AsKnown && established.identity.joined && opened.is_empty() {
        bootstrap::begin_with_log(&mut established, &directory)?;
    }
    if settings.corruption.at_start {
        compare_with_others(&runtimes, &dialer, &established.identity, &opened.store)?;
    }
    let peering = Peering { ports: peer_ports, connections_max: descriptors.peers, dialer };
    let data = MemberData { established, opened, company };
    let running = Running::start(&runtimes, settings, &directory, data, metrics, peering)?;
    let (_stops_with_this_function, stop) = shutdown::stop();
    let certificates = tls.shown();
    tls.follow_files(runtimes.tls().handle(), &stop);
    let lived = runtimes.clients.block_on(running.live(clients, probes, certificates, descriptors.clients));
    traces.close();
    runtimes.abandon();
    lived?;
    drop((socket_files, directory));
    tracing::info!("closed kv-server");
    Ok(())
}

/// Starts exporting traces of calls, if configured.
fn start_traces(settings: &Settings, runtimes: &Runtimes) -> Result<Traces, TraceError> {
    let Some(wanted) = &settings.traces else { return Ok(Traces::default()) };
    let _inside = runtimes.clients.enter();
    let traces = Traces::start(wanted)?;
    tracing::info!(
        address = wanted.address,
        service_name = wanted.service_name,
        service_instance_id = wanted.instance_id,
        sampling_rate = wanted.sampled,
        "distributed tracing setup enabled"
    );
    Ok(traces)
}

/// Compares the hash of this member's store with its peers' before it joins. A new store has no history to
/// compare.
fn compare_with_others(
    runtimes: &Runtimes,
    dialer: &Dialer,
    identity: &Identity,
    store: &Store,
) -> Result<(), NodeError> {
    if store.applied() == LogPosition::default() {
        return Ok(());
    }
    tracing::info!("starting initial corruption check");
    let own = store.hash_kv(0).map_err(NodeError::Hash)?;
    let (mut members, level) = (state_machine::members(store)?, level::of(store)?);
    // A peer already known to be corrupt is no evidence about this member.
    let corrupt = state_machine::corrupt_members(store)?;
    members.retain(|member| member.id == identity.member_id || !corrupt.contains(&member.id));
    let asked = peer::hashes_at_start(dialer, identity, &members, level, own.hash_revision);
    compare_at_start(identity.member_id, own, &runtimes.peers().block_on(asked))?;
    tracing::info!("initial corruption checking passed; no corruption");
    Ok(())
}

fn announce(settings: &Settings, directory: &Directory) {
    tracing::info!(
        version = version::OWN,
        etcd_version = version::ETCD,
        name = settings.name,
        data_dir = %directory.path().display(),
        wal_dir = %directory.wal_dir().display(),
        listen_peer_urls = %settings.listen_peer_urls,
        advertise_client_urls = %settings.advertise_client_urls,
        listen_client_urls = %settings.listen_client_urls,
        initial_cluster = settings.initial.cluster,
        heartbeat_interval = ?settings.clock.heartbeat,
        election_timeout = ?settings.clock.election,
        quota_backend_bytes = settings.limits.quota_bytes,
        snapshot_count = settings.snapshot_count,
        snapshot_catchup_entries = settings.snapshot_catch_up_entries,
        // The only value that etcd still supports.
        v2_deprecation = "write-only",
        warnings_explained_in = "docs/operate/troubleshoot.md",
        "starting a kv-server member"
    );
}

/// Data a member starts with: its identity and log, the store that matches the log, and whether to query
/// its peers.
struct MemberData {
    established: MemberStart,
    opened: OpenedStore,
    company: Company,
}

/// Logs the state recovered from disk.
fn recovered(established: &MemberStart, opened: &OpenedStore) {
    let MemberStart { identity, recovery, .. } = established;
    let is_first = opened.is_empty() && recovery.last == LogPosition::default();
    let message = if is_first { "starting local member" } else { "restarting local member" };
    tracing::info!(
        cluster_id = format!("{:x}", identity.cluster_id),
        local_member_id = format!("{:x}", identity.member_id),
        log_first_index = recovery.start.index.0,
        log_last_index = recovery.last.index.0,
        log_last_term = recovery.last.term.0,
        log_torn_bytes = recovery.torn_bytes,
        store_applied_index = opened.store.applied().index.0,
        store_revision = opened.store.revision(),
        store_compact_revision = opened.store.compact_revision(),
        store_bytes = opened.store.size().allocated,
        message
    );
}

/// Connections to peers, in both directions.
struct Peering {
    ports: Vec<Port>,
    connections_max: u32,
    dialer: Dialer,
}

/// Components that run before clients are served.
struct Running {
    settings: Settings,
    identity: Arc<Identity>,
    member: Arc<Member>,
    leases: LeaseService,
    store_thread: StoreThread,
    watch_thread: WatchThread,
    threads: Threads,
    /// Closes the links to peers; stopped last, since Raft uses them until it stops.
    peers_stopper: Stopper,
}

/// Returns how long a stopping member waits to hear from a quorum.
fn quorum_within(heartbeat: Duration, is_removed: bool) -> Duration {
    // Peers do not respond to a removed member, but it may have to apply its own removal and respond to
    // that call.
    let heartbeats = if is_removed { 1 } else { QUORUM_HEARTBEATS };
    (heartbeats * heartbeat).max(QUORUM_WITHIN_MIN)
}

/// Logs one line and exits: this member must not acknowledge any request after this point.
fn on_fatal(fatal: Fatal) {
    if base::mutant("survives-a-fatal-error") {
        return;
    }
    shutdown::die(&causes(&fatal))
}

/// Starts the threads of the store and of its watchers.
fn start_stores(
    settings: &Settings,
    maintainer: Maintainer,
    store: &Store,
    metrics: &Arc<Metrics>,
) -> Result<(StoreThread, WatchThread), NodeError> {
    let (entries_max, metrics) = (settings.snapshot_count, Arc::clone(metrics));
    let store_thread = StoreThread::start(maintainer, store.clone(), entries_max, metrics, on_fatal)
        .map_err(NodeError::StoreThread)?;
    let watch_thread = WatchThread::start(store.clone(), watch_limits(settings), on_fatal)
        .map_err(NodeError::WatchThread)?;
    Ok((store_thread, watch_thread))
}

impl Running {
    fn start(
        runtimes: &Runtimes,
        settings: Settings,
        directory: &Directory,
        MemberData { established, opened, company }: MemberData,
        metrics: Arc<Metrics>,
        peering: Peering,
    ) -> Result<Running, NodeError> {
        let identity = Arc::new(established.identity.clone());
        let OpenedStore { writer, store, maintainer, state } = opened;
        let machine = EtcdMachine::new(writer, &bootstrap::genesis(&established, store.applied())?)?;
        let (store_thread, watch_thread) = start_stores(&settings, maintainer, &store, &metrics)?;
        let checkpoints = store_thread.checkpoints();
        let Peering { ports, connections_max, dialer } = peering;
        let roster = Arc::new(roster(runtimes, &dialer, &established, &store, state, company)?);
        let (fence, level) = (Arc::new(Fence::default()), machine.level().clone());
        let context = Context {
            advertised: settings.advertise_peer_urls.texts().into(),
            levels: Levels::of(level.clone()),
            ..Context::new(&identity, &roster, &metrics, dialer, &fence)
        };
        let peers = Arc::new(Peers::new(context, checkpoints.clone()));
        let place = Box::new(StagingDirectory(directory.store_dir()));
        let incoming = ReceivePlace::new(place, Arc::clone(&metrics), Arc::new(on_fatal));
        let anchored = Arc::new(ClockAnchor::new(machine.lease_clock()));
        let (lease_table, auth_table) = (machine.leases().clone(), machine.auth().clone());
        let apply = Apply::new(
            machine,
            checkpoints.clone(),
            incoming.clone(),
            Arc::clone(&metrics),
            Arc::clone(&anchored),
            identity.member_id,
            Arc::clone(&fence),
        );
        let config = raft_config(&settings, roster.membership(), identity.member_id, &store, state);
        let memory = Arc::new(MemoryLimit::new(settings.memory_limit));
        let hasher = Hasher::new(store.clone(), settings.request_timeout(), Arc::clone(&memory));
        let (raft, threads) =
            start_raft(runtimes, config, established, apply, &peers, settings.slow_apply, on_fatal)?;
        let (peers_stopper, stop) = shutdown::stop();
        let (of_raft, id) = (raft.clone(), identity.member_id);
        let leader_leases = Arc::new(LeaderLeases::new(of_raft, lease_table, store.clone(), id, anchored));
        {
            let _inside = runtimes.peers().enter();
            let leases = Arc::clone(&leader_leases);
            start_peers(&peers, incoming, leases, hasher.clone(), ports, connections_max, &stop);
        }
        let inside = runtimes.clients.enter();
        let admission = Arc::clone(&hasher.admission);
        follow_memory(&memory, move || admission.look_again());
        let leases = start_leases(leader_leases, &peers, settings.request_timeout(), &stop);
        let leader_loss = LeaderLoss::observe(raft.leader_known(), settings.clock.election);
        let auth = auth::start(auth_table, &settings.auth, &stop)?;
        let audit = AuditLog::start(settings.audit.as_ref(), &auth, &metrics.audit)?;
        drop(inside);
        let member = Arc::new(Member {
            raft,
            store,
            ids: Ids { cluster: identity.cluster_id, member: identity.member_id },
            level,
            limits: settings.limits,
            metrics: Arc::clone(&metrics),
            checkpoints,
            admission: Arc::clone(&hasher.admission),
            hasher,
            fence,
            watching: watch_thread.watching(),
            leader_loss,
            reconfiguration: settings.reconfiguration,
            roster,
            reach: peers,
            usage: Usage::new(settings.metrics_top),
            audit,
            auth,
        });
        Ok(Running { settings, identity, member, leases, store_thread, watch_thread, threads, peers_stopper })
    }

    /// Becomes ready and serves until a signal.
    async fn live(
        self,
        clients: Vec<ClientPort>,
        probes: Vec<Port>,
        certificates: ShownAddress,
        connections_max: u32,
    ) -> Result<(), NodeError> {
        let (stopper, stop) = shutdown::stop();
        let permits = Permits::new(connections_max);
        let http = listeners::http(&self.member, &self.leases, &self.settings, certificates);
        listeners::serve_probes(probes, &self.settings, &http, &stop);
        {
            let mut ended = std::pin::pin!(self.ended());
            let ended = tokio::select! {
                ended = &mut ended => ended,
                () = self.publish() => {
                    self.member.auth.table.void_all();
                    let services = listeners::services(http, &self.leases, &self.settings, &stop);
                    listeners::serve_clients(clients, &self.settings, &services, &permits, &stop);
                    start_auto_compaction(&self.member, self.settings.retention, &stop);
                    start_raising_level(&self.member, &stop);
                    start_corruption_checks(&self.member, self.settings.corruption, &stop);
                    notify::ready();
                    ended.await
                }
            };
            ended.map_err(NodeError::Signals)?;
        }
        notify::stopping();
        self.stop(&stopper, &permits).await
    }

    /// Returns on a stop signal, or when this member was removed from the cluster.
    async fn ended(&self) -> std::io::Result<()> {
        let signalled = shutdown::signalled()?;
        tokio::select! {
            signal = signalled => {
                tracing::info!(signal, "received signal; shutting down");
            }
            () = self.member.roster.removed() => {
                let error = "the member has been permanently removed from the cluster";
                tracing::warn!(error, "server error");
                tracing::warn!("data-dir used by this member must be removed");
            }
        }
        Ok(())
    }

    /// Returns once this member's name and client URLs were committed through the log: it can commit, and
    /// it has applied.
    async fn publish(&self) {
        let request = PublishMember {
            member_id: self.identity.member_id,
            name: self.identity.name.clone(),
            client_urls: self.settings.advertise_client_urls.texts(),
        };
        while let Err(error) = self.member.propose(&Caller::MEMBER, request.clone()).await {
            tracing::debug!(error = causes(&error), "publishing the local member failed; trying again");
            tokio::time::sleep(PUBLISH_PAUSE).await;
        }
        tracing::info!(
            local_member_id = format!("{:x}", self.identity.member_id),
            local_member_name = self.identity.name,
            cluster_id = format!("{:x}", self.identity.cluster_id),
            "published local member to cluster through raft"
        );
    }

    /// Transfers leadership, drains calls, and makes all state durable. Calls that cannot reach a quorum
    /// fail with a shutdown error.
    async fn stop(self, clients: &Stopper, permits: &Permits) -> Result<(), NodeError> {
        let within = quorum_within(self.settings.clock.heartbeat, self.member.roster.is_removed());
        let waits_in_vain = self.member.without_quorum(within);
        let calls_end = async {
            if !self.member.roster.others().is_empty() {
                self.member.hand_over().await;
            }
            clients.stop();
            let _calls_in_flight = timeout(self.settings.request_timeout(), permits.drained()).await;
        };
        tokio::select! {
            () = calls_end => {}
            () = waits_in_vain => clients.stop(),
        }
        self.member.raft.stop();
        if timeout(RESPONSE_TIMEOUT, permits.drained()).await.is_err() {
            tracing::warn!("some client connections did not close in time");
        }
        let (threads, watch_thread, store_thread) = (self.threads, self.watch_thread, self.store_thread);
        let audit = self.member.audit.clone();
        let joined = tokio::task::spawn_blocking(move || {
            if let Some(audit) = audit {
                audit.close();
            }
            threads.join();
            watch_thread.stop();
            store_thread.stop();
        });
        let closed = timeout(CLOSE_TIMEOUT, joined).await;
        self.peers_stopper.stop();
        match closed {
            Ok(Ok(())) => {}
            Ok(Err(_)) => tracing::error!("thread panicked during shutdown"),
            Err(_) => return Err(NodeError::Close),
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "node_tests/mod.rs"]
mod tests;
