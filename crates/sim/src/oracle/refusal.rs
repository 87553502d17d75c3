//! Refusals of etcd that the oracle foretells.

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Compacted = 1,
    Future = 2,
    LeaseNotFound = 3,
    LeaseExists = 4,
    TtlTooLarge = 5,
    /// A command of a leader in an entry of another term.
    LeaderChanged = 6,
    UserEmpty = 7,
    AuthOldRevision = 8,
    PermissionDenied = 9,
    UserNotFound = 10,
    UserExists = 11,
    RoleNotFound = 12,
    RoleExists = 13,
    RoleNotGranted = 14,
    PermissionNotGranted = 15,
    AuthNotEnabled = 16,
    AuthFailed = 17,
    RootUserMissing = 18,
    RootRoleMissing = 19,
    /// Root cannot be taken away while permissions are checked.
    Protected = 20,
}

impl Refusal {
    /// The refusal that an answer stands for, if it is one of those above.
    pub fn of(error: &api::Error) -> Option<Refusal> {
        Some(match error {
            api::Error::Compacted => Refusal::Compacted,
            api::Error::FutureRev => Refusal::Future,
            api::Error::LeaseNotFound => Refusal::LeaseNotFound,
            api::Error::LeaseExist => Refusal::LeaseExists,
            api::Error::LeaseTTLTooLarge => Refusal::TtlTooLarge,
            api::Error::LeaderChanged => Refusal::LeaderChanged,
            api::Error::UserEmpty => Refusal::UserEmpty,
            api::Error::AuthOldRevision => Refusal::AuthOldRevision,
            api::Error::PermissionDenied => Refusal::PermissionDenied,
            api::Error::UserNotFound => Refusal::UserNotFound,
            api::Error::UserAlreadyExist => Refusal::UserExists,
            api::Error::RoleNotFound => Refusal::RoleNotFound,
            api::Error::RoleAlreadyExist => Refusal::RoleExists,
            api::Error::RoleNotGranted => Refusal::RoleNotGranted,
            api::Error::PermissionNotGranted => Refusal::PermissionNotGranted,
            api::Error::AuthNotEnabled => Refusal::AuthNotEnabled,
            api::Error::AuthFailed => Refusal::AuthFailed,
            api::Error::RootUserNotExist => Refusal::RootUserMissing,
            api::Error::RootRoleNotExist => Refusal::RootRoleMissing,
            api::Error::InvalidAuthMgmt => Refusal::Protected,
            _ => return None,
        })
    }

    /// Whether it is about who asks, and not about what is asked.
    pub fn is_of_access(self) -> bool {
        matches!(self, Refusal::UserEmpty | Refusal::AuthOldRevision | Refusal::PermissionDenied)
    }
}
