//! grpc.health.v1: is this process willing to serve? Whether the cluster is healthy is `/health`'s question.
//!
//! There is one service, the empty name, and it serves for as long as the port is open: as etcd has it.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use api::health::health_check_response::ServingStatus;
use api::health::health_server::Health as HealthMethods;
use api::health::{HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse};
use futures_util::stream::{self, Stream, StreamExt};
use tonic::{Request, Response, Status};

use super::guard;
use crate::member::Member;

/// The methods as tonic calls them.
pub struct Health(pub Arc<Member>);

fn serving(service: &str) -> ServingStatus {
    if service.is_empty() { ServingStatus::Serving } else { ServingStatus::ServiceUnknown }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

impl Health {
    fn admit<T>(&self, request: Request<T>) -> Result<T, Status> {
        guard::check(&self.0, request.metadata().as_ref()).map_err(grpc_errors::refused)?;
        Ok(request.into_inner())
    }
}

#[tonic::async_trait]
impl HealthMethods for Health {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match serving(&self.admit(request)?.service) {
            ServingStatus::ServiceUnknown => Err(grpc_errors::unknown_health_service()),
            status => Ok(Response::new(answer(status))),
        }
    }

    async fn list(
        &self,
        request: Request<HealthListRequest>,
    ) -> Result<Response<HealthListResponse>, Status> {
        self.admit(request)?;
        let statuses = HashMap::from([(String::new(), answer(serving("")))]);
        Ok(Response::new(HealthListResponse { statuses }))
    }

    /// Sends the status once; it never changes, so the stream then stays open without messages.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let status = answer(serving(&self.admit(request)?.service));
        let stream = stream::iter([Ok(status)]).chain(stream::pending());
        Ok(Response::new(Box::pin(stream)))
    }
}
