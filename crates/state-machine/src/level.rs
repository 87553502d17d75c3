//! The level of commands: what every member of the cluster understands.
//!
//! ```text
//!   hello of each member ─announced─▶ leader ─RaiseLevel─▶ log ─apply─▶ item of the store ─▶ proposals
//! ```
//!
//! * A command of a level is proposed only when the cluster has reached that level. It never falls.
//! * A version that knows less than the cluster's level neither opens its state nor applies the raise.
//! * An older version announces nothing, and has level 0.
//!
//! A new field or kind of command: the next level, its row in [`needed`], and `OWN`. A new rule of apply:
//! `if machine.level().get() >= CommandLevel::…`.

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

/// The item's value is the level as four bytes, big endian. It exists from level 1 on.
const ITEM: &[u8] = b"command-level";

/// What a version understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandLevel(pub u32);

impl CommandLevel {
    /// Levels themselves.
    pub const LEVELS: CommandLevel = CommandLevel(1);
    /// The alarm CORRUPT of few members stops no change: see `alarms`.
    pub const CORRUPT_OF_FEW: CommandLevel = CommandLevel(1);
    /// A raise gives the history an id.
    pub const HISTORIES: CommandLevel = CommandLevel(2);
    /// What this version understands.
    pub const OWN: CommandLevel = CommandLevel::HISTORIES;
}

/// The level that the cluster must have reached before a member proposes this.
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
        // What the members have announced decides: see `raise`.
        Kind::RaiseLevel(_) => CommandLevel(0),
    }
}

/// The level that the cluster has reached, for any thread. Apply sets it.
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

/// Refuses a version that knows less than is used.
pub fn check(known: CommandLevel, used: CommandLevel) -> Result<(), TooOld> {
    if known >= used { Ok(()) } else { Err(TooOld { known: known.0, used: used.0 }) }
}

/// The raise that a leader proposes, if every member has announced a higher level than the cluster's, or if
/// the history needs an id. `announced`: of a member that answers at present, this one included.
/// `history`: random, if the history has no id; else 0.
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

/// The raise to a level, which may be the cluster's: for a member that missed it.
pub fn raise_to(level: CommandLevel, members: &[Member], history: u64) -> Kind {
    let members = members.iter().map(|member| member.id).collect();
    Kind::RaiseLevel(RaiseLevel { level: level.0, members, history })
}

/// The level in a store.
pub fn of(store: &Store) -> Result<CommandLevel, ApplyError> {
    let Some(value) = store.item(ITEM) else { return Ok(CommandLevel(0)) };
    let broken = |_| ApplyError::Item { item: ITEM.to_vec(), reason: "not a level of commands" };
    Ok(CommandLevel(u32::from_be_bytes(value[..].try_into().map_err(broken)?)))
}

/// As `of`, if this version knows it.
pub(crate) fn load(store: &Store, known: CommandLevel) -> Result<CommandLevel, ApplyError> {
    let level = of(store)?;
    check(known, level)?;
    Ok(level)
}

/// Records a raise, and returns the level after it. Refuses one that does not count all members.
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
    // The same level is written again: one that missed it writes it here, and all must change the same.
    if !base::mutant("raise-above-own-level") {
        check(known, level)?;
    }
    writer.set_item(ITEM, Some(&level.0.to_be_bytes()));
    if level >= CommandLevel::HISTORIES {
        lineage::name(writer, request.history)?;
    }
    Ok(Ok(level))
}

/// The item's value is the target version as text. It exists while a downgrade is enabled.
const DOWNGRADE: &[u8] = b"downgrade";
/// Three numbers of 64 bits and two dots take 59 bytes.
const VERSION_BYTES_MAX: usize = 64;

/// The target version of the downgrade that an operator has enabled: bookkeeping that clients see, without an
/// effect on the store. One item of the store, so it survives restarts and is equal on all members. Whether
/// a downgrade may begin is decided before consensus, as in etcd; apply records it.
///
/// The version that is enabled, such as `3.6.0`.
///
/// Errors: the item is not text.
pub fn downgrade_target(store: &Store) -> Result<Option<String>, ApplyError> {
    let broken = || ApplyError::Item { item: DOWNGRADE.to_vec(), reason: "not a version" };
    let text = |value: bytes::Bytes| String::from_utf8(value.to_vec()).map_err(|_| broken());
    store.item(DOWNGRADE).map(text).transpose()
}

/// Records a target version, or with an empty one the end of a downgrade. Refuses a version that is too long.
pub(crate) fn set_downgrade(writer: &mut Writer, request: &SetDowngrade) -> Result<(), Error> {
    let version = request.target_version.as_bytes();
    if version.len() > VERSION_BYTES_MAX {
        return Err(Error::RequestTooLarge);
    }
    writer.set_item(DOWNGRADE, (!version.is_empty()).then_some(version));
    Ok(())
}
