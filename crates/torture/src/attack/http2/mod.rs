//! HTTP/2 clients, both compliant and malicious.

pub(super) mod frame; // encoding of frames

pub(super) mod connection; // a raw connection
pub(super) mod requests; // requests as bytes and calls
pub(super) mod session; // a compliant client
