//! Errors that the oracle predicts.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalReason {
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
    /// Root cannot be deleted while auth is enabled.
    Protected = 20,
}

impl RefusalReason {
    /// Converts a response error, if it is one of the above.
    pub fn of(error: &api::Error) -> Option<RefusalReason> {
        Some(match error {
            api::Error::Compacted => RefusalReason::Compacted,
            api::Error::FutureRev => RefusalReason::Future,
            api::Error::LeaseNotFound => RefusalReason::LeaseNotFound,
            api::Error::LeaseExist => RefusalReason::LeaseExists,
            api::Error::LeaseTTLTooLarge => RefusalReason::TtlTooLarge,
            api::Error::LeaderChanged => RefusalReason::LeaderChanged,
            api::Error::UserEmpty => RefusalReason::UserEmpty,
            api::Error::AuthOldRevision => RefusalReason::AuthOldRevision,
            api::Error::PermissionDenied => RefusalReason::PermissionDenied,
            api::Error::UserNotFound => RefusalReason::UserNotFound,
            api::Error::UserAlreadyExist => RefusalReason::UserExists,
            api::Error::RoleNotFound => RefusalReason::RoleNotFound,
            api::Error::RoleAlreadyExist => RefusalReason::RoleExists,
            api::Error::RoleNotGranted => RefusalReason::RoleNotGranted,
            api::Error::PermissionNotGranted => RefusalReason::PermissionNotGranted,
            api::Error::AuthNotEnabled => RefusalReason::AuthNotEnabled,
            api::Error::AuthFailed => RefusalReason::AuthFailed,
            api::Error::RootUserNotExist => RefusalReason::RootUserMissing,
            api::Error::RootRoleNotExist => RefusalReason::RootRoleMissing,
            api::Error::InvalidAuthMgmt => RefusalReason::Protected,
            _ => return None,
        })
    }

    /// Reports whether it is caused by the user, not by the request.
    pub fn is_of_access(self) -> bool {
        matches!(
            self,
            RefusalReason::UserEmpty | RefusalReason::AuthOldRevision | RefusalReason::PermissionDenied
        )
    }
}
