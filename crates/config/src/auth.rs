//! Settings of passwords and tokens.
//!
//! The value of `--auth-token` is a kind, for `jwt` followed by comma-separated options:
//! `jwt,sign-method=RS256,priv-key=FILE`. Rules and error texts are etcd's. Key files are read at startup,
//! not here.

use std::path::PathBuf;
use std::time::Duration;

use super::flags::{BCRYPT_COST, Flags, TOKEN_TTL_SECONDS, duration};

const BCRYPT_COSTS: std::ops::RangeInclusive<u64> = 4..=31;
const JWT_TTL: Duration = Duration::from_secs(300);

/// Password hashing, token kind, and certificate authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthSettings {
    pub bcrypt_cost: u32,
    /// Idle time after which a simple token expires.
    pub token_ttl: Duration,
    pub tokens: TokenKind,
    /// True if the common name of a client certificate is its user.
    pub certificates_name_users: bool,
    /// True if watchers are authorized again when users or roles change.
    pub rechecks_watchers: bool,
}

/// Kind of tokens, from `--auth-token`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Random token that each member keeps in memory.
    Simple,
    Jwt(JwtOptions),
    /// No tokens are issued or accepted.
    None,
}

/// Options after `jwt`. The method and keys are validated later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JwtOptions {
    pub sign_method: String,
    pub public_key: Option<PathBuf>,
    pub private_key: Option<PathBuf>,
    pub ttl: Duration,
    /// Unknown options. Like etcd, they are logged and ignored.
    pub unknown: Vec<String>,
}

/// Malformed option, with etcd's error text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("auth: invalid auth options: {0}")]
pub struct InvalidAuthOptions(pub String);

/// Builds the settings. A bcrypt cost out of range is replaced by the default, as in etcd.
pub(super) fn of(flags: &Flags) -> Result<AuthSettings, InvalidAuthOptions> {
    let cost = if BCRYPT_COSTS.contains(&flags.bcrypt_cost) { flags.bcrypt_cost } else { BCRYPT_COST };
    let ttl_seconds = if flags.auth_token_ttl > 0 { flags.auth_token_ttl } else { TOKEN_TTL_SECONDS };
    Ok(AuthSettings {
        bcrypt_cost: u32::try_from(cost).expect("at most 31"),
        token_ttl: Duration::from_secs(ttl_seconds),
        tokens: tokens(&flags.auth_token)?,
        rechecks_watchers: flags.auth_recheck_watchers,
        certificates_name_users: flags.tls.client_cert_auth,
    })
}

/// Parses `--auth-token`. Errors include option names and kinds but no values: a value may be a secret that
/// was passed in place of a file name.
fn tokens(text: &str) -> Result<TokenKind, InvalidAuthOptions> {
    let invalid = |reason: String| Err(InvalidAuthOptions(reason));
    let mut parts = text.split(',');
    let kind = parts.next().unwrap_or_default();
    let mut options: Vec<(&str, &str)> = Vec::new();
    for part in parts {
        let mut pair = part.split('=');
        let (Some(name), Some(value), None) = (pair.next(), pair.next(), pair.next()) else {
            return invalid("invalid option: expected name=value".to_owned());
        };
        if options.iter().any(|(known, _)| *known == name) {
            return invalid(format!("duplicate option {name}"));
        }
        options.push((name, value));
    }
    match kind {
        "simple" => Ok(TokenKind::Simple),
        "" => Ok(TokenKind::None),
        "jwt" => jwt(&options).map(TokenKind::Jwt),
        other => invalid(format!("unknown token type {other}")),
    }
}

fn jwt(options: &[(&str, &str)]) -> Result<JwtOptions, InvalidAuthOptions> {
    let mut jwt = JwtOptions { ttl: JWT_TTL, ..JwtOptions::default() };
    for (name, value) in options {
        let file = || Some(PathBuf::from(value)).filter(|_| !value.is_empty());
        match *name {
            "sign-method" => jwt.sign_method = (*value).to_owned(),
            "pub-key" => jwt.public_key = file(),
            "priv-key" => jwt.private_key = file(),
            "ttl" if value.is_empty() => {}
            "ttl" => {
                let wrong = |reason| InvalidAuthOptions(format!("ttl: {reason}"));
                jwt.ttl = duration(value).map_err(wrong)?;
            }
            unknown => jwt.unknown.push(unknown.to_owned()),
        }
    }
    Ok(jwt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_tokens_is_read_with_its_options() {
        let jwt = |method: &str, private: Option<&str>, seconds| {
            TokenKind::Jwt(JwtOptions {
                sign_method: method.to_owned(),
                private_key: private.map(PathBuf::from),
                ttl: Duration::from_secs(seconds),
                ..JwtOptions::default()
            })
        };
        for (text, wanted) in [
            ("simple", Ok(TokenKind::Simple)),
            ("simple,a=b", Ok(TokenKind::Simple)),
            ("", Ok(TokenKind::None)),
            ("jwt", Ok(jwt("", None, 300))),
            ("jwt,sign-method=RS256,priv-key=k,ttl=10m", Ok(jwt("RS256", Some("k"), 600))),
            ("jwt,sign-method=HS256,priv-key=,ttl=", Ok(jwt("HS256", None, 300))),
            ("jwt,sign-method", Err("invalid option: expected name=value")),
            ("jwt,a=b=c", Err("invalid option: expected name=value")),
            ("simple,", Err("invalid option: expected name=value")),
            ("jwt,ttl=1s,ttl=2s", Err("duplicate option ttl")),
            ("jwt,ttl=soon", Err("ttl: parse error; use a duration such as 500ms, 5s or 1m30s")),
            ("paseto", Err("unknown token type paseto")),
        ] {
            let wanted = wanted.map_err(|reason| InvalidAuthOptions(reason.to_owned()));
            assert_eq!(tokens(text), wanted, "{text}");
        }
        let Ok(TokenKind::Jwt(options)) = tokens("jwt,x=1,y=2") else { panic!("not jwt") };
        assert_eq!(options.unknown, ["x", "y"]);
    }
}
