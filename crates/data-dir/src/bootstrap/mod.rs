//! Determines the identity and the log from the settings and the directory.
//!
//! ```text
//!   identity  log      then
//!   ────────  ───────  ─────────────────────────────────────────────────────────
//!   none      none     first start, or join: create the log, then write the identity; Raft waits until peers confirm it
//!   none      blank    an interrupted first start: resume it
//!   none      entries  rejected: the log belongs to an unknown member
//!   there     there    restart; both must name the same member, and were created together
//!   there     none     rejected: a member that forgot its votes must not vote again
//! ```
//!
//! * An imported store has a log that starts after it, created by [`establish_after_import`].
//! * The identity is written last: its presence means that all previous steps are complete.
//! * On a restart, `--force-new-cluster` appends the removal of all other members to the log
//!   ([`force`]).
//! * Members with the same flags compute the same ids without communication.

mod force; // --force-new-cluster
mod join; // a running cluster

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sha1::{Digest, Sha1};
use wal::{LogPosition, RealFs, Recovery, TimedCall, TimedFs, Wal};

pub use force::{Company, begin_with_log, check_forced, company, force_alone, genesis};
pub use join::{JoinError, RunningCluster};

use crate::directory::Directory;
use crate::identity::{FORMAT, FirstMember, Identity, IdentityError};
use crate::ids;
use crate::open_store;
use config::ClusterState;
use config::Settings;
use config::{Url, UrlError, Urls};
use process::files;
use process::log::causes;
use telemetry::metrics::Metrics;

/// A member that may start: its identity and its opened log.
#[derive(Debug)]
pub struct MemberStart {
    pub identity: Identity,
    pub log: Wal<TimedFs>,
    pub recovery: Recovery,
}

#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("error setting up initial cluster")]
    Url(#[from] UrlError),
    #[error("error setting up initial cluster: empty URL given for \"{0}\"; use {0}=URL")]
    EmptyUrl(String),
    #[error(
        "error setting up initial cluster: {0:?} is not NAME=URL: no blanks, quotes or semicolons; \
         separate members with commas"
    )]
    Separator(String),
    #[error(
        "couldn't find local name {name:?} in the initial cluster configuration: it has {found}, or add \
         {name}=URL"
    )]
    NameMissing { name: String, found: String },
    #[error("initial cluster {cluster} has duplicate url: write {url} once")]
    DuplicateUrl { cluster: String, url: String },
    #[error(
        "this member's peer URLs, given in two spellings, cannot be compared: {0}; write them as \
         --initial-cluster has them"
    )]
    Unresolved(String),
    #[error(
        "--initial-cluster has {cluster} but missing from --initial-advertise-peer-urls={advertised} \
         (resolved urls: \"{advertised_resolved}\" != \"{cluster_resolved}\"); write the same URLs in both"
    )]
    UrlsDiffer { cluster: String, advertised: String, cluster_resolved: String, advertised_resolved: String },
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(
        "data directory {} belongs to member \"{found}\", not to \"{wanted}\": set --name={found}, or use \
         another --data-dir",
        path.display()
    )]
    OtherMember { path: PathBuf, found: String, wanted: String },
    #[error(
        "the log of member {member:x} is missing from {}: without it the member could vote twice; \
         restore the log, or remove the data directory and add a new member to the cluster",
        path.display()
    )]
    LogLost { member: u64, path: PathBuf },
    #[error(
        "member {member:x} has already been bootstrapped, says member {peer:x}: with an empty data directory it \
         could vote twice; give the directory that it had, or replace it (`kvctl member replace`)"
    )]
    BornBefore { member: u64, peer: u64 },
    #[error(
        "cluster {cluster:x} is running and has added this member as {member:x}, says member {peer:x}: set \
         --initial-cluster-state=existing; a new cluster needs other URLs"
    )]
    Added { member: u64, cluster: u64, peer: u64 },
    #[error(
        "{} holds data but no identity.json, so its owner is unknown; use an empty --data-dir, or the \
         correct one. If an import or restore was interrupted, remove it and run the command again",
        .0.display()
    )]
    IdentityLost(PathBuf),
    #[error(
        "the import into {} is not finished: run `kvctl import --live` again with the same flags, or remove \
         the directory",
        .0.display()
    )]
    ImportUnfinished(PathBuf),
    #[error(
        "the log in {} belongs to another member: use the --wal-dir and --data-dir of the same member",
        .0.display()
    )]
    OtherLog(PathBuf),
    #[error("force a single-member cluster")]
    Force(#[from] raft_node::ForceError),
    #[error(
        "--force-new-cluster has made member {member:x} the only one at an earlier start, and others have been added \
         since: remove the flag. If those are lost too, remove \"forced\" from {} to force it again",
        identity.display()
    )]
    ForcedBefore { member: u64, identity: PathBuf },
    #[error(
        "another member responds at {0}: --force-new-cluster would remove it, including acknowledged \
         writes that this member lacks. Stop all other members first"
    )]
    OthersRun(String),
    #[error("the Raft state in the log cannot be read: {0}")]
    RaftState(String),
    #[error("open the log")]
    Log(#[from] wal::Error),
    #[error("read the created store")]
    MadeStore(#[from] mvcc::Error),
}

/// Attempts to resolve this member's host name. The name of a pod becomes resolvable some seconds
/// after its start.
const RESOLVE_ATTEMPTS: u32 = 30;
const RESOLVE_PAUSE: Duration = Duration::from_secs(1);

fn log_options() -> wal::WalOptions {
    wal::WalOptions { segment_bytes: wal::WalOptions::SEGMENT_BYTES, salt: rand::random() }
}

/// Reads or creates the member's identity and opens its log. The first start of a new cluster calls
/// `remembers` to check whether a peer contradicts it. A joining member queries the URLs passed to
/// `running` for the membership until a response matches.
pub fn establish(
    settings: &Settings,
    directory: &Directory,
    fs: TimedFs,
    remembers: impl FnOnce(&Identity) -> Option<BootstrapError>,
    running: impl FnOnce(&[String], &dyn Fn(&RunningCluster) -> bool) -> Option<RunningCluster>,
) -> Result<MemberStart, BootstrapError> {
    let options = log_options();
    let log_exists = Wal::exists(&fs, directory.wal_dir())?;
    if let Some(identity) = known_identity(settings, directory.path(), directory.wal_dir(), log_exists)? {
        let (log, recovery) = Wal::open(fs, directory.wal_dir(), options)?;
        check_log(&identity, &recovery, directory)?;
        return Ok(MemberStart { identity, log, recovery });
    }
    let joins = settings.initial.state == ClusterState::Existing;
    let mut identity = if joins { joined_identity(settings, running)? } else { first_identity(settings)? };
    if let Some(refusal) = remembers(&identity).filter(|_| !joins) {
        return Err(refusal);
    }
    if !log_exists {
        Wal::create(
            fs.clone(),
            directory.wal_dir(),
            &identity.log_identity(),
            LogPosition::default(),
            options,
        )?;
    }
    let (log, recovery) = Wal::open(fs, directory.wal_dir(), options)?;
    check_log(&identity, &recovery, directory)?;
    if recovery.state.is_some() || recovery.last != recovery.start {
        return Err(BootstrapError::IdentityLost(directory.path().to_owned()));
    }
    identity.log = recovery.salt.as_ref().map_or(0, log_digest);
    identity.write(&directory.identity_path())?;
    Ok(MemberStart { identity, log, recovery })
}

/// Checks flags and directories like [`establish`], without opening the log or contacting other
/// members. Read-only. With discovery, the flags of a first start are not sufficient for a check.
///
/// Errors: see `establish`.
pub fn check(settings: &Settings) -> Result<(), BootstrapError> {
    let data = &settings.data_dir;
    let log = settings.wal_dir.clone().unwrap_or_else(|| Directory::wal_in(data));
    let identity = known_identity(settings, data, &log, Wal::exists(&RealFs, &log)?)?;
    if identity.is_none() && settings.discovery.is_none() {
        cluster_and_own(settings, 1)?;
    }
    Ok(())
}

/// Returns the identity in a directory; `None` if a first start is allowed.
fn known_identity(
    settings: &Settings,
    data: &Path,
    log: &Path,
    log_exists: bool,
) -> Result<Option<Identity>, BootstrapError> {
    let Some(identity) = Identity::read(&Directory::identity_in(data))? else {
        let import = Directory::live_import_in(data);
        return if import.exists() && !is_import_finished(&import) {
            Err(BootstrapError::ImportUnfinished(data.to_owned()))
        } else if Directory::store_in(data).exists() {
            Err(BootstrapError::IdentityLost(data.to_owned()))
        } else {
            Ok(None)
        };
    };
    check_belongs(&identity, settings, data)?;
    if log_exists {
        return Ok(Some(identity));
    }
    Err(BootstrapError::LogLost { member: identity.member_id, path: log.to_owned() })
}

/// Reports whether an import has created the identity. If so, a missing identity has been lost.
fn is_import_finished(mark: &Path) -> bool {
    let mark =
        files::read(mark).ok().and_then(|mark| serde_json::from_slice::<serde_json::Value>(&mark).ok());
    mark.is_some_and(|mark| mark["stage"] == "finished")
}

/// Minimum duration of a logged log sync; etcd's threshold.
const SLOW_SYNC: Duration = Duration::from_secs(1);

/// Creates the file system for a member's log, which records metrics of writes and syncs.
pub fn log_fs(metrics: Arc<Metrics>) -> TimedFs {
    log_fs_by(Instant::now, metrics)
}

fn log_fs_by(clock: fn() -> Instant, metrics: Arc<Metrics>) -> TimedFs {
    TimedFs::new(clock, move |call, took| match call {
        TimedCall::Write { bytes } => {
            metrics.disk.wal_write_seconds.observe(took.as_secs_f64());
            metrics.disk.log_written_bytes.inc_by(bytes as u64);
        }
        TimedCall::Sync => {
            if took > SLOW_SYNC {
                tracing::warn!(took = ?took, expected_duration = ?SLOW_SYNC, "slow fdatasync");
            }
            metrics.disk.wal_sync_seconds.observe(took.as_secs_f64());
            let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            metrics.sync_slowest_us.fetch_max(microseconds, Ordering::Relaxed);
            metrics.syncs.fetch_add(1, Ordering::Relaxed);
            metrics.syncs_us.fetch_add(microseconds, Ordering::Relaxed);
        }
    })
}

/// Log position of an imported store. Above 0, so that the log cannot be replayed without the
/// store.
pub const IMPORTED_AT: LogPosition = LogPosition::new(1, 1);

/// Creates the log and the identity of a member with an imported store. The next start is a
/// restart, at which the other members must confirm that they have not started without it.
pub fn establish_after_import(identity: &Identity, directory: &Directory) -> Result<(), BootstrapError> {
    let imported = open_store::digest(&directory.store_dir())?;
    let voters: Vec<u64> = identity.members.iter().map(|member| member.id).collect();
    let state = raft_node::state_after(IMPORTED_AT, &voters);
    let (fs, options) = (RealFs, log_options());
    let made_log = log_digest(&options.salt);
    let mut log = Wal::create(fs, directory.wal_dir(), &identity.log_identity(), IMPORTED_AT, options)?;
    log.put_state(&state);
    log.sync()?;
    drop(log);
    Ok(Identity { imported, log: made_log, ..identity.clone() }.write(&directory.identity_path())?)
}

/// Checks the flags of a restart. `--initial-…` flags are optional. A given name must match. The
/// given cluster is ignored, as in etcd: members may have been added, removed or moved since.
fn check_belongs(identity: &Identity, settings: &Settings, path: &Path) -> Result<(), BootstrapError> {
    if let Some(wanted) = settings.name_given.as_ref().filter(|name| **name != identity.name) {
        let (path, found) = (path.to_owned(), identity.name.clone());
        return Err(BootstrapError::OtherMember { path, found, wanted: wanted.clone() });
    }
    // A forced new cluster may be started with its new members.
    if settings.force_new_cluster {
        return Ok(());
    }
    if !settings.initial.cluster_given || settings.initial.state == ClusterState::Existing {
        return Ok(());
    }
    let error = match described_identity(settings, 1) {
        Ok(described) if described.cluster_id == identity.cluster_id => return Ok(()),
        Ok(described) => format!("it describes cluster {:x}", described.cluster_id),
        Err(error) => causes(&error),
    };
    tracing::warn!(
        directory = %path.display(),
        cluster = format!("{:x}", identity.cluster_id),
        error,
        "--initial-cluster is ignored: the data directory belongs to a cluster"
    );
    Ok(())
}

fn check_log(identity: &Identity, recovery: &Recovery, directory: &Directory) -> Result<(), BootstrapError> {
    let is_own = identity.log == 0 || recovery.salt.as_ref().map(log_digest) == Some(identity.log);
    if recovery.identity == identity.log_identity() && is_own {
        return Ok(());
    }
    Err(BootstrapError::OtherLog(directory.wal_dir().to_owned()))
}

/// Returns the digest of the log's salt for the identity. The salt itself stays in the log: it
/// makes frames unpredictable.
fn log_digest(salt: &[u8; 16]) -> u64 {
    let first = Sha1::digest(salt).first_chunk().copied().expect("SHA-1 has 20 bytes");
    u64::from_be_bytes(first).max(1)
}

/// Returns the identity of a joining member, if its flags match the running cluster.
fn joined_identity(
    settings: &Settings,
    running: impl FnOnce(&[String], &dyn Fn(&RunningCluster) -> bool) -> Option<RunningCluster>,
) -> Result<Identity, BootstrapError> {
    let (cluster, _) = cluster_and_own(settings, RESOLVE_ATTEMPTS)?;
    let others = cluster.iter().filter(|(name, _)| **name != settings.name);
    let urls: Vec<String> = others.flat_map(|(_, urls)| urls.texts()).collect();
    let joined = |running: &RunningCluster| join::identity(&settings.name, &cluster, running.clone());
    let running = running(&urls, &|running| joined(running).is_ok()).ok_or(JoinError::NoCluster)?;
    Ok(joined(&running)?)
}

fn cluster_and_own(
    settings: &Settings,
    attempts_max: u32,
) -> Result<(BTreeMap<String, Urls>, Urls), BootstrapError> {
    let cluster = parse_cluster(&settings.initial.cluster)?;
    let Some(own) = cluster.get(&settings.name).cloned() else {
        let names = cluster.keys().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
        let found = match cluster.is_empty() {
            true => "no member; omit the flag".to_owned(),
            false => format!("{names}; set --name to one of these"),
        };
        return Err(BootstrapError::NameMissing { name: settings.name.clone(), found });
    };
    check_own_urls(settings, &own, Url::resolve, (attempts_max, RESOLVE_PAUSE))?;
    Ok((cluster, own))
}

pub fn first_identity(settings: &Settings) -> Result<Identity, BootstrapError> {
    described_identity(settings, RESOLVE_ATTEMPTS)
}

fn described_identity(settings: &Settings, attempts_max: u32) -> Result<Identity, BootstrapError> {
    let (cluster, own) = cluster_and_own(settings, attempts_max)?;
    let token = &settings.initial.token;
    let mut members: Vec<FirstMember> = cluster
        .iter()
        .map(|(name, urls)| FirstMember {
            id: ids::member_id(urls.iter().map(|url| url.as_str()), token),
            name: name.clone(),
            peer_urls: urls.texts(),
            is_learner: false,
        })
        .collect();
    members.sort_by_key(|member| member.id);
    Ok(Identity {
        format: FORMAT,
        cluster_id: ids::cluster_id(members.iter().map(|member| member.id)),
        member_id: ids::member_id(own.iter().map(|url| url.as_str()), token),
        name: settings.name.clone(),
        members,
        ..Identity::default()
    })
}

/// Parses `a=http://…,a=http://…,b=http://…`. A name may occur more than once.
fn parse_cluster(text: &str) -> Result<BTreeMap<String, Urls>, BootstrapError> {
    let mut texts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (name, url) = part.split_once('=').unwrap_or((part, ""));
        if url.is_empty() {
            return Err(BootstrapError::EmptyUrl(name.to_owned()));
        }
        if url.contains([' ', '\t', ';', '"', '\'']) {
            return Err(BootstrapError::Separator(part.to_owned()));
        }
        texts.entry(name).or_default().push(url);
    }
    let mut cluster = BTreeMap::new();
    for (name, urls) in texts {
        cluster.insert(name.to_owned(), Urls::collect(urls.into_iter())?);
    }
    let mut all: Vec<&str> = cluster.values().flat_map(|urls| urls.iter().map(|url| url.as_str())).collect();
    all.sort_unstable();
    if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(BootstrapError::DuplicateUrl { cluster: text.to_owned(), url: pair[0].to_owned() });
    }
    Ok(cluster)
}

/// Checks that this member's peer URLs in the initial cluster equal its advertised ones, by text or
/// by address. A host name may not be resolvable yet, so at a first start the lookup is retried, as
/// in etcd.
fn check_own_urls(
    settings: &Settings,
    own: &Urls,
    resolve: impl Fn(&Url) -> io::Result<String>,
    (attempts_max, pause): (u32, Duration),
) -> Result<(), BootstrapError> {
    let advertised = &settings.advertise_peer_urls;
    if own == advertised {
        return Ok(());
    }
    let resolve_all = |urls: &Urls| -> Result<String, BootstrapError> {
        let mut resolved = Vec::new();
        for url in urls.iter() {
            let mut attempts = 1;
            let found = loop {
                match resolve(url) {
                    Err(error) if attempts < attempts_max => {
                        tracing::warn!(%url, %error, "advertised peer hostname does not resolve; retrying");
                        attempts += 1;
                        std::thread::sleep(pause);
                    }
                    found => {
                        break found
                            .map_err(|error| BootstrapError::Unresolved(format!("{url}: {error}")))?;
                    }
                }
            };
            resolved.push(found);
        }
        resolved.sort();
        Ok(resolved.join(","))
    };
    let (cluster_resolved, advertised_resolved) = (resolve_all(own)?, resolve_all(advertised)?);
    if cluster_resolved == advertised_resolved {
        return Ok(());
    }
    let name = &settings.name;
    let cluster = own.iter().map(|url| format!("{name}={url}")).collect::<Vec<_>>().join(",");
    let advertised = advertised.to_string();
    Err(BootstrapError::UrlsDiffer { cluster, advertised, cluster_resolved, advertised_resolved })
}

#[cfg(test)]
mod tests;
