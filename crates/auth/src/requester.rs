//! The sender of a request: its connection, and the identity in its headers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use state_machine::Session;

use super::signed::SignedToken;
use super::turns::network;
use admission::ClientId;

/// The sender of a request. Its permissions are those of the [`Caller`](super::Caller) that
/// [`Auth::caller`](super::Auth::caller) returns for it.
#[derive(Clone, Debug, Default)]
pub struct Requester {
    /// The connection. Its quota key is the user's, if there is an authenticated one.
    pub connection: Connection,
    pub identity: Identity,
}

impl Requester {
    /// Returns the key of the sender for quotas.
    pub fn client(&self) -> ClientId {
        self.connection.client
    }

    /// Returns the authenticated user, as a key for quotas.
    pub fn user(&self) -> Option<u64> {
        matches!(self.identity, Identity::Session(_) | Identity::Signed(_)).then_some(self.client().caller)
    }

    /// Returns the address without its port.
    pub fn ip(&self) -> Option<IpAddr> {
        self.connection.address.map(|address| address.ip())
    }
}

/// Properties of a connection: its number, its address, and the user named by its certificate.
/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connection {
    pub client: ClientId,
    pub address: Option<SocketAddr>,
    /// User of calls without a token.
    pub certificate: Option<Arc<Session>>,
    /// Largest response that its transport can deliver. A delete with a larger one is rejected
    /// before it is executed.
    pub answer_bytes_max: usize,
}

impl Default for Connection {
    fn default() -> Connection {
        let client = ClientId::default();
        Connection { client, address: None, certificate: None, answer_bytes_max: usize::MAX }
    }
}

impl Connection {
    /// Returns a connection with this number. A non-empty common name of the certificate is the
    /// user's name, if certificates name users.
    pub fn new(number: u64, address: Option<SocketAddr>, common_name: Option<String>) -> Connection {
        let client = ClientId { caller: caller_of(address.map(|address| address.ip())), connection: number };
        let certificate =
            common_name.filter(|name| !name.is_empty()).map(|name| Arc::new(Session::of_user(name)));
        Connection { client, address, certificate, ..Connection::default() }
    }

    /// Returns the connection for calls through the gateway. Their certificate belongs to the
    /// forwarding program and does not authenticate the user, as in etcd.
    pub fn without_certificate(&self) -> Connection {
        Connection { certificate: None, ..self.clone() }
    }
}

/// Identity in the headers of a request, or in the certificate of its connection.
#[derive(Clone, Debug, Default)]
pub enum Identity {
    /// No token, or auth was disabled when the request arrived.
    #[default]
    None,
    /// A token stored on this member, or a certificate.
    Session(Arc<Session>),
    Signed(Arc<SignedToken>),
    /// A token that is unknown to this member, possibly not yet applied.
    Unknown(Box<UnknownToken>),
    /// A token that cannot become valid.
    Invalid,
}

/// Unknown token. The Debug output omits it.
#[derive(Clone)]
pub struct UnknownToken(pub(super) String);

impl std::fmt::Debug for UnknownToken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a token")
    }
}

impl UnknownToken {
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Returns the quota key of calls without a user: their network. All Unix sockets share a key.
pub fn caller_of(address: Option<IpAddr>) -> u64 {
    match address.map(network) {
        Some(IpAddr::V4(address)) => u64::from(address.to_bits()),
        Some(IpAddr::V6(address)) => (address.to_bits() >> 64) as u64,
        None => 1 << 32, // No address of IPv4, and an unassigned one of IPv6.
    }
}
