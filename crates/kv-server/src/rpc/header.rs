//! ResponseHeader: who answers, at which revision and term.
//!
//! The state machine knows the revision only; ids and term are this member's and are filled in here. Cluster
//! answers carry no revision, and Defragment, MoveLeader and Snapshot carry no header at all.

use api::etcdserverpb::ResponseHeader;

use crate::member::Member;

/// Completes the header of a response. A revision that is not set becomes the store's newest.
pub fn fill(member: &Member, header: &mut Option<ResponseHeader>) {
    let header = header.get_or_insert_default();
    if header.revision == 0 {
        header.revision = member.store.revision();
    }
    identify(member, header);
}

/// A header of its own, at the store's newest revision.
pub fn newest(member: &Member) -> Option<ResponseHeader> {
    let mut header = None;
    fill(member, &mut header);
    header
}

/// The header of a Cluster answer.
pub fn without_revision(member: &Member) -> Option<ResponseHeader> {
    let mut header = ResponseHeader::default();
    identify(member, &mut header);
    Some(header)
}

fn identify(member: &Member, header: &mut ResponseHeader) {
    header.cluster_id = member.ids.cluster;
    header.member_id = member.ids.member;
    header.raft_term = member.status().term;
}
