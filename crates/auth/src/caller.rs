//! Where calls come from, who asks, and what that permits.
//!
//! Only [`Caller`] proposes commands of clients and checks reads, so that neither can be done without one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use api::Error;
use mvcc::Store;
use state_machine::{KeyAccess, Need, Session, UserGrants};

use super::turns::network;
use admission::ClientId;

/// Who asks.
#[derive(Clone, Debug)]
pub enum Caller {
    /// Permissions are not checked.
    Unchecked,
    /// Permissions are checked, and the request has no token.
    Unnamed,
    /// A user, with its permissions at one auth revision; and the revision that it counts as: that of a
    /// signed token is the one at which it was issued.
    User { session: Arc<Session>, grants: Arc<UserGrants>, revision: u64 },
}

impl Caller {
    /// This member itself.
    pub const MEMBER: Caller = Caller::Unchecked;

    /// As it goes into the log: user and auth revision.
    pub fn for_command(&self) -> Option<(&str, u64)> {
        match self {
            Caller::Unchecked | Caller::Unnamed => None,
            Caller::User { session, revision, .. } => Some((session.user(), *revision)),
        }
    }

    /// Refuses a request without a user.
    pub fn check_named(&self) -> Result<(), Error> {
        match self {
            Caller::Unchecked | Caller::User { .. } => Ok(()),
            Caller::Unnamed => Err(Error::UserEmpty),
        }
    }

    /// Refuses every user without the role `root`. A name of no user, from a certificate or a signed token,
    /// has another refusal, as in etcd.
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

    /// Whether everything is permitted.
    pub fn is_root(&self) -> bool {
        match self {
            Caller::Unchecked => true,
            Caller::Unnamed => false,
            Caller::User { grants, .. } => grants.grants().is_some_and(|grants| grants.is_root()),
        }
    }

    /// The name of the user.
    pub fn user(&self) -> Option<&str> {
        match self {
            Caller::Unchecked | Caller::Unnamed => None,
            Caller::User { session, .. } => Some(session.user()),
        }
    }

    /// Refuses a need that is not permitted.
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

    /// Whether a range may be used so, at any auth revision of the caller.
    pub fn may_use(&self, access: KeyAccess, keys: &mvcc::KeyRange) -> bool {
        match self {
            Caller::Unchecked => true,
            Caller::Unnamed => false,
            Caller::User { grants, .. } => grants.grants().is_some_and(|grants| grants.permits(access, keys)),
        }
    }

    /// Whether a range may be read, at any auth revision of the caller.
    pub fn may_read_range(&self, keys: &mvcc::KeyRange) -> bool {
        self.may_use(KeyAccess::Read, keys)
    }

    /// Whether each of these keys may be read.
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

    /// Refuses if the auth revision has moved since the caller was made: what was read may be of another
    /// state of the permissions, as in etcd.
    pub fn check_unchanged(&self, newest: u64) -> Result<(), Error> {
        match self {
            Caller::User { revision, .. } if *revision != newest => Err(Error::AuthOldRevision),
            Caller::User { .. } | Caller::Unchecked | Caller::Unnamed => Ok(()),
        }
    }
}

/// What all calls of one connection have in common: its number, its address, and the user whom its
/// certificate names. Cheap to clone.
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

/// The caller of calls without a user, for shares between clients: their network. All of Unix
/// sockets are one.
pub fn caller_of(address: Option<IpAddr>) -> u64 {
    match address.map(network) {
        Some(IpAddr::V4(address)) => u64::from(address.to_bits()),
        Some(IpAddr::V6(address)) => (address.to_bits() >> 64) as u64,
        None => 1 << 32, // No address of IPv4, and an unassigned one of IPv6.
    }
}
