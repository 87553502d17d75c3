//! grpc.health.v1: is this process willing to serve? Whether the cluster is healthy is `/health`'s question.
//!
//! There is one service, the empty name, and it serves for as long as the port is open: as etcd has it.

use std::collections::HashMap;
use std::pin::Pin;

use api::health::health_check_response::ServingStatus;
use api::health::health_server::Health as HealthMethods;
use api::health::{HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse};
use futures_util::stream::{self, Stream, StreamExt};
use tonic::{Request, Response, Status};

/// The methods of the service.
pub struct Health;

fn serving(service: &str) -> ServingStatus {
    if service.is_empty() { ServingStatus::Serving } else { ServingStatus::ServiceUnknown }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl HealthMethods for Health {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match serving(&request.get_ref().service) {
            ServingStatus::ServiceUnknown => Err(grpc_errors::unknown_health_service()),
            status => Ok(Response::new(answer(status))),
        }
    }

    async fn list(
        &self,
        _request: Request<HealthListRequest>,
    ) -> Result<Response<HealthListResponse>, Status> {
        let statuses = HashMap::from([(String::new(), answer(serving("")))]);
        Ok(Response::new(HealthListResponse { statuses }))
    }

    /// Sends the status once; it never changes, so the stream then stays open without messages.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let status = answer(serving(&request.get_ref().service));
        let stream = stream::iter([Ok(status)]).chain(stream::pending());
        Ok(Response::new(Box::pin(stream)))
    }
}
