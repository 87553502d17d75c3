//! The members at start: what the store, the log and the identity say of them, and who hears of changes.
//!
//! * The store's list is the truth. A member without a store asks the others who is in the cluster.
//! * A member that joined a running cluster has no state before it has received one, however much its log
//!   holds, unless it is alone from now on.
//! * Nor has a member whose imported store is not that of its cluster, which had begun before: see
//!   docs/decisions/0034.

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

/// The store that belongs to the log just opened.
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
        // The log knows of members that came later, or are gone.
        Company::AsKnown => others_in_log(established).unwrap_or(identity.members.len().saturating_sub(1)),
        Company::Alone | Company::Forced => 0,
    };
    let opened = open_store::open(directory, log, others)?;
    let begins_elsewhere = identity.joined && opened.is_empty() && company == Company::AsKnown;
    let is_replaced = opened.store.applied() == IMPORTED_AT && came_late(established);
    let is_lost = begins_elsewhere || (is_replaced && company == Company::AsKnown);
    let state = if is_lost { StoreState::Lost } else { opened.state };
    Ok(OpenedStore { state, ..opened })
}

/// What Raft wrote last of its state.
fn raft_state(established: &MemberStart) -> Option<StateSeen> {
    raft_node::inspect::read_state(established.recovery.state.as_deref()?).ok()
}

/// Whether the cluster had begun when this member first took part.
fn came_late(established: &MemberStart) -> bool {
    raft_state(established).is_some_and(|state| state.came_late)
}

/// How many other members Raft had when it last wrote its state.
fn others_in_log(established: &MemberStart) -> Option<usize> {
    let identity = &established.identity;
    let state = raft_state(established)?;
    let members = state.voters.iter().chain(&state.learners);
    Some(members.filter(|id| **id != identity.member_id).count())
}

/// The members as the store has them. A member without a store asks the others, and falls back on what it was
/// given at its first start.
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
        // A removed member is not listened to, also before the removal is applied. The one that stays is a
        // voter. A store that begins with the log may not hold it yet.
        known.extend_from_slice(&identity.members);
        known.retain(|member| member.id == identity.member_id);
        known.truncate(1);
        known.iter_mut().for_each(|own| own.is_learner = false);
    }
    // A member that began alone knows of no one that it could ask.
    let lacks_others = state == StoreState::Lost
        && company == Company::AsKnown
        && others_in_log(established).is_some_and(|others| others > 0);
    let store = store.clone();
    let roster =
        Roster::new(identity.member_id, known, Box::new(move |id| state_machine::is_removed(&store, id)));
    Ok(if lacks_others { roster.lacking_others() } else { roster })
}

/// Brings the transport to the members that the machine has.
pub fn on_members(peers: &Arc<Peers>, store: &Store) -> Box<dyn Fn() + Send + Sync> {
    let (peers, store) = (Arc::downgrade(peers), store.clone());
    Box::new(move || {
        // A list that cannot be read ends the member where it is read to apply.
        if let (Some(peers), Ok(members)) = (peers.upgrade(), state_machine::members(&store)) {
            peers.set_members(entries(members));
        }
    })
}

/// Judges a change by the members that the machine holds, if its proposer asks for that.
pub fn change_check(store: &Store) -> ChangeCheck {
    let store = store.clone();
    ChangeCheck::new(move |command| {
        let members = state_machine::members(&store).unwrap_or_default();
        let passes = state_machine::has_enough_started(command, &members);
        if !passes {
            tracing::warn!("a change of the members is refused: not enough members have started");
        }
        passes
    })
}

/// What a starting member may ask of us.
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
