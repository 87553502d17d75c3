//! `--force-new-cluster`: appends an entry to the log that removes all other members.
//!
//! ```text
//!   identity stores the index of the entry ──▶ the entry is in the log ──▶ Raft applies it: single-member cluster
//! ```
//!
//! * On a first start there is no member to remove: the flag has no effect.
//! * While another member is reachable, the start fails: that member may have data that this one
//!   lacks, and would be removed ([`check_forced`]).
//! * The flag takes effect only once, in case it was left in a unit file. On a single-member
//!   cluster it has no effect. If members were added since, the start fails; otherwise a reboot
//!   would remove them, and what they have acknowledged without this member.
//! * After a crash before the entry was applied, a start without the flag is a single member as
//!   well.
//! * A log that starts at the first entry contains the complete state, even if this member joined
//!   and never received one. The forced member replays it ([`begin_with_log`]), starting from the
//!   cluster's initial members ([`genesis`]).

use std::collections::BTreeSet;

use api::etcdserverpb::Member;
use raft_node::inspect::{self, EntrySeen};
use state_machine::Genesis;
use state_machine::command::{self, Change, Kind, MemberChange};
use wal::{LogPosition, Reader, TimedFs, Wal};

use super::{BootstrapError, MemberStart, RunningCluster, log_options};
use crate::directory::Directory;
use crate::identity::{self, Identity};
use crate::ids;
use config::Settings;

const READ_BYTES: usize = 1 << 20;

/// Membership at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// Start with the members in the local state.
    AsKnown,
    /// Start as a single member: the log has removed all others.
    Alone,
    /// Start as a single member, after [`force_alone`] has appended to the log.
    Forced,
}

/// Determines the membership from the flag, the identity and the log.
///
/// Errors: the member was forced before, and has other members now.
pub fn company(
    settings: &Settings,
    established: &MemberStart,
    directory: &Directory,
) -> Result<Company, BootstrapError> {
    let MemberStart { identity, recovery, .. } = established;
    let Some(state) = &recovery.state else { return Ok(Company::AsKnown) };
    let state = inspect::read_state(state).map_err(BootstrapError::RaftState)?;
    let is_alone = state.voters == [identity.member_id] && state.learners.is_empty();
    let last = recovery.last.index.0;
    let forced = identity.forced.filter(|index| last >= *index);
    match (settings.force_new_cluster, forced) {
        (true, None) => Ok(Company::Forced),
        (true, Some(_)) if is_alone => Ok(Company::Alone),
        (true, Some(_)) => Err(BootstrapError::ForcedBefore {
            member: identity.member_id,
            identity: directory.identity_path(),
        }),
        (false, Some(index)) if is_alone && last == index => Ok(Company::Alone),
        (false, _) => Ok(Company::AsKnown),
    }
}

/// Checks that forcing is safe. Must be called before the log is changed. `running` returns the
/// cluster that is reachable at some URLs.
///
/// Errors: another member of its cluster is reachable.
pub fn check_forced(
    identity: &Identity,
    listed: &[Member],
    running: impl Fn(&[String], &dyn Fn(&RunningCluster) -> bool) -> Option<RunningCluster>,
) -> Result<(), BootstrapError> {
    let is_same = |running: &RunningCluster| running.cluster_id == identity.cluster_id;
    let listed = listed.iter().map(|member| (member.id, &member.peer_ur_ls));
    let known = listed.chain(identity.members.iter().map(|member| (member.id, &member.peer_urls)));
    let mut urls = known.filter(|(id, _)| *id != identity.member_id).flat_map(|(_, urls)| urls);
    let answers =
        |url: &&String| running(std::slice::from_ref(*url), &is_same).is_some_and(|at| is_same(&at));
    urls.find(answers).map_or(Ok(()), |url| Err(BootstrapError::OthersRun(url.clone())))
}

/// Records that the state of this member, now a single-member cluster, is the result of its log
/// from the first entry. Must be called before Raft appends an entry: a later start that finds an
/// additional entry cannot tell that the member is the only one.
pub fn begin_with_log(established: &mut MemberStart, directory: &Directory) -> Result<(), BootstrapError> {
    established.identity.joined = false;
    Ok(established.identity.write(&directory.identity_path())?)
}

/// Returns the members of a store without entries, from which the log is replayed: the cluster's
/// initial members. The identity of a joined member has a later membership. If the log does not
/// reach the addition of this member, it remains among them.
pub fn genesis(established: &MemberStart, applied: LogPosition) -> Result<Genesis, BootstrapError> {
    let MemberStart { identity, log, .. } = established;
    let mut first = identity::genesis(identity);
    if identity.forced.is_none() || applied != LogPosition::default() {
        return Ok(first);
    }
    let (mut added, mut removed) = (BTreeSet::new(), BTreeSet::new());
    for change in changes(&log.reader())? {
        match change {
            Change::Add(add) => drop(added.insert(add.id)),
            Change::Remove(id) => drop(removed.insert(id)),
            Change::Update(_) | Change::Promote(_) | Change::Retain(_) => {}
        }
    }
    first.members.retain(|member| !added.contains(&member.id));
    let kept = first.members.len();
    removed.retain(|id| !added.contains(id) && first.members.iter().all(|member| member.id != *id));
    first.members.extend(removed.into_iter().map(|id| Member { id, ..Member::default() }));
    // The log may also contain the removal of an unknown member.
    if ids::cluster_id(first.members.iter().map(|member| member.id)) != identity.cluster_id {
        first.members.truncate(kept);
    }
    Ok(first)
}

/// Returns all membership changes in a log, including rejected ones.
fn changes(log: &Reader<TimedFs>) -> Result<Vec<Change>, wal::Error> {
    let (mut changes, mut next) = (Vec::new(), log.start().index.next());
    loop {
        let entries = log.read(next, READ_BYTES)?;
        let Some(last) = entries.last() else { return Ok(changes) };
        next = last.index.next();
        for entry in entries {
            let seen = inspect::read_entry(entry.kind, entry.payload.into());
            let Ok(EntrySeen::Membership(batch)) = seen else { continue };
            let commands = batch.commands.iter().map(command::decode);
            changes.extend(commands.filter_map(|kind| match kind {
                Ok(Kind::MemberChange(change)) => change.change,
                _ => None,
            }));
        }
    }
}

/// Appends an entry that removes all other members to the log of a member with an intact store. The
/// entry counts as committed, so Raft applies it first.
pub fn force_alone(
    established: MemberStart,
    directory: &Directory,
    fs: TimedFs,
) -> Result<MemberStart, BootstrapError> {
    let MemberStart { mut identity, mut log, recovery } = established;
    let member = identity.member_id;
    identity.forced = Some(recovery.last.index.next().0);
    identity.write(&directory.identity_path())?;
    let change = Kind::MemberChange(MemberChange { change: Some(Change::Retain(member)), is_strict: false });
    raft_node::force_change(&mut log, &recovery, member, rand::random(), &command::encode(change))?;
    drop(log);
    let (log, recovery) = Wal::open(fs, directory.wal_dir(), log_options())?;
    tracing::warn!(
        member = format!("{member:x}"),
        last_index = recovery.last.index.0,
        "forced a new cluster: all other members are removed, and must not be started again"
    );
    Ok(MemberStart { identity, log, recovery })
}
