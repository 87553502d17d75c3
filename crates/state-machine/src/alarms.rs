//! Alarms: cluster-wide conditions that block some or all writes until an operator clears them.
//!
//! * An alarm is a pair of kind and member. It is stored as an item, so it survives restarts and is
//!   the same on all members.
//! * NOSPACE of any member rejects commands that would store data.
//! * CORRUPT is checked first. If the members without it are a majority of the voters, they
//!   continue, and each member with it is fenced by its server. Otherwise every change of keys and
//!   leases is rejected.
//! * Reads, alarm requests, lease renewals and the publication of members are never rejected.
//!
//! A put reads two flags. While CORRUPT is active, a change also reads the member list.

use std::collections::BTreeSet;

use api::Error;
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{AlarmMember, AlarmRequest, AlarmType, Member};
use bytes::Bytes;
use mvcc::{Store, Writer};

use crate::command::Kind;
use crate::failure::ApplyError;
use crate::kv::validate;
use crate::level::{self, CommandLevel};
use crate::member_change::is_removed;
use crate::members;

/// Item prefix, followed by the kind (4 bytes) and the member (8 bytes), both big endian. The value
/// is empty.
const PREFIX: &[u8] = b"alarm/";

/// Returns all active alarms, ordered by kind and member.
pub fn active(store: &Store) -> Result<Vec<AlarmMember>, ApplyError> {
    let items = store.items(PREFIX);
    items.iter().map(|(item, _)| parse(item)).collect()
}

pub fn active_in(items: &[(Bytes, Bytes)]) -> Result<Vec<AlarmMember>, ApplyError> {
    items.iter().filter(|(item, _)| item.starts_with(PREFIX)).map(|(item, _)| parse(item)).collect()
}

/// Returns the members with a CORRUPT alarm; 0 means the whole cluster.
pub fn corrupt_members(store: &Store) -> Result<BTreeSet<u64>, ApplyError> {
    let corrupt = active(store)?.into_iter().filter(|alarm| alarm.alarm == AlarmType::Corrupt as i32);
    Ok(corrupt.map(|alarm| alarm.member_id).collect())
}

/// Reports whether CORRUPT alarms block every change of keys and leases on all members.
pub fn corrupt_stops_changes(store: &Store) -> Result<bool, ApplyError> {
    let named = corrupt_members(store)?;
    Ok(!named.is_empty() && leaves_no_majority(store, &named)?)
}

/// Reports whether the voters without a CORRUPT alarm are no majority, or an alarm does not
/// identify a member. Removed members are ignored.
fn leaves_no_majority(store: &Store, named: &BTreeSet<u64>) -> Result<bool, ApplyError> {
    if level::of(store)? < CommandLevel::CORRUPT_OF_FEW {
        return Ok(true);
    }
    let members = members::list(store)?;
    let is_known = |id: &u64| members.iter().any(|member| member.id == *id) || is_removed(store, *id);
    let (named_voters, right): (Vec<&Member>, Vec<&Member>) =
        members.iter().filter(|member| !member.is_learner).partition(|voter| named.contains(&voter.id));
    let is_majority = right.len() > named_voters.len() || base::mutant("corrupt-without-a-majority");
    Ok(!is_majority || !named.iter().all(is_known))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ActiveAlarm {
    kind: i32,
    member: u64,
}

/// Active alarms, cached for apply.
#[derive(Debug)]
pub(crate) struct Alarms {
    active: BTreeSet<ActiveAlarm>,
    no_space: bool,
    corrupt: BTreeSet<u64>,
}

impl Alarms {
    pub fn load(store: &Store) -> Result<Self, ApplyError> {
        let active = active(store)?
            .into_iter()
            .map(|alarm| ActiveAlarm { kind: alarm.alarm, member: alarm.member_id })
            .collect();
        let mut alarms = Alarms { active, no_space: false, corrupt: BTreeSet::new() };
        alarms.refresh();
        Ok(alarms)
    }

    /// Rejects a command that is blocked by an active alarm.
    pub fn check(&self, store: &Store, kind: &Kind) -> Result<(), Error> {
        let (changes_keys, stores) = match kind {
            Kind::Put(_) => (true, true),
            Kind::Txn(request) => (true, self.no_space && validate::txn_cost(request) > 0),
            Kind::DeleteRange(_) | Kind::Compact(_) => (true, false),
            Kind::LeaseGrant(_) => (true, true),
            Kind::LeaseRevoke(_) | Kind::LeaseExpire(_) => (true, false),
            Kind::Alarm(_) | Kind::PublishMember(_) | Kind::LeaseRenew(_) | Kind::Auth(_) => (false, false),
            Kind::MemberChange(_) | Kind::SetDowngrade(_) | Kind::RaiseLevel(_) => (false, false),
        };
        // The items were valid when the machine was opened or installed, and apply has written them
        // since.
        let stops = || leaves_no_majority(store, &self.corrupt).unwrap_or(true);
        if changes_keys && !self.corrupt.is_empty() && stops() {
            return Err(Error::Corrupt);
        }
        if self.no_space && stores { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// Executes an alarm request and returns the affected alarms. An unknown action has no effect.
    pub fn apply(&mut self, writer: &mut Writer, request: &AlarmRequest) -> Vec<AlarmMember> {
        let alarm = ActiveAlarm { kind: request.alarm, member: request.member_id };
        match AlarmAction::try_from(request.action) {
            Ok(AlarmAction::Get) => self.of_kind(request.alarm),
            Ok(AlarmAction::Activate) if request.alarm == AlarmType::None as i32 => Vec::new(),
            Ok(AlarmAction::Activate) => {
                if self.active.insert(alarm) {
                    writer.set_item(&item(alarm), Some(b""));
                    self.refresh();
                }
                vec![wire(alarm)]
            }
            Ok(AlarmAction::Deactivate) if self.active.remove(&alarm) => {
                writer.set_item(&item(alarm), None);
                self.refresh();
                vec![wire(alarm)]
            }
            Ok(AlarmAction::Deactivate) | Err(_) => Vec::new(),
        }
    }

    pub fn is_corrupt(&self, member: u64) -> bool {
        self.corrupt.contains(&member)
    }

    fn of_kind(&self, kind: i32) -> Vec<AlarmMember> {
        let all = kind == AlarmType::None as i32;
        self.active.iter().filter(|alarm| all || alarm.kind == kind).copied().map(wire).collect()
    }

    fn refresh(&mut self) {
        let of_kind = |kind: AlarmType| self.active.iter().filter(move |alarm| alarm.kind == kind as i32);
        self.no_space = of_kind(AlarmType::Nospace).next().is_some();
        self.corrupt = of_kind(AlarmType::Corrupt).map(|alarm| alarm.member).collect();
    }
}

fn wire(alarm: ActiveAlarm) -> AlarmMember {
    AlarmMember { member_id: alarm.member, alarm: alarm.kind }
}

fn item(alarm: ActiveAlarm) -> Vec<u8> {
    let item = [PREFIX, &alarm.kind.to_be_bytes(), &alarm.member.to_be_bytes()].concat();
    assert_eq!(parse(&item).ok(), Some(wire(alarm)), "an alarm's item must read back as that alarm");
    item
}

fn parse(item: &[u8]) -> Result<AlarmMember, ApplyError> {
    let broken = || ApplyError::Item { item: item.to_vec(), reason: "not the name of an alarm" };
    let name = item.strip_prefix(PREFIX).ok_or_else(broken)?;
    let (kind, member) = name.split_first_chunk::<4>().ok_or_else(broken)?;
    let member = member.try_into().map_err(|_| broken())?;
    let alarm = ActiveAlarm { kind: i32::from_be_bytes(*kind), member: u64::from_be_bytes(member) };
    Ok(wire(alarm))
}
