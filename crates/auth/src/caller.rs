//! Who asks, and what that permits.
//!
//! Only this type proposes commands of clients and checks reads, so that neither can be done without one.

use std::sync::Arc;

use api::Error;
use mvcc::Store;
use state_machine::{KeyAccess, Need, Session, UserGrants};

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
