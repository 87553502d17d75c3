//! Where calls come from: the connection, its address, and the user whom its certificate names.

use std::net::SocketAddr;
use std::sync::Arc;

use state_machine::Session;

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
    /// A connection, and the common name of its certificate where that names a user. An empty name is none.
    pub fn new(client: ClientId, address: Option<SocketAddr>, common_name: Option<String>) -> Origin {
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
