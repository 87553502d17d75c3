//! Conversion of request heads to `http` types, cached for heads that repeat.

use std::sync::Arc;

use ::http2::{Field, Head, HeaderBlock};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, Uri, Version};

/// Number of cached heads: a client repeats one per method that it calls.
const REMEMBERED_MAX: usize = 16;
/// Maximum size of names and values of a cached head.
const REMEMBERED_BYTES_MAX: usize = 2048;

/// The head of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestHead {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    /// Bytes of path, authority, names and values.
    pub(super) bytes: usize,
}

impl RequestHead {
    /// Returns None for an invalid method, address or field.
    fn new(head: &Head) -> Option<RequestHead> {
        let mut uri = http::uri::Parts::default();
        if let Some(authority) = head.authority.as_ref().filter(|authority| !authority.is_empty()) {
            uri.authority = Some(Authority::from_maybe_shared(authority.clone()).ok()?);
        }
        if let Some(path) = &head.path {
            uri.path_and_query = Some(PathAndQuery::from_maybe_shared(path.clone()).ok()?);
        }
        // A URI without a host must not have a scheme.
        let scheme = head.scheme.as_ref().map(|scheme| Scheme::try_from(&scheme[..]));
        uri.scheme = scheme.transpose().ok()?.filter(|_| uri.authority.is_some());
        Some(RequestHead {
            method: Method::from_bytes(&head.method).ok()?,
            uri: Uri::from_parts(uri).ok()?,
            headers: header_map(&head.fields)?,
            bytes: bytes_of(head),
        })
    }

    /// Returns the head with an additional field.
    pub(super) fn with(&self, name: HeaderName, value: HeaderValue) -> RequestHead {
        let mut head = self.clone();
        head.headers.append(name, value);
        head
    }

    /// Returns a request with this head.
    pub(crate) fn request<B>(&self, body: B) -> http::Request<B> {
        let mut request = http::Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// Bytes of path, authority, names and values.
fn bytes_of(head: &Head) -> usize {
    let path = head.path.as_ref().map_or(0, |path| path.len());
    let authority = head.authority.as_ref().map_or(0, |authority| authority.len());
    path + authority + head.fields.iter().map(|field| field.name.len() + field.value.len()).sum::<usize>()
}

/// Returns None if a field cannot be represented.
pub(super) fn header_map(fields: &[Field]) -> Option<HeaderMap> {
    let mut map = HeaderMap::with_capacity(fields.len());
    for Field { name, value } in fields {
        let name = HeaderName::from_bytes(name).ok()?;
        map.try_append(name, HeaderValue::from_maybe_shared(value.clone()).ok()?).ok()?;
    }
    Some(map)
}

/// Encodes the head of a response.
pub(crate) fn response_block<B>(response: &Response<B>) -> HeaderBlock {
    let fields = response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    HeaderBlock::new(std::iter::once((":status", response.status().as_str().as_bytes())).chain(fields))
}

/// Encodes trailers.
pub(crate) fn trailers_block(trailers: &HeaderMap) -> HeaderBlock {
    HeaderBlock::new(trailers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())))
}

/// Cached heads, keyed by the decoded head that the connection shares between equal header blocks.
#[derive(Debug, Default)]
pub(super) struct Heads {
    entries: Vec<(Arc<Head>, Arc<RequestHead>)>,
    /// Index of the last hit.
    last: usize,
    /// The next entry to replace.
    next: usize,
}

impl Heads {
    pub(super) fn get(&mut self, head: &Arc<Head>) -> Option<Arc<RequestHead>> {
        let is_it = |entry: &(Arc<Head>, Arc<RequestHead>)| Arc::ptr_eq(&entry.0, head);
        if let Some(entry) = self.entries.get(self.last).filter(|entry| is_it(entry)) {
            return Some(Arc::clone(&entry.1));
        }
        if let Some(place) = self.entries.iter().position(is_it) {
            self.last = place;
            return Some(Arc::clone(&self.entries[place].1));
        }
        let made = Arc::new(RequestHead::new(head)?);
        self.remember(head, &made);
        Some(made)
    }

    fn remember(&mut self, head: &Arc<Head>, made: &Arc<RequestHead>) {
        // A head with a single owner is not in the connection's cache, and will not repeat.
        if Arc::strong_count(head) == 1 || made.bytes > REMEMBERED_BYTES_MAX {
            return;
        }
        let entry = (Arc::clone(head), Arc::clone(made));
        if self.entries.len() < REMEMBERED_MAX {
            self.entries.push(entry);
        } else {
            self.entries[self.next] = entry;
            self.next = (self.next + 1) % REMEMBERED_MAX;
        }
    }

    /// Releases the memory.
    pub(super) fn clear(&mut self) {
        *self = Heads::default();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn head(path: &'static str, fields: &[(&'static str, &'static [u8])]) -> Arc<Head> {
        let field = |(name, value): &(&'static str, &'static [u8])| Field {
            name: Bytes::from_static(name.as_bytes()),
            value: Bytes::from_static(value),
        };
        Arc::new(Head {
            method: Bytes::from_static(b"POST"),
            scheme: Some(Bytes::from_static(b"http")),
            path: Some(Bytes::from_static(path.as_bytes())),
            authority: Some(Bytes::from_static(b"localhost:2379")),
            fields: fields.iter().map(field).collect(),
            content_length: None,
        })
    }

    #[test]
    fn a_head_becomes_a_request_or_is_refused() {
        type Fields = &'static [(&'static str, &'static [u8])];
        let cases: [(&str, Fields, Option<&str>); 6] = [
            ("/a/b?c=d", &[("te", b"trailers")], Some("http://localhost:2379/a/b?c=d")),
            ("*", &[], Some("http://localhost:2379*")),
            ("/a b", &[], None),
            ("/a", &[("x", b"\x01")], None),
            ("/a", &[("x", b"\xff")], Some("http://localhost:2379/a")),
            ("/a", &[("x", b" b\t"), ("token", b" ")], Some("http://localhost:2379/a")),
        ];
        for (path, fields, uri) in cases {
            let made = Heads::default().get(&head(path, fields));
            assert_eq!(made.as_ref().map(|made| made.uri.to_string()).as_deref(), uri, "{path}");
            assert!(made.is_none_or(|made| made.headers.len() == fields.len()));
        }
    }

    #[test]
    fn an_empty_authority_is_none_and_a_scheme_is_one_also_without_authority() {
        for (scheme, authority, uri) in [
            ("http", "x", Some("http://x/a")),
            ("http", "", Some("/a")),
            ("h_p", "x", None),
            ("h_p", "", None),
            ("http", "a b", None),
        ] {
            let mut named = Arc::unwrap_or_clone(head("/a", &[]));
            named.scheme = Some(Bytes::from_static(scheme.as_bytes()));
            named.authority = Some(Bytes::from_static(authority.as_bytes()));
            let made = Heads::default().get(&Arc::new(named));
            assert_eq!(made.map(|made| made.uri.to_string()).as_deref(), uri, "{scheme} {authority}");
        }
    }

    #[test]
    fn a_head_that_repeats_is_made_once_and_one_that_is_large_or_alone_is_not_kept() {
        let mut heads = Heads::default();
        let shared = head("/a", &[]);
        let cached = Arc::clone(&shared);
        let first = heads.get(&shared).unwrap();
        assert!(Arc::ptr_eq(&first, &heads.get(&cached).unwrap()));
        for _ in 0..100 {
            heads.get(&head("/b", &[])).unwrap();
            let large = head("/c", &[("x", &[b'x'; 3000])]);
            let _cached = Arc::clone(&large);
            heads.get(&large).unwrap();
        }
        assert_eq!(heads.entries.len(), 1);
        for _ in 0..100 {
            let other = head("/d", &[]);
            let _cached = Arc::clone(&other);
            heads.get(&other).unwrap();
        }
        assert_eq!(heads.entries.len(), REMEMBERED_MAX);
    }
}
