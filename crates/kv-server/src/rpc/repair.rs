//! Re-seeding: a member with a corrupt state copies the leader's.
//!
//! * Only a member named by a CORRUPT alarm discards its state. It is fenced, so clients do not see the
//!   state change.
//! * It retains its log and its votes, and continues to acknowledge entries. So the quorum is preserved.
//! * The alarm remains until an operator clears it: `kvctl member reseed` does both.

use api::kvserver::repair_server::Repair as RepairMethods;
use api::kvserver::{ReseedRequest, ReseedResponse};
use tonic::{Request, Response, Status};

use super::guard::ServedCall;
use crate::member::{Member, give_up_leadership};

/// The methods of the service, for one call.
pub struct Repair(pub ServedCall);

#[tonic::async_trait]
impl RepairMethods for Repair {
    async fn reseed(&self, request: Request<ReseedRequest>) -> Result<Response<ReseedResponse>, Status> {
        let member = &self.0.member;
        let wanted = request.get_ref().member_id;
        if wanted != member.ids.member {
            return Err(grpc_errors::not_this_member(member.ids.member, wanted));
        }
        if !member.fence.is_up() {
            return Err(grpc_errors::not_corrupt(wanted));
        }
        let installed = member.fence.installed().0;
        if installed == 0 {
            if leads(member) {
                give_up_leadership(member).await;
            }
            if leads(member) {
                return Err(grpc_errors::leads_alone(wanted));
            }
            member.raft.reseed();
        }
        Ok(Response::new(ReseedResponse { installed }))
    }
}

fn leads(member: &Member) -> bool {
    member.status().leader == Some(member.ids.member)
}
