//! Failed calls: a gRPC code and a message, from the server or from this client.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    pub code: Code,
    pub message: String,
}

/// gRPC's status codes by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub u16);

impl Code {
    pub const OK: Code = Code(0);
    pub const UNKNOWN: Code = Code(2);
    pub const DEADLINE_EXCEEDED: Code = Code(4);
    pub const NOT_FOUND: Code = Code(5);
    pub const INTERNAL: Code = Code(13);
    pub const UNAVAILABLE: Code = Code(14);
    pub const DATA_LOSS: Code = Code(15);
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match api::CODE_NAMES.get(usize::from(self.0)) {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "Code({})", self.0),
        }
    }
}

impl CallFailure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Returns the failure of a connection that broke during the call: it is unknown whether the server
    /// executed it.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Code::UNAVAILABLE, message)
    }

    /// Returns the failure of a server that violated the protocol.
    pub fn protocol(message: impl Into<String>) -> Self {
        Self::new(Code::INTERNAL, message)
    }
}

impl From<tonic::Status> for CallFailure {
    fn from(status: tonic::Status) -> Self {
        Self::new(Code(status.code() as u16), status.message())
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.code, self.message)
    }
}
