//! Sockets, and the protocols of the client port: gRPC over HTTP/2, and HTTP/1. Knows no
//! method.

pub mod listen; // listen sockets
pub mod socket; // an accepted socket with deadlines

pub use socket::Ends;

pub mod http2; // one HTTP/2 connection of a client

mod request_rules; // HTTP/1 validation like Go's net/http

mod http1; // one HTTP/1 connection

pub mod local; // calls to the services of this process

pub mod client_port; // gRPC and HTTP/1 on one address
pub mod metrics_port; // metrics and health on another
