//! Addresses of servers, as users write them.

use std::fmt;
use std::str::FromStr;

/// `host:port`, without its scheme.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint(String);

/// Why an address was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("endpoint {0:?}: TLS is not offered yet, give an http:// address")]
    Tls(String),
    #[error("endpoint {0:?}: unix sockets are not offered, give host:port")]
    Unix(String),
    #[error("endpoint {0:?}: expected host:port")]
    Shape(String),
}

impl Endpoint {
    /// What a socket connects to.
    pub fn authority(&self) -> &str {
        &self.0
    }

    /// What an HTTP client is given.
    pub fn url(&self) -> String {
        format!("http://{}", self.0)
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let trimmed = text.trim();
        if trimmed.starts_with("https://") {
            return Err(Error::Tls(trimmed.into()));
        }
        if trimmed.starts_with("unix:") || trimmed.starts_with("unixs:") {
            return Err(Error::Unix(trimmed.into()));
        }
        let authority = trimmed.strip_prefix("http://").unwrap_or(trimmed).trim_end_matches('/');
        let port = authority.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains('/'));
        match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
            Some(port) if port > 0 => Ok(Self(authority.to_owned())),
            _ => Err(Error::Shape(trimmed.into())),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_spellings_name_the_same_place() {
        for text in ["127.0.0.1:2379", "http://127.0.0.1:2379", " http://127.0.0.1:2379/ "] {
            assert_eq!(text.parse::<Endpoint>().map(|endpoint| endpoint.0), Ok("127.0.0.1:2379".into()));
        }
        assert_eq!(
            "[::1]:2379".parse::<Endpoint>().map(|endpoint| endpoint.url()),
            Ok("http://[::1]:2379".into())
        );
    }

    #[test]
    fn what_cannot_be_reached_is_refused_with_the_reason() {
        for (text, reason) in [
            ("https://a:1", "endpoint \"https://a:1\": TLS is not offered yet, give an http:// address"),
            ("unix:/tmp/x", "endpoint \"unix:/tmp/x\": unix sockets are not offered, give host:port"),
            ("localhost", "endpoint \"localhost\": expected host:port"),
            (":2379", "endpoint \":2379\": expected host:port"),
            ("a:0", "endpoint \"a:0\": expected host:port"),
            ("a:70000", "endpoint \"a:70000\": expected host:port"),
            ("", "endpoint \"\": expected host:port"),
            ("http://a/b:1", "endpoint \"http://a/b:1\": expected host:port"),
        ] {
            assert_eq!(text.parse::<Endpoint>().map_err(|error| error.to_string()), Err(reason.into()));
        }
    }
}
