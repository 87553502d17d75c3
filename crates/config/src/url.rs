//! URLs in flags: a scheme and an address, without a path.
//!
//! * The text is retained as given except for the case of the scheme. Member IDs are hashes of the text, so
//!   it must not be normalized.
//! * Lists are sorted, so that members given the same URLs compute the same IDs. Duplicates are retained.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;

/// URL to listen on or to advertise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Url {
    text: String,
    scheme: Scheme,
    /// Host name or address, or the path of a Unix socket.
    host: String,
    port: u16,
}

/// Transport of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    Http,
    Https,
    Unix,
    Unixs,
}

/// Invalid URL, with the text that etcd prints after `invalid value "…" for flag -…: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("no valid URLs given")]
    Empty,
    #[error("URL scheme must be http, https, unix, or unixs: {0}")]
    Scheme(String),
    #[error("URL address does not have the form \"host:port\": {0}")]
    HostPort(String),
    #[error("URL must not contain a path: {0}")]
    Path(String),
    /// etcd would listen on an unnamed socket.
    #[error("URL must contain the path of a socket: {0}")]
    Socket(String),
}

impl Url {
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let text = text.trim();
        // The two slashes are optional before the absolute path of a socket.
        let short = || text.split_once(':').filter(|(_, rest)| rest.starts_with('/') && is_unix(text));
        let split = text.split_once("://").or_else(short);
        let (given, rest) = split.ok_or_else(|| UrlError::Scheme(text.to_owned()))?;
        let lower = given.to_ascii_lowercase();
        let scheme = Scheme::parse(&lower).ok_or_else(|| UrlError::Scheme(text.to_owned()))?;
        // Lowercase the scheme like Go: IDs are computed from the text.
        let text = &format!("{lower}{}", &text[given.len()..]);
        if scheme.is_unix() {
            let host = socket_path(rest).ok_or_else(|| UrlError::Socket(text.to_owned()))?;
            return Ok(Url { text: text.to_owned(), scheme, host, port: 0 });
        }
        let (address, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let is_ipv6s = |letter: char| letter.is_ascii_hexdigit() || matches!(letter, ':' | '.');
        let is_bare_ipv6 = || address.matches(':').count() > 1 && address.chars().all(is_ipv6s);
        let hint =
            || if is_bare_ipv6() { ": an IPv6 address has brackets, as in http://[::1]:2379" } else { "" };
        let (host, port) =
            split_host_port(address).ok_or_else(|| UrlError::HostPort(format!("{text}{}", hint())))?;
        if !path.is_empty() {
            return Err(UrlError::Path(text.to_owned()));
        }
        Ok(Url { text: text.to_owned(), scheme, host, port })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the path of a `unix` or `unixs` socket. May be relative to the working directory.
    pub fn socket_path(&self) -> Option<&Path> {
        self.scheme.is_unix().then(|| Path::new(&self.host))
    }

    /// Returns `host:port`, with brackets around an IPv6 address, or the path of a socket.
    pub fn authority(&self) -> String {
        if self.scheme.is_unix() {
            self.host.clone()
        } else if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Reports whether both URLs have the same address.
    pub fn is_at(&self, other: &Url) -> bool {
        self.host == other.host && self.port == other.port && self.scheme.is_unix() == other.scheme.is_unix()
    }

    /// Returns the address to bind. As in etcd, the host must be empty, `localhost` or an IP address.
    pub fn bind_address(&self) -> Option<SocketAddr> {
        let address = match self.host.as_str() {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            "" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            host => host.parse().ok()?,
        };
        Some(SocketAddr::new(address, self.port))
    }

    /// Returns the URL with its host resolved, or unchanged if that fails.
    pub fn resolved(&self) -> String {
        self.resolve().unwrap_or_else(|_| self.text.clone())
    }

    /// Returns the URL with its host resolved to an address.
    pub fn resolve(&self) -> io::Result<String> {
        if self.scheme.is_unix() {
            return Ok(self.text.clone());
        }
        let address = match self.bind_address() {
            Some(address) => address,
            None => {
                let mut found = (self.host.as_str(), self.port).to_socket_addrs()?;
                found.next().ok_or_else(|| io::Error::other("the name has no address"))?
            }
        };
        Ok(format!("{}://{address}", self.scheme))
    }
}

impl Scheme {
    fn parse(text: &str) -> Option<Scheme> {
        match text {
            "http" => Some(Scheme::Http),
            "https" => Some(Scheme::Https),
            "unix" => Some(Scheme::Unix),
            "unixs" => Some(Scheme::Unixs),
            _ => None,
        }
    }

    pub fn is_unix(self) -> bool {
        matches!(self, Scheme::Unix | Scheme::Unixs)
    }

    /// Reports whether the scheme uses TLS.
    pub fn is_secure(self) -> bool {
        matches!(self, Scheme::Https | Scheme::Unixs)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Unix => "unix",
            Scheme::Unixs => "unixs",
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

fn is_unix(text: &str) -> bool {
    text.split_once(':')
        .and_then(|(scheme, _)| Scheme::parse(&scheme.to_ascii_lowercase()))
        .is_some_and(Scheme::is_unix)
}

/// Returns the path of a socket URL: host and path, percent-decoded. User info before an `@` is dropped.
fn socket_path(rest: &str) -> Option<String> {
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit_once('@').map_or(host, |(_user, host)| host);
    let mut bytes = host.as_bytes().to_vec();
    let mut left = path;
    while let Some((before, after)) = left.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        bytes.push(u8::from_str_radix(after.get(..2)?, 16).ok()?);
        left = &after[2..];
    }
    bytes.extend_from_slice(left.as_bytes());
    String::from_utf8(bytes).ok().filter(|path| !path.is_empty() && !path.contains('\0'))
}

fn split_host_port(address: &str) -> Option<(String, u16)> {
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, rest.strip_prefix(':')?)
        }
        None => address.rsplit_once(':').filter(|(host, _)| !host.contains(':'))?,
    };
    // Characters that Go's URL parser rejects: Go clients could not use the advertised URL.
    let is_odd = |letter: char| letter <= ' ' || "\"<>?@[\\]^`{|}\x7f#".contains(letter);
    let is_port = port.bytes().all(|digit| digit.is_ascii_digit());
    let is_escaped = host.contains('%') && !host.contains(':');
    (is_port && !is_escaped && !host.contains(is_odd)).then_some(())?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// Sorted list of URLs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Urls(Vec<Url>);

impl Urls {
    pub fn parse(text: &str) -> Result<Urls, UrlError> {
        Urls::collect(text.split(',').filter(|part| !part.is_empty()))
    }

    /// Like `parse`, but an empty text is a valid, empty list.
    pub fn parse_any(text: &str) -> Result<Urls, UrlError> {
        if text.is_empty() { Ok(Urls::default()) } else { Urls::parse(text) }
    }

    /// Builds a list from single URLs, such as a member's URLs in `--initial-cluster`.
    pub fn collect<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Urls, UrlError> {
        let mut urls = texts.map(Url::parse).collect::<Result<Vec<_>, _>>()?;
        if urls.is_empty() {
            return Err(UrlError::Empty);
        }
        urls.sort();
        Ok(Urls(urls))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Url> {
        self.0.iter()
    }

    /// Returns each distinct listen address, and whether it is used without and with TLS, in this order.
    pub fn listeners(&self) -> Vec<(&Url, [bool; 2])> {
        let mut found: Vec<(&Url, [bool; 2])> = Vec::new();
        for url in self.iter() {
            let at = found.iter().position(|(other, _)| other.is_at(url)).unwrap_or(found.len());
            if at == found.len() {
                found.push((url, [false; 2]));
            }
            found[at].1[usize::from(url.scheme().is_secure())] = true;
        }
        found
    }

    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(|url| url.text.clone()).collect()
    }
}

impl fmt::Display for Urls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.texts().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_scheme_and_an_address() {
        let url = Url::parse("http://[::1]:2379").unwrap();
        assert_eq!((url.host(), url.port), ("::1", 2379));
        assert_eq!(url.authority(), "[::1]:2379");
        assert_eq!(url.bind_address(), Some("[::1]:2379".parse().unwrap()));
        assert_eq!(Url::parse("Http://A:1").unwrap().as_str(), "http://A:1");
        assert_eq!(Url::parse("UNIX:/a").unwrap().as_str(), "unix:/a");
    }

    #[test]
    fn bad_urls_are_refused_with_etcds_texts() {
        let cases = [
            ("", "no valid URLs given"),
            ("http://127.0.0.1", "URL address does not have the form \"host:port\": http://127.0.0.1"),
            ("ftp://a:1", "URL scheme must be http, https, unix, or unixs: ftp://a:1"),
            ("127.0.0.1:2379", "URL scheme must be http, https, unix, or unixs: 127.0.0.1:2379"),
            ("http://a:1/x", "URL must not contain a path: http://a:1/x"),
            ("http://a:1/", "URL must not contain a path: http://a:1/"),
            (
                "http://fd00::1:2379",
                "URL address does not have the form \"host:port\": http://fd00::1:2379: an IPv6 address has \
                 brackets, as in http://[::1]:2379",
            ),
            ("http://a:+1", "URL address does not have the form \"host:port\": http://a:+1"),
            ("http://a b:1", "URL address does not have the form \"host:port\": http://a b:1"),
            ("http://%61:1", "URL address does not have the form \"host:port\": http://%61:1"),
            ("http://a:port", "URL address does not have the form \"host:port\": http://a:port"),
            ("unix://", "URL must contain the path of a socket: unix://"),
            ("unix:///a%2", "URL must contain the path of a socket: unix:///a%2"),
            ("unix:a", "URL scheme must be http, https, unix, or unixs: unix:a"),
            ("http:/a:1", "URL scheme must be http, https, unix, or unixs: http:/a:1"),
        ];
        for (text, wanted) in cases {
            assert_eq!(Urls::parse(text).unwrap_err().to_string(), wanted, "{text:?}");
        }
    }

    #[test]
    fn the_path_of_a_socket_is_host_and_path_of_its_url() {
        for (text, wanted) in [
            ("unix:///run/kv.sock", "/run/kv.sock"),
            ("unixs:///run/kv.sock", "/run/kv.sock"),
            ("unix:/run/kv.sock", "/run/kv.sock"),
            ("unix://localhost:2379", "localhost:2379"),
            ("unix://run/kv.sock", "run/kv.sock"),
            ("unix://user@kv", "kv"),
            ("unix:///run/a%20b", "/run/a b"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!(url.socket_path(), Some(Path::new(wanted)), "{text}");
            assert_eq!((url.as_str(), url.authority().as_str()), (text, wanted));
            assert_eq!(url.resolved(), text);
        }
        assert_eq!(Url::parse("http://a:1").unwrap().socket_path(), None);
    }

    #[test]
    fn a_list_is_sorted_and_keeps_its_texts() {
        let urls = Urls::parse("http://b:2,http://a:1").unwrap();
        assert_eq!(urls.to_string(), "http://a:1,http://b:2");
    }

    #[test]
    fn an_address_is_listened_on_once_however_it_is_listed() {
        let urls = Urls::parse("http://a:1,https://a:1,http://a:1,HTTPS://b:1,unix://s,unixs://s").unwrap();
        let found = urls.listeners().into_iter().map(|(url, kinds)| (url.authority(), kinds));
        let wanted = [("a:1", [true, true]), ("b:1", [false, true]), ("s", [true, true])];
        assert_eq!(found.collect::<Vec<_>>(), wanted.map(|(at, kinds)| (at.to_owned(), kinds)));
    }

    #[test]
    fn only_addresses_and_localhost_can_be_bound() {
        let bound = |text: &str| Url::parse(text).unwrap().bind_address();
        assert_eq!(bound("http://localhost:1"), Some("127.0.0.1:1".parse().unwrap()));
        assert_eq!(bound("http://0.0.0.0:1"), Some("0.0.0.0:1".parse().unwrap()));
        assert_eq!(bound("http://example.com:1"), None);
    }
}
