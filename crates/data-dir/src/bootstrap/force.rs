//! `--force-new-cluster`: the log of a restart ends with the removal of all other members.
//!
//! ```text
//!   identity names the entry ──▶ the entry is in the log ──▶ Raft applies it, and the member is alone
//! ```
//!
//! * On a first start there is nothing to remove: the member starts with those that it was given.
//! * While another member answers, it refuses to start: that one may have what this one lacks, and would end
//!   ([`check_forced`]).
//! * Once forced, a member is not forced again by a flag that was left in its unit file: alone, it has
//!   nothing to remove; with others that were added since, it refuses to start. Else a reboot would remove
//!   them, and what they have acknowledged without this member.
//! * A start without the flag, after a crash before the entry was applied, is alone as well.
//! * A log that begins with the first entry is a state, also of a member that joined and received none:
//!   alone, it replays it ([`begin_with_log`]) from the list that the cluster began with ([`genesis`]).

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

/// Of the log at a time.
const READ_BYTES: usize = 1 << 20;

/// With whom a member starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// With the members that it knows.
    AsKnown,
    /// With no one: its log has removed all others.
    Alone,
    /// With no one, once [`force_alone`] has ended its log.
    Forced,
}

/// What the flag, the identity and the log say together.
///
/// Errors: the member was forced before, and is not alone any more.
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

/// Before the log is changed. `running`: the cluster that answers at some URLs.
///
/// Errors: another member of its cluster answers.
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

/// From here on the state of this member, which is alone, is what its log leads to from the first entry.
/// Before Raft adds an entry: a start that finds one more does not know that the member is alone.
pub fn begin_with_log(established: &mut MemberStart, directory: &Directory) -> Result<(), BootstrapError> {
    established.identity.joined = false;
    Ok(established.identity.write(&directory.identity_path())?)
}

/// The members that a store without entries begins with: the first ones of the cluster, by which the log is
/// judged. The identity of a joiner has those of a later time. A log that does not reach the joiner's own
/// addition leaves it among them.
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
    // A removal of what was no member is in the log as well.
    if ids::cluster_id(first.members.iter().map(|member| member.id)) != identity.cluster_id {
        first.members.truncate(kept);
    }
    Ok(first)
}

/// All changes of the members that a log holds, those included that were refused.
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

/// Ends the log of a member whose store is whole with the removal of all other members, which counts as
/// committed: Raft applies it before anything else.
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
