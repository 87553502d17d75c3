//! Addresses of servers.

use crate::client::access::ClientAccess;
use client::Token;
use http::uri::Authority;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

/// `host:port` with its transport. Equality compares `host:port` only.
#[derive(Clone)]
pub struct Endpoint {
    authority: Authority,
    scheme: Scheme,
    access: Option<Arc<ClientAccess>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    /// Unspecified: TLS if access offers it, like in etcd's clients.
    Unsaid,
    Http,
    Https,
}

/// Error of an invalid address.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("endpoint {0:?}: unix sockets are not offered, give host:port")]
    Unix(String),
    #[error("endpoint {0:?}: expected host:port")]
    Shape(String),
}

impl Endpoint {
    /// Returns the address to connect to.
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// Returns the host name for certificate verification.
    pub fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    /// Returns the URL for an HTTP client.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls().is_some() { "https" } else { "http" }, self.authority)
    }

    /// Reports whether the scheme of the address is https.
    pub fn wants_tls(&self) -> bool {
        self.scheme == Scheme::Https
    }

    pub fn with_access(self, access: Arc<ClientAccess>) -> Self {
        Self { access: Some(access), ..self }
    }

    /// Parses another address with the same access.
    pub fn sibling(&self, text: &str) -> Result<Self, Error> {
        text.parse::<Self>().map(|endpoint| Self { access: self.access.clone(), ..endpoint })
    }

    pub(crate) fn tls(&self) -> Option<&ClientAccess> {
        let access = self.access.as_deref()?;
        let wanted = match self.scheme {
            Scheme::Unsaid => access.offers_tls(),
            Scheme::Http => false,
            Scheme::Https => true,
        };
        wanted.then_some(access)
    }

    pub(crate) fn token(&self) -> Option<&Token> {
        self.access.as_ref()?.token()
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let trimmed = text.trim();
        if trimmed.starts_with("unix:") || trimmed.starts_with("unixs:") {
            return Err(Error::Unix(trimmed.into()));
        }
        let (scheme, rest) = if let Some(rest) = trimmed.strip_prefix("https://") {
            (Scheme::Https, rest)
        } else if let Some(rest) = trimmed.strip_prefix("http://") {
            (Scheme::Http, rest)
        } else {
            (Scheme::Unsaid, trimmed)
        };
        let parsed: Option<Authority> = rest.trim_end_matches('/').parse().ok();
        let usable = |authority: &Authority| {
            let port = authority.port_u16().unwrap_or(0);
            port > 0 && !authority.host().is_empty() && !authority.as_str().contains('@')
        };
        let authority = parsed.filter(usable).ok_or_else(|| Error::Shape(trimmed.into()))?;
        Ok(Self { authority, scheme, access: None })
    }
}

impl PartialEq for Endpoint {
    fn eq(&self, other: &Self) -> bool {
        self.authority == other.authority
    }
}

impl Eq for Endpoint {}

impl Hash for Endpoint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.authority.hash(state);
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Endpoint({:?})", self.authority())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::access::{Offer, Trust};

    #[test]
    fn the_usual_spellings_are_the_same_address() {
        for text in ["127.0.0.1:2379", "http://127.0.0.1:2379", " http://127.0.0.1:2379/ "] {
            assert_eq!(
                text.parse::<Endpoint>().map(|endpoint| endpoint.to_string()),
                Ok("127.0.0.1:2379".into())
            );
        }
        assert_eq!(
            "[::1]:2379".parse::<Endpoint>().map(|endpoint| endpoint.url()),
            Ok("http://[::1]:2379".into())
        );
    }

    #[test]
    fn invalid_addresses_are_refused_with_the_reason() {
        for (text, reason) in [
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

    #[test]
    fn tls_is_used_if_the_scheme_or_the_access_requires_it() {
        let tls = Arc::new(ClientAccess::new(&Trust::Anyone, None, Offer::Tls).unwrap());
        let token = Arc::new(ClientAccess::new(&Trust::Anyone, None, Offer::TokenOnly).unwrap());
        for (text, access, url) in [
            ("a:1", None, "http://a:1"),
            ("a:1", Some(&tls), "https://a:1"),
            ("a:1", Some(&token), "http://a:1"),
            ("http://a:1", Some(&tls), "http://a:1"),
            ("https://a:1", Some(&token), "https://a:1"),
        ] {
            let mut endpoint: Endpoint = text.parse().unwrap();
            endpoint.access = access.cloned();
            assert_eq!(endpoint.url(), url, "{text}");
        }
        let six: Endpoint = "https://[::1]:2379".parse().unwrap();
        assert_eq!((six.host(), six.wants_tls()), ("::1", true));
    }
}
