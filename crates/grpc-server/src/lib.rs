//! Sockets, and what is spoken on the client port. Knows nothing of what a method means.

pub mod methods; // the table of methods

pub mod listen; // sockets that others dial
pub mod socket; // one of them, with deadlines

pub use socket::Ends;

pub mod http2; // one HTTP/2 connection of a client

mod request_rules; // what Go refuses of HTTP/1

mod http1; // one HTTP/1 connection

pub mod local; // calls to the services of this process

pub mod client_port; // gRPC and HTTP/1 on one address
pub mod metrics_port; // metrics and health on another
