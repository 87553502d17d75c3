//! The membership at start, from the store, the log and the identity, and the recipients of membership
//! changes.
//!
//! * The store's member list is authoritative. A member without a store queries its peers.
//! * A member that joined a running cluster has no state until it has received one, regardless of its log,
//!   unless it continues as the only member.
//! * The same applies to a member with an imported store if its cluster had already started without that
//!   store: see docs/decisions/0034.

use std::sync::Arc;

use api::etcdserverpb::Member as MemberEntry;
use api::peer::PeerMember;
use mvcc::Store;
use raft_node::inspect::StateSeen;
use raft_node::{ChangeCheck, LogSpan, StoreState};

use crate::member::{Roster, entries};
use crate::peer::{self, Peers};
use data_dir::bootstrap::{Company, IMPORTED_AT, MemberStart};
use data_dir::{Directory, OpenStoreError, OpenedStore, open_store};
use process::runtime::Runtimes;
use transport::tls::Dialer;

/// Opens the store that matches the opened log.
pub fn open_fitting_store(
    directory: &Directory,
    established: &MemberStart,
    company: Company,
) -> Result<OpenedStore, OpenStoreError> {
    let MemberStart { identity, recovery, .. } = established;
    let reader = established.log.reader();
    let term = |index| reader.term(index);
    let log = LogSpan { start: recovery.start.index, last: recovery.last.index, term: &term };
    let others = match company {
        // The log includes members that were added later, and excludes removed ones.
        Company::AsKnown => others_in_log(established).unwrap_or(identity.members.len().saturating_sub(1)),
        Company::Alone | Company::Forced => 0,
    };
    let others = if base::mutant("opens-as-if-alone") { 0 } else { others };
    let opened = open_store::open(directory, log, others)?;
    let begins_elsewhere = identity.joined && opened.is_empty() && company == Company::AsKnown;
    let is_replaced = opened.store.applied() == IMPORTED_AT && came_late(established);
    let is_lost = begins_elsewhere || (is_replaced && company == Company::AsKnown);
    let state = if is_lost { StoreState::Lost } else { opened.state };
    Ok(OpenedStore { state, ..opened })
}

fn raft_state(established: &MemberStart) -> Option<StateSeen> {
    raft_node::inspect::read_state(established.recovery.state.as_deref()?).ok()
}

/// Reports whether the cluster was already running when this member first participated.
fn came_late(established: &MemberStart) -> bool {
    raft_state(established).is_some_and(|state| state.came_late)
}

/// Returns the number of other members in that state.
fn others_in_log(established: &MemberStart) -> Option<usize> {
    let identity = &established.identity;
    let state = raft_state(established)?;
    let members = state.voters.iter().chain(&state.learners);
    Some(members.filter(|id| **id != identity.member_id).count())
}

/// Returns the members in the store. A member without a store queries its peers, and falls back to the
/// members given at its first start.
pub fn roster(
    runtimes: &Runtimes,
    dialer: &Dialer,
    established: &MemberStart,
    store: &Store,
    state: StoreState,
    company: Company,
) -> Result<Roster, state_machine::ApplyError> {
    let identity = &established.identity;
    let mut known = match state {
        StoreState::Whole => entries(state_machine::members(store)?),
        StoreState::Lost => {
            let running = runtimes.peers().block_on(peer::members_now(dialer, identity));
            running.unwrap_or_else(|| identity.members.clone())
        }
    };
    if company != Company::AsKnown {
        // Messages of removed members are ignored even before the removal is applied. The remaining member is
        // a voter. A store that starts with the log may not contain it yet.
        known.extend_from_slice(&identity.members);
        known.retain(|member| member.id == identity.member_id);
        known.truncate(1);
        known.iter_mut().for_each(|own| own.is_learner = false);
    }
    // A member that started alone has no peers to query.
    let lacks_others = state == StoreState::Lost
        && company == Company::AsKnown
        && others_in_log(established).is_some_and(|others| others > 0);
    let store = store.clone();
    let roster =
        Roster::new(identity.member_id, known, Box::new(move |id| state_machine::is_removed(&store, id)));
    Ok(if lacks_others { roster.lacking_others() } else { roster })
}

/// Returns a callback that updates the transport with the state machine's members.
pub fn on_members(peers: &Arc<Peers>, store: &Store) -> Box<dyn Fn() + Send + Sync> {
    let (peers, store) = (Arc::downgrade(peers), store.clone());
    Box::new(move || {
        // On an error here, apply fails as well and stops the member.
        if let (Some(peers), Ok(members)) = (peers.upgrade(), state_machine::members(&store)) {
            peers.set_members(entries(members));
        }
    })
}

/// Returns a check of membership changes against the state machine's members, for proposers that request it.
pub fn change_check(store: &Store) -> ChangeCheck {
    let store = store.clone();
    ChangeCheck::new(move |command| {
        let members = state_machine::members(&store).unwrap_or_default();
        let passes = state_machine::has_enough_started(command, &members);
        if !passes {
            tracing::warn!("membership change rejected: not enough started members");
        }
        passes
    })
}

/// Returns the members, for a starting member that requests them.
pub fn known_members(store: &Store) -> Vec<PeerMember> {
    let members = state_machine::members(store).unwrap_or_default();
    let entry = |member: MemberEntry| PeerMember {
        id: member.id,
        name: member.name,
        peer_urls: member.peer_ur_ls,
        client_urls: member.client_ur_ls,
        is_learner: member.is_learner,
    };
    members.into_iter().map(entry).collect()
}
