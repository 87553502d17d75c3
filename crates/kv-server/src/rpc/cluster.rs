//! Cluster: who the members are. Changes of that are not built yet.

use std::sync::Arc;

use api::etcdserverpb::cluster_server::Cluster as ClusterMethods;
use api::etcdserverpb::{
    MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest,
    MemberUpdateResponse,
};
use tonic::{Request, Response, Status};

use super::{guard, header};
use crate::errors;
use crate::member::Member;

const SERVICE: &str = "etcdserverpb.Cluster";

/// The methods as tonic calls them.
pub struct Cluster(pub Arc<Member>);

#[tonic::async_trait]
impl ClusterMethods for Cluster {
    async fn member_list(
        &self,
        request: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        guard::check(&self.0, request.metadata().as_ref()).map_err(errors::refused)?;
        if request.into_inner().linearizable {
            self.0.read_point().await.map_err(errors::read_point)?;
        }
        let members = self.0.members().map_err(errors::record)?;
        Ok(Response::new(MemberListResponse { header: header::without_revision(&self.0), members }))
    }

    async fn member_add(&self, _: Request<MemberAddRequest>) -> Result<Response<MemberAddResponse>, Status> {
        Err(errors::not_built(SERVICE, "MemberAdd"))
    }

    async fn member_remove(
        &self,
        _: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        Err(errors::not_built(SERVICE, "MemberRemove"))
    }

    async fn member_update(
        &self,
        _: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        Err(errors::not_built(SERVICE, "MemberUpdate"))
    }

    async fn member_promote(
        &self,
        _: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        Err(errors::not_built(SERVICE, "MemberPromote"))
    }
}
