//! Turns the flags of TLS and users into endpoints with access.

use super::flags::Security;
use crate::client::access::{ClientAccess, ClientIdentity, Offer, Trust};
use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::output::text::chain;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Arc;

/// Adds TLS and token to the endpoints; requests the token from the servers if there is a user.
pub async fn admit(flags: &Security, endpoints: Vec<Endpoint>) -> Result<Vec<Endpoint>, String> {
    let Some(access) = access(flags, &endpoints)? else { return Ok(endpoints) };
    let access = Arc::new(access);
    let endpoints: Vec<_> =
        endpoints.into_iter().map(|endpoint| endpoint.with_access(access.clone())).collect();
    if let Some(user) = &flags.user {
        let (name, password) = credentials(user, flags.password.as_deref(), ask)?;
        let first = endpoints.first().ok_or("no endpoint given")?;
        let client = admin::AdminClient::connect(first).await.map_err(|error| error.to_string())?;
        let token = client.authenticate(&name, &password).await.map_err(|error| error.to_string())?;
        access.set_token(token);
    }
    Ok(endpoints)
}

pub fn check(flags: &Security) -> Result<(), String> {
    match (&flags.cert, &flags.private_key) {
        (Some(_), None) => Err("--cert needs the --key that belongs to it".into()),
        (None, Some(_)) => Err("--key needs the --cert that it belongs to".into()),
        _ if flags.insecure_skip_tls_verify && flags.cacert.is_some() => {
            Err("--cacert and --insecure-skip-tls-verify exclude each other: verify or do not".into())
        }
        (Some(_), Some(_)) | (None, None) => Ok(()),
    }
}

/// Returns the access that the flags describe, or none if no flag and no endpoint needs it.
fn access(flags: &Security, endpoints: &[Endpoint]) -> Result<Option<ClientAccess>, String> {
    check(flags)?;
    let identity = flags.cert.clone().zip(flags.private_key.clone());
    let identity = identity.map(|(certificate, private_key)| ClientIdentity { certificate, private_key });
    let trust = match &flags.cacert {
        Some(path) => Trust::Roots(path.clone()),
        None if flags.insecure_skip_tls_verify => Trust::Anyone,
        None => Trust::System,
    };
    let tls = identity.is_some() || trust != Trust::System || !flags.insecure_transport;
    if !tls && flags.user.is_none() && !endpoints.iter().any(Endpoint::wants_tls) {
        return Ok(None);
    }
    let offer = if tls { Offer::Tls } else { Offer::TokenOnly };
    // Without TLS no roots are needed, and some machines lack them.
    let trust = if tls || endpoints.iter().any(Endpoint::wants_tls) { trust } else { Trust::Anyone };
    ClientAccess::new(&trust, identity.as_ref(), offer).map(Some).map_err(|error| chain(&error))
}

/// Returns name and password, separated by the first colon like in `benchmark`.
fn credentials(
    user: &str,
    password: Option<&str>,
    ask: impl FnOnce(&str) -> Result<String, String>,
) -> Result<(String, String), String> {
    let (name, within) = match user.split_once(':') {
        Some((name, password)) => (name, Some(password)),
        None => (user, None),
    };
    if name.is_empty() {
        return Err("--user has no name".into());
    }
    match (within, password) {
        (Some(_), Some(_)) => Err("two passwords: one in --user, one in --password".into()),
        (Some(password), None) | (None, Some(password)) => Ok((name.into(), password.into())),
        (None, None) => Ok((name.into(), ask(name)?)),
    }
}

/// Reads the password from the terminal, without echo.
#[expect(clippy::print_stderr, reason = "a question to the user")]
fn ask(name: &str) -> Result<String, String> {
    let input = io::stdin();
    let shown =
        input.is_terminal().then(|| tcgetattr(&input)).transpose().map_err(|error| error.to_string())?;
    if let Some(shown) = &shown {
        let mut hidden = shown.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&input, OptionalActions::Flush, &hidden).map_err(|error| error.to_string())?;
        eprint!("Password of {name}: ");
        // The password can be read without the prompt.
        let _ = io::stderr().flush();
    }
    let mut line = String::new();
    let read = input.lock().read_line(&mut line);
    if let Some(shown) = &shown {
        let _ = tcsetattr(&input, OptionalActions::Flush, shown);
        eprintln!();
    }
    match read {
        Ok(0) => Err(format!("no password for {name}: give --password, or type it when asked")),
        Ok(_) => Ok(line.trim_end_matches(['\r', '\n']).to_owned()),
        Err(error) => Err(format!("read the password: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::flags::Cli;
    use super::*;
    use clap::Parser;

    fn outcome(line: &str) -> Result<bool, String> {
        let cli = Cli::try_parse_from(std::iter::once("loadgen").chain(line.split_whitespace())).unwrap();
        access(&cli.global.security, &cli.global.endpoints).map(|access| access.is_some())
    }

    #[test]
    fn access_is_made_only_where_a_flag_or_an_endpoint_needs_it() {
        for (line, needed) in [
            ("put", false),
            ("put --insecure-transport", false),
            ("put --insecure-skip-tls-verify", true),
            ("put --endpoints=https://a:1 --insecure-skip-tls-verify", true),
            ("put --user=root:x", true),
        ] {
            assert_eq!(outcome(line), Ok(needed), "{line}");
        }
    }

    #[test]
    fn incomplete_and_contradicting_flags_are_refused() {
        for (line, reason) in [
            ("put --cert=x", "--cert needs the --key that belongs to it"),
            ("range foo --key=x", "--key needs the --cert that it belongs to"),
            (
                "put --cacert=x --insecure-skip-tls-verify",
                "--cacert and --insecure-skip-tls-verify exclude each other: verify or do not",
            ),
        ] {
            assert_eq!(outcome(line), Err(reason.into()), "{line}");
        }
        let missing = outcome("put --cacert=/nonexistent.pem").unwrap_err();
        assert!(missing.starts_with("open /nonexistent.pem: "), "{missing}");
    }

    #[test]
    fn a_password_comes_from_one_place() {
        let asked = |name: &str| Ok(format!("asked {name}"));
        let pair = |name: &str, password: &str| Ok((name.to_owned(), password.to_owned()));
        assert_eq!(credentials("root:a:b", None, asked), pair("root", "a:b"));
        assert_eq!(credentials("root", Some("p"), asked), pair("root", "p"));
        assert_eq!(credentials("root", None, asked), pair("root", "asked root"));
        assert!(credentials("root:a", Some("b"), asked).is_err());
        assert!(credentials(":a", None, asked).is_err());
    }
}
