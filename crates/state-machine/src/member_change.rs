//! Membership changes: add, remove, promote, update peer URLs, or remove all but one member.
//!
//! * Applied only from an entry for membership changes ([`crate::EtcdMachine::apply_change`]), so
//!   each change is validated against a membership that includes all previous changes.
//! * Errors are etcd's and depend only on the membership, so they are equal on every member.
//! * The ids of removed members are stored permanently and cannot be reused.
//! * The last voter cannot be removed.
//!
//! Whether enough members are running is checked by the proposer, and by the leader when it
//! processes the change ([`has_enough_started`]). Apply must not check it, because members of older
//! versions would not.

use api::Error;
use api::command::{Command, MemberAdd, MemberChange, command::Kind, member_change::Change};
use api::etcdserverpb::Member;
use mvcc::{ITEM_BYTES_MAX, Store, Writer};
use prost::Message;

use crate::failure::ApplyError;
use crate::lineage;
use crate::members;

/// Item prefix of removed members, followed by the id as eight bytes, big endian. The value is
/// empty.
const REMOVED_PREFIX: &[u8] = b"member-removed/";

pub fn is_removed(store: &Store, id: u64) -> bool {
    store.item(&removed_item(id)).is_some()
}

/// Returns the member that a command removes, if it is such a command. Apply may reject it.
pub fn removed_by(command: &[u8]) -> Option<u64> {
    match Command::decode(command).ok()?.kind? {
        Kind::MemberChange(MemberChange { change: Some(Change::Remove(id)), .. }) => Some(id),
        _ => None,
    }
}

/// Reports whether a change preserves this set of voters, applied or rejected. False for other
/// commands.
pub fn keeps_voters(command: &[u8], voters: &[u64]) -> bool {
    let Ok(Command { kind: Some(Kind::MemberChange(MemberChange { change: Some(change), .. })), .. }) =
        Command::decode(command)
    else {
        return false;
    };
    match change {
        Change::Add(add) => voters.contains(&add.id) != add.is_learner,
        Change::Promote(id) => voters.contains(&id),
        Change::Remove(id) => !voters.contains(&id),
        Change::Update(_) => true,
        Change::Retain(id) => voters == [id],
    }
}

/// Reports whether enough of `members` have started to make a change, if its command requires that:
/// etcd's rules for `--strict-reconfig-check`. A member has started once it has published its name.
/// True for other commands.
pub fn has_enough_started(command: &[u8], members: &[Member]) -> bool {
    let Ok(Command { kind: Some(Kind::MemberChange(MemberChange { change, is_strict: true })), .. }) =
        Command::decode(command)
    else {
        return true;
    };
    let voters = || members.iter().filter(|member| !member.is_learner);
    let started = |without: Option<u64>| {
        voters().filter(|voter| Some(voter.id) != without && !voter.name.is_empty()).count()
    };
    let (count, all_started) = (voters().count(), started(None));
    match change {
        Some(Change::Add(add)) => {
            add.is_learner || (count == 1 && all_started == 1) || all_started >= quorum(count + 1)
        }
        // The promoted member counts, as started.
        Some(Change::Promote(_)) => all_started + 1 >= quorum(count + 1),
        Some(Change::Remove(id)) => {
            let is_voter = voters().any(|voter| voter.id == id);
            !is_voter || started(Some(id)) >= quorum(count - 1)
        }
        Some(Change::Update(_) | Change::Retain(_)) | None => true,
    }
}

fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

fn removed_item(id: u64) -> Vec<u8> {
    [REMOVED_PREFIX, &id.to_be_bytes()].concat()
}

pub(crate) fn apply(
    writer: &mut Writer,
    request: MemberChange,
) -> Result<Result<Vec<Member>, Error>, ApplyError> {
    let known = members::list(writer.store())?;
    let Some(change) = request.change else { return Ok(Err(Error::NotCapable)) };
    match judge(writer.store(), &known, change) {
        Ok(ChangeEffect::Keep(member)) => members::store(writer, &member),
        Ok(ChangeEffect::Remove(id)) => remove(writer, id),
        Ok(ChangeEffect::Retain(member)) => {
            known.iter().filter(|other| other.id != member.id).for_each(|other| remove(writer, other.id));
            members::store(writer, &member);
            lineage::end(writer)?;
        }
        Err(refusal) => return Ok(Err(refusal)),
    }
    members::list(writer.store()).map(Ok)
}

fn remove(writer: &mut Writer, id: u64) {
    writer.set_item(&members::item(id), None);
    writer.set_item(&removed_item(id), Some(b""));
}

enum ChangeEffect {
    /// Add this member, or replace the one with this id.
    Keep(Member),
    Remove(u64),
    Retain(Member),
}

fn judge(store: &Store, known: &[Member], change: Change) -> Result<ChangeEffect, Error> {
    let id = match &change {
        Change::Add(add) => add.id,
        Change::Remove(id) | Change::Promote(id) | Change::Retain(id) => *id,
        Change::Update(update) => update.id,
    };
    if id == 0 || is_removed(store, id) {
        return Err(Error::MemberNotFound);
    }
    let found = known.iter().find(|member| member.id == id);
    let kept = |member: Member| {
        let bytes = members::item(id).len() + member.encoded_len();
        if bytes > ITEM_BYTES_MAX { Err(Error::RequestTooLarge) } else { Ok(ChangeEffect::Keep(member)) }
    };
    match change {
        Change::Add(_) if found.is_some() => Err(Error::MemberExist),
        Change::Add(add) => added(known, add).and_then(kept),
        Change::Remove(_) => {
            let removed = found.ok_or(Error::MemberNotFound)?;
            let others = known.iter().filter(|member| !member.is_learner && member.id != id).count();
            // Without a voter no entry would ever be committed.
            if !removed.is_learner && others == 0 {
                return Err(Error::MemberNotEnoughStarted);
            }
            Ok(ChangeEffect::Remove(id))
        }
        Change::Promote(_) => {
            let learner = found.ok_or(Error::MemberNotFound)?;
            if !learner.is_learner {
                return Err(Error::MemberNotLearner);
            }
            kept(Member { is_learner: false, ..learner.clone() })
        }
        Change::Retain(_) => {
            let member = found.ok_or(Error::MemberNotFound)?;
            Ok(ChangeEffect::Retain(Member { is_learner: false, ..member.clone() }))
        }
        Change::Update(update) => {
            let member = found.ok_or(Error::MemberNotFound)?;
            refuse_taken_urls(known, id, &update.peer_urls)?;
            kept(Member { peer_ur_ls: update.peer_urls, ..member.clone() })
        }
    }
}

fn added(known: &[Member], add: MemberAdd) -> Result<Member, Error> {
    refuse_taken_urls(known, add.id, &add.peer_urls)?;
    let learners = known.iter().filter(|member| member.is_learner).count() as u64;
    if add.is_learner && learners >= add.learners_max {
        return Err(Error::TooManyLearners);
    }
    Ok(Member { id: add.id, peer_ur_ls: add.peer_urls, is_learner: add.is_learner, ..Member::default() })
}

fn refuse_taken_urls(known: &[Member], id: u64, urls: &[String]) -> Result<(), Error> {
    let others = known.iter().filter(|member| member.id != id);
    let is_taken = others.flat_map(|member| &member.peer_ur_ls).any(|url| urls.contains(url));
    if is_taken { Err(Error::PeerURLExist) } else { Ok(()) }
}

#[cfg(test)]
#[path = "member_change_tests.rs"]
mod tests;
