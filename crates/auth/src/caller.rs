//! Authenticated users of requests, and their permissions.
//!
//! Proposals of client commands and checks of reads require a [`Caller`], so authentication cannot
//! be skipped.

use std::sync::Arc;

use api::Error;
use mvcc::Store;
use state_machine::{KeyAccess, Need, Session, UserGrants};

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
