//! URLs as flags give them: a scheme and an address, nothing after it.
//!
//! * The text is kept as given, but for capitals in its scheme: member ids are computed from it, so it must
//!   never be prettified.
//! * A list is sorted and free of nothing else: two members that list the same URLs agree on the order.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;

/// One URL: where to listen, or where others should dial.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Url {
    text: String,
    scheme: Scheme,
    /// Or the path of a socket.
    host: String,
    port: u16,
}

/// How bytes travel to a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    Http,
    Https,
    Unix,
    Unixs,
}

/// Texts as etcd prints them after `invalid value "…" for flag -…: `.
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
    /// etcd listens on a socket without a name then.
    #[error("URL must contain the path of a socket: {0}")]
    Socket(String),
}

impl Url {
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let text = text.trim();
        // The two slashes may be left out before the absolute path of a socket.
        let short = || text.split_once(':').filter(|(_, rest)| rest.starts_with('/') && is_unix(text));
        let split = text.split_once("://").or_else(short);
        let (given, rest) = split.ok_or_else(|| UrlError::Scheme(text.to_owned()))?;
        let lower = given.to_ascii_lowercase();
        let scheme = Scheme::parse(&lower).ok_or_else(|| UrlError::Scheme(text.to_owned()))?;
        // As Go prints it: ids are computed from the text.
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

    /// Where the socket of a `unix` or `unixs` URL is: relative to the working directory, or absolute.
    pub fn socket_path(&self) -> Option<&Path> {
        self.scheme.is_unix().then(|| Path::new(&self.host))
    }

    /// `host:port`, brackets around an IPv6 address; the path of a socket.
    pub fn authority(&self) -> String {
        if self.scheme.is_unix() {
            self.host.clone()
        } else if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Whether both have one address.
    pub fn is_at(&self, other: &Url) -> bool {
        self.host == other.host && self.port == other.port && self.scheme.is_unix() == other.scheme.is_unix()
    }

    /// The address to bind, if the host is one that etcd binds: an IP address or `localhost`.
    pub fn bind_address(&self) -> Option<SocketAddr> {
        let address = match self.host.as_str() {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            "" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            host => host.parse().ok()?,
        };
        Some(SocketAddr::new(address, self.port))
    }

    /// The same URL with its host resolved; the text itself where that fails.
    pub fn resolved(&self) -> String {
        self.resolve().unwrap_or_else(|_| self.text.clone())
    }

    /// The same URL with its host resolved.
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

    /// Whether bytes travel inside TLS.
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

/// Host and path of a URL as a path: `%20` is a space, and what stands before an `@` is a user, who is not
/// used.
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
    // What Go's URLs may not have either: clients could not read what is advertised.
    let is_odd = |letter: char| letter <= ' ' || "\"<>?@[\\]^`{|}\x7f#".contains(letter);
    let is_port = port.bytes().all(|digit| digit.is_ascii_digit());
    let is_escaped = host.contains('%') && !host.contains(':');
    (is_port && !is_escaped && !host.contains(is_odd)).then_some(())?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// A comma-separated list, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Urls(Vec<Url>);

impl Urls {
    pub fn parse(text: &str) -> Result<Urls, UrlError> {
        Urls::collect(text.split(',').filter(|part| !part.is_empty()))
    }

    /// As `parse`, where no URL is one more answer.
    pub fn parse_any(text: &str) -> Result<Urls, UrlError> {
        if text.is_empty() { Ok(Urls::default()) } else { Urls::parse(text) }
    }

    /// From single URLs, as `--initial-cluster` spells them one by one.
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

    /// The address of each listener: what is listed twice is one. With whether it is for connections outside
    /// of TLS, and for those inside.
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
