//! Origin of calls, their authenticated users, and their permissions.
//!
//! Proposals of client commands and checks of reads require a [`Caller`], so authentication cannot
//! be skipped.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use api::Error;
use mvcc::Store;
use state_machine::{KeyAccess, Need, Session, UserGrants};

use super::turns::network;
use admission::ClientId;

/// Authenticated identity of a request.
#[derive(Clone, Debug)]
pub enum Caller {
    /// Auth is disabled, or the request is internal.
    Unchecked,
    /// Auth is enabled, and the request has no token.
    Unnamed,
    /// A user with its permissions at one auth revision. `revision` is the one to check against:
    /// for a signed token, the revision at which it was issued.
    User { session: Arc<Session>, grants: Arc<UserGrants>, revision: u64 },
}

impl Caller {
    pub const MEMBER: Caller = Caller::Unchecked;

    pub fn for_command(&self) -> Option<(&str, u64)> {
        match self {
            Caller::Unchecked | Caller::Unnamed => None,
            Caller::User { session, revision, .. } => Some((session.user(), *revision)),
        }
    }

    /// Rejects a request without a user.
    pub fn check_named(&self) -> Result<(), Error> {
        match self {
            Caller::Unchecked | Caller::User { .. } => Ok(()),
            Caller::Unnamed => Err(Error::UserEmpty),
        }
    }

    /// Rejects users without the role `root`. An unknown user, from a certificate or a signed
    /// token, gets a different error, as in etcd.
    pub fn check_root(&self) -> Result<(), Error> {
        match self {
            Caller::Unchecked => Ok(()),
            Caller::Unnamed => Err(Error::UserEmpty),
            Caller::User { grants, .. } => match grants.grants() {
                None => Err(Error::UserNotFound),
                Some(grants) if grants.is_root() => Ok(()),
                Some(_) => Err(Error::PermissionDenied),
            },
        }
    }

    pub fn is_root(&self) -> bool {
        match self {
            Caller::Unchecked => true,
            Caller::Unnamed => false,
            Caller::User { grants, .. } => grants.grants().is_some_and(|grants| grants.is_root()),
        }
    }

    pub fn user(&self) -> Option<&str> {
        match self {
            Caller::Unchecked | Caller::Unnamed => None,
            Caller::User { session, .. } => Some(session.user()),
        }
    }

    pub fn check(&self, store: &Store, need: Need) -> Result<(), Error> {
        match self {
            Caller::Unchecked => Ok(()),
            Caller::Unnamed => Err(Error::UserEmpty),
            Caller::User { grants, revision, .. } => {
                if *revision < grants.revision() {
                    return Err(Error::AuthOldRevision);
                }
                let grants = grants.grants().ok_or(Error::PermissionDenied)?;
                grants.check(need, store)
            }
        }
    }

    /// Reports whether access to a range is permitted, at any auth revision of the caller.
    pub fn may_use(&self, access: KeyAccess, keys: &mvcc::KeyRange) -> bool {
        match self {
            Caller::Unchecked => true,
            Caller::Unnamed => false,
            Caller::User { grants, .. } => grants.grants().is_some_and(|grants| grants.permits(access, keys)),
        }
    }

    /// Reports whether a range may be read, at any auth revision of the caller.
    pub fn may_read_range(&self, keys: &mvcc::KeyRange) -> bool {
        self.may_use(KeyAccess::Read, keys)
    }

    pub fn may_read(&self, keys: &[bytes::Bytes]) -> bool {
        match self {
            Caller::Unchecked => true,
            Caller::Unnamed => false,
            Caller::User { grants, .. } => grants.grants().is_some_and(|grants| {
                let is_readable =
                    |key: &bytes::Bytes| grants.permits(KeyAccess::Read, &mvcc::KeyRange::one(key.clone()));
                keys.iter().all(is_readable)
            }),
        }
    }

    /// Rejects the request if the auth revision has changed since the caller was created: the read
    /// may have used different permissions, as in etcd.
    pub fn check_unchanged(&self, newest: u64) -> Result<(), Error> {
        match self {
            Caller::User { revision, .. } if *revision != newest => Err(Error::AuthOldRevision),
            Caller::User { .. } | Caller::Unchecked | Caller::Unnamed => Ok(()),
        }
    }
}

/// Properties of a connection: its number, its address, and the user named by its certificate.
/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    pub client: ClientId,
    pub address: Option<SocketAddr>,
    /// User of calls without a token.
    pub certificate: Option<Arc<Session>>,
}

impl Origin {
    /// Creates the origin for a connection. A non-empty common name of the certificate is the
    /// user's name, if certificates name users.
    pub fn new(connection: u64, address: Option<SocketAddr>, common_name: Option<String>) -> Origin {
        let client = ClientId { caller: caller_of(address.map(|address| address.ip())), connection };
        let certificate =
            common_name.filter(|name| !name.is_empty()).map(|name| Arc::new(Session::of_user(name)));
        Origin { client, address, certificate }
    }

    /// Returns the origin for calls through the gateway. Their certificate belongs to the
    /// forwarding program and does not authenticate the user, as in etcd.
    pub fn without_certificate(&self) -> Origin {
        Origin { certificate: None, ..self.clone() }
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
