//! Where calls come from: the connection, its address, and the user whom its certificate names.
//!
//! What is shared between clients is shared between callers: users, or addresses of calls without one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use state_machine::Session;

use super::turns::network;
use admission::ClientId;

/// What all calls of one connection have in common. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    pub client: ClientId,
    pub address: Option<SocketAddr>,
    /// The user of calls without a token.
    pub certificate: Option<Arc<Session>>,
}

impl Origin {
    /// A connection by its number, and the common name of its certificate where that names a user. An empty
    /// name is none.
    pub fn new(connection: u64, address: Option<SocketAddr>, common_name: Option<String>) -> Origin {
        let client = ClientId { caller: caller_of(address.map(|address| address.ip())), connection };
        let certificate =
            common_name.filter(|name| !name.is_empty()).map(|name| Arc::new(Session::of_user(name)));
        Origin { client, address, certificate }
    }

    /// The same for calls through the gateway: a program that passes on the requests of others has another
    /// certificate, so that the name in it is not used. As in etcd.
    pub fn without_certificate(&self) -> Origin {
        Origin { certificate: None, ..self.clone() }
    }
}

/// The caller of calls without a user: their network. All of Unix sockets are one.
pub fn caller_of(address: Option<IpAddr>) -> u64 {
    match address.map(network) {
        Some(IpAddr::V4(address)) => u64::from(address.to_bits()),
        Some(IpAddr::V6(address)) => (address.to_bits() >> 64) as u64,
        None => 1 << 32, // No address of IPv4, and an unassigned one of IPv6.
    }
}
