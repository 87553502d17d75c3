//! Debug output of messages with passwords, hashes or tokens: shows the name of the user, never the
//! secret.

use std::fmt::{Debug, Formatter, Result};

use crate::authpb::User;
use crate::command::{AddUser, IssueToken, SetPassword};
use crate::etcdserverpb::{
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthenticateRequest, AuthenticateResponse,
};

macro_rules! without_secrets {
    ($($message:ident $($field:ident)*;)*) => {
        $(impl Debug for $message {
            fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
                let mut out = formatter.debug_struct(stringify!($message));
                $(out.field(stringify!($field), &self.$field);)*
                out.finish_non_exhaustive()
            }
        })*
    };
}

without_secrets! {
    AuthenticateRequest name;
    AuthenticateResponse header;
    AuthUserAddRequest name options;
    AuthUserChangePasswordRequest name;
    User name roles options;
    IssueToken user auth_revision;
    AddUser name options;
    SetPassword name;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_printed() {
        let secret = || "s3cret".to_owned();
        let printed = [
            format!("{:?}", AuthenticateRequest { name: "u".into(), password: secret() }),
            format!("{:?}", AuthenticateResponse { header: None, token: secret() }),
            format!(
                "{:?}",
                AuthUserAddRequest {
                    name: "u".into(),
                    password: secret(),
                    options: None,
                    hashed_password: secret()
                }
            ),
            format!(
                "{:?}",
                AuthUserChangePasswordRequest {
                    name: "u".into(),
                    password: secret(),
                    hashed_password: secret()
                }
            ),
            format!("{:?}", User { password: secret().into(), ..User::default() }),
            format!("{:?}", IssueToken { prefix: secret(), ..IssueToken::default() }),
            format!("{:?}", AddUser { password_hash: secret().into(), ..AddUser::default() }),
            format!("{:?}", SetPassword { password_hash: secret().into(), ..SetPassword::default() }),
        ];
        for text in printed {
            assert!(!text.contains("s3cret") && !text.contains("115"), "{text}");
        }
    }
}
