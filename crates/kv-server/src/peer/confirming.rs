//! Confirmation of a member whose log is empty or imported: it queries all other voters concurrently, in
//! rounds with exponential backoff, and [`raft_node::Inquiry`] evaluates the responses.
//!
//! The membership may change before the member is confirmed. Responses with other voters do not count, and
//! the voters of an old membership may all be removed. A member that may lose its state then queries the
//! current membership, also from peers that were introduced since: the leader knows this member and dials it.

use std::sync::Arc;

use api::peer::{InquireRequest, InquireResponse};
use raft_node::{FirstState, Inbox, Inquiry, LogIndex, LogPosition, PeerState, Term};
use tokio::task::JoinSet;

use super::context::Context;
use super::link::{Backoff, REQUEST_TIMEOUT, dial, running_cluster};
use super::transport::Peers;
use data_dir::FirstMember;
use data_dir::bootstrap::RunningCluster;
use process::shutdown::Stop;

/// Rounds without a confirmation before it is logged: a first start of a whole cluster takes a few. Also the
/// number of rounds between two queries for a newer membership.
const QUIET_ROUNDS: usize = 8;

/// Origin of the membership of a member with an empty or an imported log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstList {
    /// A founder: the log starts with this membership.
    OfState,
    /// A joiner or an imported member. Other members of the cluster have another membership only if it has
    /// started, and then this member receives their state.
    Given,
}

/// Runs until this member is confirmed, or until `stop`. Returns immediately if it is not unconfirmed.
pub async fn confirm(peers: Arc<Peers>, inbox: Arc<dyn Inbox>, first: FirstList, stop: Stop) {
    let context = peers.context();
    if !inbox.is_unconfirmed() {
        return;
    }
    let Some((mut others, mut inquiry)) = asked_by(context, &*inbox) else { return };
    let (mut backoff, mut is_unlike) = (Backoff::new(), false);
    for round in 0.. {
        tokio::select! {
            done = ask_all(&peers, &others, &mut inquiry, &*inbox) => if done { return },
            () = stop.stopped() => return,
        }
        let unlike = inquiry.unlike().filter(|_| round >= QUIET_ROUNDS && !is_unlike);
        if let Some(other) = unlike {
            is_unlike = true;
            tracing::error!(
                member = format!("{other:x}"),
                "initial members have different states: this member joins when a majority has its state and, \
                 with an empty log, no other member has a store"
            );
        } else if round == QUIET_ROUNDS {
            let urls: Vec<String> = others.iter().flat_map(|member| peers.urls(member.id)).collect();
            tracing::warn!(
                asked = ?urls,
                responses = inquiry.answers(),
                voters = others.len(),
                mismatches = inquiry.mismatches(),
                "waiting for a majority of peers, with the same voters, before joining"
            );
        }
        let is_doubtful = inquiry.mismatches() > 0 || round % QUIET_ROUNDS == QUIET_ROUNDS - 1;
        if first == FirstList::Given && is_doubtful && take_newer_list(&peers, &*inbox).await {
            let Some(anew) = asked_by(context, &*inbox) else { return };
            (others, inquiry) = anew;
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.pause(rand::random())) => {}
            () = stop.stopped() => return,
        }
    }
}

/// Returns the members to query, and an inquiry with the current voters. None without other members.
fn asked_by(context: &Context, inbox: &dyn Inbox) -> Option<(Vec<FirstMember>, Inquiry)> {
    let mut others = context.roster.others();
    others.retain(|member| !member.is_learner && !member.peer_urls.is_empty());
    let own = context.identity.member_id;
    let mut voters: Vec<u64> = others.iter().map(|member| member.id).collect();
    voters.extend(Some(own).filter(|_| !context.roster.is_learner()));
    // An unconfirmed member has no known committed entry except the one at which its log starts.
    let first = FirstState::of(inbox.commit(), context.identity.imported);
    let has_term = inbox.start().has_term;
    (!others.is_empty()).then(|| (others, Inquiry::new(own, &voters, first).with_term(has_term)))
}

/// Queries the current membership. Returns whether it differs from the one that this member was started with,
/// and is now in use. A membership without another voter comes from a member that lags, and is ignored.
async fn take_newer_list(peers: &Peers, inbox: &dyn Inbox) -> bool {
    let (identity, roster) = (&peers.context().identity, &peers.context().roster);
    let is_newer = |running: &RunningCluster| {
        let members = &running.members;
        running.has(identity)
            && *members != *roster.members()
            && has_other_voters(members, identity.member_id)
    };
    let running = running_cluster(&peers.context().dialer, &peers.all_urls(), is_newer).await;
    let Some(running) = running.filter(is_newer) else { return false };
    tracing::info!(members = running.members.len(), "membership changed since this member was started");
    peers.set_members(running.members);
    inbox.peer_membership(roster.membership());
    true
}

fn has_other_voters(members: &[FirstMember], own: u64) -> bool {
    members.iter().any(|member| member.id != own && !member.is_learner)
}

/// Runs one round. Returns whether this member was confirmed.
async fn ask_all(peers: &Peers, others: &[FirstMember], inquiry: &mut Inquiry, inbox: &dyn Inbox) -> bool {
    inquiry.ask_again();
    let mut asking = JoinSet::new();
    for member in others {
        let (context, to, urls) = (peers.context().clone(), member.id, peers.urls(member.id));
        asking.spawn(async move {
            for url in urls {
                if let Ok(Some(answer)) = tokio::time::timeout(REQUEST_TIMEOUT, ask(&context, to, &url)).await
                {
                    return Some((to, answer));
                }
            }
            None
        });
    }
    while let Some(asked) = asking.join_next().await {
        let Ok(Some((peer, (answer, imported)))) = asked else { continue };
        inquiry.note(peer, answer, imported);
        if let Some(confirmation) = inquiry.confirmation() {
            inbox.confirm(confirmation);
            return true;
        }
    }
    false
}

/// Returns the response of a member, and the digest of its imported store.
async fn ask(context: &Context, to: u64, url: &str) -> Option<(PeerState, u64)> {
    let mut client = dial(&context.dialer, url).await.ok()?;
    let request = InquireRequest { hello: Some(context.hello(to)) };
    let response = client.inquire(request).await.ok()?.into_inner();
    Some((peer_state(&response), response.imported))
}

/// An earlier version sends no field after `imported`: without a term it has not started.
fn peer_state(response: &InquireResponse) -> PeerState {
    let InquireResponse { term, last_index, is_leader, is_held, ref voters, is_founder, uncommitted, .. } =
        *response;
    let start = (term == 0).then(|| LogPosition::new(last_index, 0));
    PeerState {
        term: Term(term),
        last_index: LogIndex(last_index),
        is_leader,
        is_held,
        voters: voters.clone(),
        uncommitted: uncommitted.map(|end| LogPosition::new(end.index, end.term)).or(start),
        is_founder,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_a_member_that_lags_is_not_taken() {
        let list = |ids: &[(u64, bool)]| -> Vec<FirstMember> {
            let member =
                |&(id, is_learner)| FirstMember { id, is_learner, name: String::new(), peer_urls: vec![] };
            ids.iter().map(member).collect()
        };
        for (members, is_taken) in [
            (list(&[(2, false)]), false),
            (list(&[(2, false), (5, true)]), false),
            (list(&[(2, false), (3, false), (5, true)]), true),
            (list(&[(2, true), (3, false)]), true),
        ] {
            assert_eq!(has_other_voters(&members, 2), is_taken, "{members:?}");
        }
    }
}
