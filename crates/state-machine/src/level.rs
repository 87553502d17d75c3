//! Command level: the commands that every member of the cluster supports.
//!
//! ```text
//!   hello of each member ─announced─▶ leader ─RaiseLevel─▶ log ─apply─▶ item of the store ─▶ proposals
//! ```
//!
//! * A command is proposed only when the cluster has reached its level. The level never decreases.
//! * A version that supports less than the cluster's level neither opens its state nor applies the
//!   raise.
//! * An older version does not announce a level, and has level 0.
//!
//! A new field or kind of command requires the next level, a row in [`needed`], and an update of
//! `OWN`; a new rule in apply requires `if machine.level().get() >= CommandLevel::…`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use api::Error;
use api::command::{RaiseLevel, SetDowngrade};
use api::etcdserverpb::Member;
use mvcc::{Store, Writer};

use crate::command::Kind;
use crate::failure::{ApplyError, TooOld};
use crate::lineage;
use crate::members;

/// Item of the level, as four bytes, big endian. It exists from level 1 on.
const ITEM: &[u8] = b"command-level";

/// Level of the commands that a version supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandLevel(pub u32);

impl CommandLevel {
    pub const LEVELS: CommandLevel = CommandLevel(1);
    /// CORRUPT alarms of a minority do not block changes: see `alarms`.
    pub const CORRUPT_OF_FEW: CommandLevel = CommandLevel(1);
    /// A raise assigns the history an id.
    pub const HISTORIES: CommandLevel = CommandLevel(2);
    pub const OWN: CommandLevel = CommandLevel::HISTORIES;
}

/// Returns the cluster level that is required to propose a command.
pub fn needed(kind: &Kind) -> CommandLevel {
    match kind {
        Kind::Put(_) | Kind::DeleteRange(_) | Kind::Txn(_) | Kind::Compact(_) | Kind::Alarm(_) => {
            CommandLevel(0)
        }
        Kind::LeaseGrant(_) | Kind::LeaseRevoke(_) | Kind::LeaseExpire(_) | Kind::LeaseRenew(_) => {
            CommandLevel(0)
        }
        Kind::PublishMember(_) | Kind::MemberChange(_) | Kind::Auth(_) | Kind::SetDowngrade(_) => {
            CommandLevel(0)
        }
        // Depends on the levels announced by the members: see `raise`.
        Kind::RaiseLevel(_) => CommandLevel(0),
    }
}

/// Level of the cluster, for any thread. Set by apply.
#[derive(Clone, Debug, Default)]
pub struct ClusterLevel(Arc<AtomicU32>);

impl ClusterLevel {
    pub fn at(level: CommandLevel) -> ClusterLevel {
        ClusterLevel(Arc::new(AtomicU32::new(level.0)))
    }

    pub fn get(&self) -> CommandLevel {
        CommandLevel(self.0.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, level: CommandLevel) {
        self.0.store(level.0, Ordering::Release);
    }
}

pub fn check(known: CommandLevel, used: CommandLevel) -> Result<(), TooOld> {
    if known >= used { Ok(()) } else { Err(TooOld { known: known.0, used: used.0 }) }
}

/// Returns the raise that a leader should propose, if every member has announced a higher level
/// than the cluster's, or if the history needs an id. `announced`: level of a reachable member,
/// including this one. `history`: random if the history has no id, otherwise 0.
pub fn raise(
    cluster: CommandLevel,
    members: &[Member],
    announced: impl Fn(u64) -> Option<CommandLevel>,
    history: u64,
) -> Option<Kind> {
    let levels: Option<Vec<CommandLevel>> = members.iter().map(|member| announced(member.id)).collect();
    let levels = levels?.into_iter();
    let level = if base::mutant("level-of-the-newest") { levels.max()? } else { levels.min()? };
    let is_needed = level > cluster || (history != 0 && level >= CommandLevel::HISTORIES);
    is_needed.then(|| raise_to(level, members, history))
}

/// Verification of announced levels before a raise: an announcement may stem from a process that was replaced
/// by an older version since, so each member is queried.
#[derive(Debug)]
pub struct RaiseInquiry {
    cluster: CommandLevel,
    members: Vec<Member>,
    /// Levels that members returned to this inquiry.
    known: BTreeMap<u64, CommandLevel>,
    history: u64,
}

impl RaiseInquiry {
    /// Begins an inquiry of member `own`, if the announced levels require a raise; see [`raise`].
    pub fn begin(
        own: u64,
        cluster: CommandLevel,
        members: Vec<Member>,
        announced: impl Fn(u64) -> Option<CommandLevel>,
        history: u64,
    ) -> Option<RaiseInquiry> {
        raise(cluster, &members, &announced, history)?;
        let is_known = |id: &u64| *id == own || base::mutant("level-of-the-last-hello");
        let ids = members.iter().map(|member| member.id).filter(is_known);
        let known = ids.filter_map(|id| Some((id, announced(id)?))).collect();
        Some(RaiseInquiry { cluster, members, known, history })
    }

    /// Returns the members that have not returned their level.
    pub fn unasked(&self) -> impl Iterator<Item = u64> + '_ {
        self.members.iter().map(|member| member.id).filter(|id| !self.known.contains_key(id))
    }

    pub fn note(&mut self, member: u64, level: CommandLevel) {
        self.known.insert(member, level);
    }

    /// Returns the raise, if the levels of all members require one.
    pub fn raise(&self) -> Option<Kind> {
        raise(self.cluster, &self.members, |id| self.known.get(&id).copied(), self.history)
    }
}

/// Returns the raise to a level, which may be the cluster's current one, for a member that missed
/// it.
pub fn raise_to(level: CommandLevel, members: &[Member], history: u64) -> Kind {
    let members = members.iter().map(|member| member.id).collect();
    Kind::RaiseLevel(RaiseLevel { level: level.0, members, history })
}

pub fn of(store: &Store) -> Result<CommandLevel, ApplyError> {
    let Some(value) = store.item(ITEM) else { return Ok(CommandLevel(0)) };
    let broken = |_| ApplyError::Item { item: ITEM.to_vec(), reason: "not a level of commands" };
    Ok(CommandLevel(u32::from_be_bytes(value[..].try_into().map_err(broken)?)))
}

/// Reads the level from a store, if this version supports it.
pub(crate) fn load(store: &Store, known: CommandLevel) -> Result<CommandLevel, ApplyError> {
    let level = of(store)?;
    check(known, level)?;
    Ok(level)
}

/// Records a raise, and returns the resulting level. Rejects a raise that does not list all
/// members.
pub(crate) fn apply(
    writer: &mut Writer,
    cluster: CommandLevel,
    known: CommandLevel,
    request: &RaiseLevel,
) -> Result<Result<CommandLevel, Error>, ApplyError> {
    let level = CommandLevel(request.level);
    let is_counted = |member: &Member| request.members.contains(&member.id);
    if !members::list(writer.store())?.iter().all(is_counted) {
        return Ok(Err(Error::NotCapable));
    }
    if level < cluster {
        return Ok(Ok(cluster));
    }
    // Write an unchanged level again: a member that missed it writes it here, and all members must
    // write the same.
    if !base::mutant("raise-above-own-level") {
        check(known, level)?;
    }
    writer.set_item(ITEM, Some(&level.0.to_be_bytes()));
    if level >= CommandLevel::HISTORIES {
        lineage::name(writer, request.history)?;
    }
    Ok(Ok(level))
}

/// Item of the downgrade target version, as text. It exists while a downgrade is enabled.
const DOWNGRADE: &[u8] = b"downgrade";
/// Maximum length of a version. Three numbers of 64 bits and two dots take 59 bytes.
const VERSION_BYTES_MAX: usize = 64;

/// Returns the target version of the enabled downgrade, such as `3.6.0`.
///
/// The target is bookkeeping for clients without an effect on the store. It is an item of the
/// store, so it survives restarts and is equal on all members. Whether a downgrade is allowed is
/// decided before consensus, as in etcd; apply only records it.
///
/// Errors: the item is not text.
pub fn downgrade_target(store: &Store) -> Result<Option<String>, ApplyError> {
    let broken = || ApplyError::Item { item: DOWNGRADE.to_vec(), reason: "not a version" };
    let text = |value: bytes::Bytes| String::from_utf8(value.to_vec()).map_err(|_| broken());
    store.item(DOWNGRADE).map(text).transpose()
}

/// Records a target version; an empty one disables the downgrade. Rejects a version that is too
/// long.
pub(crate) fn set_downgrade(writer: &mut Writer, request: &SetDowngrade) -> Result<(), Error> {
    let version = request.target_version.as_bytes();
    if version.len() > VERSION_BYTES_MAX {
        return Err(Error::RequestTooLarge);
    }
    writer.set_item(DOWNGRADE, (!version.is_empty()).then_some(version));
    Ok(())
}
