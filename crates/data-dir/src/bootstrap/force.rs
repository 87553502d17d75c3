//! `--force-new-cluster`: the log of a restart ends with the removal of all other members.
//!
//! ```text
//!   identity names the entry ──▶ the entry is in the log ──▶ Raft applies it, and the member is alone
//! ```
//!
//! * On a first start there is nothing to remove: the member starts with those that it was given.
//! * Once forced, a member is not forced again by a flag that was left in its unit file: alone, it has
//!   nothing to remove; with others that were added since, it refuses to start. Else a reboot would remove
//!   them, and what they have acknowledged without this member.
//! * A start without the flag, after a crash before the entry was applied, is alone as well.
//! * A log that begins with the first entry is a state, also of a member that joined and received none:
//!   alone, it needs no list of members but its own, and replays it ([`begin_with_log`]).

use raft_node::inspect;
use state_machine::command::{self, Change, Kind, MemberChange};
use wal::Wal;

use super::{BootstrapError, Established, log_options};
use crate::directory::Directory;
use crate::timed_fs::TimedFs;
use config::Settings;

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
    established: &Established,
    directory: &Directory,
) -> Result<Company, BootstrapError> {
    let Established { identity, recovery, .. } = established;
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

/// From here on the state of this member, which is alone, is what its log leads to from the first entry.
/// Before Raft adds an entry: a start that finds one more does not know that the member is alone.
pub fn begin_with_log(established: &mut Established, directory: &Directory) -> Result<(), BootstrapError> {
    established.identity.joined = false;
    Ok(established.identity.write(&directory.identity_path())?)
}

/// Ends the log of a member whose store is whole with the removal of all other members, which counts as
/// committed: Raft applies it before anything else.
pub fn force_alone(
    established: Established,
    directory: &Directory,
    fs: TimedFs,
) -> Result<Established, BootstrapError> {
    let Established { mut identity, mut log, recovery } = established;
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
    Ok(Established { identity, log, recovery })
}
