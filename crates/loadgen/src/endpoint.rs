//! Addresses of servers, as users write them.

use crate::access::Access;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

/// `host:port`, and how it is reached. Two of the same place are the same, however they are reached.
#[derive(Clone)]
pub struct Endpoint {
    authority: String,
    scheme: Scheme,
    access: Option<Arc<Access>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    /// None was given: TLS if there are means for it, as etcd's clients do.
    Unsaid,
    Http,
    Https,
}

/// Why an address was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("endpoint {0:?}: unix sockets are not offered, give host:port")]
    Unix(String),
    #[error("endpoint {0:?}: expected host:port")]
    Shape(String),
}

impl Endpoint {
    /// What a socket connects to.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// As a certificate names it.
    pub fn host(&self) -> &str {
        let host = self.authority.rsplit_once(':').map_or(self.authority.as_str(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// What an HTTP client is given.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls().is_some() { "https" } else { "http" }, self.authority)
    }

    /// Whether the address itself asks for TLS.
    pub fn wants_tls(&self) -> bool {
        self.scheme == Scheme::Https
    }

    /// The same place, reached with these means.
    pub fn with_access(self, access: Arc<Access>) -> Self {
        Self { access: Some(access), ..self }
    }

    /// The means for TLS, if this endpoint is reached by it.
    pub(crate) fn tls(&self) -> Option<&Access> {
        let access = self.access.as_deref()?;
        let wanted = match self.scheme {
            Scheme::Unsaid => access.offers_tls(),
            Scheme::Http => false,
            Scheme::Https => true,
        };
        wanted.then_some(access)
    }

    /// What calls carry to be let in.
    pub(crate) fn token(&self) -> Option<&str> {
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
        let authority = rest.trim_end_matches('/');
        let port = authority.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains('/'));
        match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
            Some(port) if port > 0 => Ok(Self { authority: authority.to_owned(), scheme, access: None }),
            _ => Err(Error::Shape(trimmed.into())),
        }
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
        write!(formatter, "Endpoint({:?})", self.authority)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Offer, Trust};

    #[test]
    fn the_usual_spellings_name_the_same_place() {
        for text in ["127.0.0.1:2379", "http://127.0.0.1:2379", " http://127.0.0.1:2379/ "] {
            assert_eq!(
                text.parse::<Endpoint>().map(|endpoint| endpoint.authority),
                Ok("127.0.0.1:2379".into())
            );
        }
        assert_eq!(
            "[::1]:2379".parse::<Endpoint>().map(|endpoint| endpoint.url()),
            Ok("http://[::1]:2379".into())
        );
    }

    #[test]
    fn what_cannot_be_reached_is_refused_with_the_reason() {
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
    fn tls_is_used_where_it_is_asked_for_or_offered() {
        let tls = Arc::new(Access::new(&Trust::Anyone, None, Offer::Tls).unwrap());
        let token = Arc::new(Access::new(&Trust::Anyone, None, Offer::TokenOnly).unwrap());
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
