//! Log of failed handshakes: at most one line per second, since anyone can cause them.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use parking_lot::Mutex;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error, OtherError};

use super::setup::PortKind;
use certificates::date;
use process::log::LogPace;

#[derive(Debug)]
pub struct Failure {
    /// Server name requested by the client; empty if none.
    pub server_name: String,
    pub reason: String,
}

/// Rate limiter of the log lines, with the number of suppressed ones.
#[derive(Default)]
pub struct RefusedHandshakes(Mutex<LogPace>);

impl RefusedHandshakes {
    pub fn note(&self, port: PortKind, remote: SocketAddr, failure: &Failure) {
        let Some(unlogged) = self.0.lock().next(Instant::now()) else { return };
        let (remote_addr, Failure { server_name, reason }) = (remote.to_string(), failure);
        match port {
            PortKind::Clients => {
                let message = "rejected connection on client endpoint";
                tracing::warn!(remote_addr, server_name, error = reason, unlogged, message);
            }
            PortKind::Peers => {
                let message = "rejected connection on peer endpoint";
                tracing::warn!(remote_addr, server_name, error = reason, unlogged, message);
            }
        }
    }
}

/// Describes a failed handshake for operators. Go's wording follows in brackets.
pub fn reason(error: &io::Error) -> String {
    let Some(error) = error.get_ref().and_then(|error| error.downcast_ref::<Error>()) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                "the other side closed the connection within the handshake (EOF)".to_owned()
            }
            _ => error.to_string(),
        };
    };
    match error {
        Error::NoCertificatesPresented => {
            "the client shows no certificate, and this port requires one (tls: client didn't provide a \
             certificate)"
                .to_owned()
        }
        Error::InvalidCertificate(error) => certificate_reason(error),
        Error::AlertReceived(alert) => alert_reason(*alert),
        Error::InvalidMessage(_) => {
            "the server does not use TLS, perhaps plain HTTP (tls: first record does not look like a \
             TLS handshake)"
                .to_owned()
        }
        Error::PeerIncompatible(what) => {
            format!("both sides have no TLS version, cipher suite, curve or signature in common: {what:?}")
        }
        other => other.to_string(),
    }
}

fn certificate_reason(error: &CertificateError) -> String {
    let at = |time: &tokio_rustls::rustls::pki_types::UnixTime| date(time.as_secs().cast_signed());
    match error {
        CertificateError::UnknownIssuer => {
            "no trusted authority has issued the certificate (x509: certificate \
                                            signed by unknown authority)"
                .to_owned()
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("the certificate has expired: it was valid until {}", at(not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("the certificate is not valid before {}", at(not_before))
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let presented = if presented.is_empty() { "no name".to_owned() } else { presented.join(", ") };
            format!("the certificate is valid for {presented}, not for {}", expected.to_str())
        }
        CertificateError::BadSignature => {
            "the other side does not have the key of its certificate".to_owned()
        }
        CertificateError::Other(OtherError(refusal)) => refusal.to_string(),
        other => format!("the certificate is not accepted: {other}"),
    }
}

fn alert_reason(alert: AlertDescription) -> String {
    use AlertDescription::{
        BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked, CertificateUnknown,
        UnknownCA, UnsupportedCertificate,
    };
    let said = go_alert(alert);
    match alert {
        BadCertificate
        | CertificateExpired
        | CertificateRevoked
        | CertificateUnknown
        | UnknownCA
        | UnsupportedCertificate => format!(
            "the other side does not accept the certificate that this member shows ({said}): does it trust \
             the authority, and does the certificate have the name that it dials?"
        ),
        CertificateRequired => format!("the other side requires a certificate ({said})"),
        _ => format!("the other side ended the handshake ({said})"),
    }
}

/// Returns the peer's alert in the wording of Go's library, which log-based monitoring matches.
fn go_alert(alert: AlertDescription) -> String {
    let words = match alert {
        // Go has a single alert where rustls distinguishes two.
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => "bad certificate",
        AlertDescription::UnsupportedCertificate => "unsupported certificate",
        AlertDescription::CertificateRevoked => "revoked certificate",
        AlertDescription::CertificateExpired => "expired certificate",
        AlertDescription::CertificateRequired => "certificate required",
        AlertDescription::UnknownCA => "unknown certificate authority",
        AlertDescription::HandshakeFailure => "handshake failure",
        AlertDescription::ProtocolVersion => "protocol version not supported",
        other => return format!("remote error: {other:?}"),
    };
    format!("remote error: tls: {words}")
}

/// Describes a failed or broken connection by the error of the network or of TLS, without the wrappers of
/// libraries. All ways in which the peer can close it share one text.
pub fn broken(error: &(dyn StdError + 'static)) -> String {
    let mut last = error;
    loop {
        if let Some(error) = last.downcast_ref::<io::Error>() {
            return match error.kind() {
                _ if error.get_ref().is_some_and(|inner| inner.is::<Error>()) => reason(error),
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted => "the other side closed the connection".to_owned(),
                _ => error.to_string(),
            };
        }
        match last.source() {
            Some(source) => last = source,
            None => return last.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("transport error: {0:?}")]
    struct Transport(#[source] io::Error);

    #[test]
    fn a_broken_connection_has_one_text_without_structures() {
        let alert = io::Error::other(Error::AlertReceived(AlertDescription::BadCertificate));
        let refused = "the other side does not accept the certificate that this member shows (remote error: \
                       tls: bad certificate): does it trust the authority, and does the certificate have the \
                       name that it dials?";
        let closed = "the other side closed the connection";
        for (error, text) in [
            (alert, refused),
            (io::Error::other("no route"), "no route"),
            (io::Error::new(io::ErrorKind::UnexpectedEof, "see https://docs.rs"), closed),
            (io::ErrorKind::ConnectionReset.into(), closed),
            (io::Error::new(io::ErrorKind::BrokenPipe, "stream closed because of a broken pipe"), closed),
        ] {
            assert_eq!(broken(&Transport(error)), text);
        }
    }
}
