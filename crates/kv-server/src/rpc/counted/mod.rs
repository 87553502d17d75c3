//! Counts gRPC calls, wrapped around what answers them.

mod hot; // calls of the connection's task
mod streams; // streams of the connection's task

mod services; // calls that tonic answers

pub(crate) use hot::CountedHot;
pub(crate) use services::CountedServices;
pub(crate) use streams::CountedStreams;
