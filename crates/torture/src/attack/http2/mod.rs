//! HTTP/2 clients, both compliant and malicious.

pub(super) mod frame; // its bytes

pub(super) mod connection; // a raw connection
pub(super) mod requests; // requests as bytes and calls
pub(super) mod session; // HTTP/2 by the rules
