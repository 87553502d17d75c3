//! The latest usable configuration of a port.
//!
//! ```text
//!   every RELOAD_INTERVAL: read the files ──same bytes──▶ no change
//!                             └──other bytes──▶ build ──▶ swap, or log why not and keep the last good one
//! ```
//!
//! Open connections retain their initial configuration.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tokio_rustls::rustls::{ClientConfig, ServerConfig};

use super::checks::CertificateChecks;
use super::contents::{Contents, TlsError};
use super::loaded::{LoadedFiles, PortKind};
use certificates::date;
use config::PortTls;
use process::log::causes;
use process::shutdown::Stop;

/// Delay until a new revocation list or certificate takes effect, at the cost of reading some kilobytes.
/// Files change a few times a month.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Certificates that expire within this time are logged as a warning once a day.
const WARNED_BEFORE: Duration = DAY.saturating_mul(14);

/// Configuration of a port, reloadable.
pub struct Live {
    port: PortTls,
    used: PortKind,
    loaded: Mutex<Arc<LoadedFiles>>,
}

impl Live {
    /// Loads the configuration of the client port.
    pub fn clients(port: PortTls) -> Result<(Arc<Live>, Reload), TlsError> {
        Live::load(port, PortKind::Clients)
    }

    /// Loads the configuration of the peer port, and of connections to other members' peer ports.
    pub fn peers(port: PortTls) -> Result<(Arc<Live>, Reload), TlsError> {
        Live::load(port, PortKind::Peers)
    }

    fn load(port: PortTls, used: PortKind) -> Result<(Arc<Live>, Reload), TlsError> {
        let contents = Contents::read(&port)?;
        let loaded = Mutex::new(Arc::new(LoadedFiles::build(&port, used, &contents)?));
        let live = Arc::new(Live { port, used, loaded });
        let reload = Reload { live: Arc::clone(&live), contents, said: None, warned: None };
        Ok((live, reload))
    }

    pub fn server(&self) -> Option<(Arc<ServerConfig>, Arc<CertificateChecks>)> {
        let loaded = self.loaded.lock();
        Some((Arc::clone(loaded.server.as_ref()?), Arc::clone(&loaded.checks)))
    }

    /// Returns the port and the earliest expiry of its presented certificates, in seconds since 1970.
    pub fn certificate_end(&self) -> Option<(PortKind, i64)> {
        Some((self.used, self.loaded.lock().certificate_end?))
    }

    pub fn client(&self) -> Option<(Arc<ClientConfig>, Arc<CertificateChecks>)> {
        let loaded = self.loaded.lock();
        Some((Arc::clone(loaded.client.as_ref()?), Arc::clone(&loaded.checks)))
    }
}

/// Reloads the files of a port when they change.
pub struct Reload {
    live: Arc<Live>,
    /// Files of the current configuration.
    contents: Contents,
    /// Last logged error, to log it once.
    said: Option<String>,
    /// Time of the last expiry warning.
    warned: Option<Instant>,
}

impl Reload {
    /// Returns the certificate files with the time at which their first certificate expires, in seconds
    /// since 1970.
    pub fn certificate_ends(&self) -> Vec<(&Path, i64)> {
        self.contents.ends()
    }

    /// Runs until `stop`. Spawn it on a runtime that does not serve requests.
    pub async fn run(mut self, stop: Stop) {
        loop {
            if self.warned.is_none_or(|warned| warned.elapsed() >= DAY) {
                self.warned = Some(Instant::now());
                self.warn_of_ends(SystemTime::now());
            }
            tokio::select! {
                () = tokio::time::sleep(RELOAD_INTERVAL) => {}
                () = stop.stopped() => return,
            }
            let Ok(checked) = tokio::task::spawn_blocking(move || {
                self.check();
                self
            })
            .await
            else {
                tracing::error!("certificate reload task panicked; certificates will not be reloaded");
                return;
            };
            self = checked;
        }
    }

    fn warn_of_ends(&self, now: SystemTime) {
        for (path, end) in self.contents.ends_of_pairs() {
            let (port, path, not_after) = (self.live.used.name(), path.display(), date(end));
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(end.try_into().unwrap_or(0));
            match at.duration_since(now) {
                Err(_) => tracing::warn!(
                    port, certificate = %path, not_after,
                    "certificate has expired; replace the files, no restart is needed"
                ),
                Ok(left) if left < WARNED_BEFORE => tracing::warn!(
                    port, certificate = %path, not_after,
                    "certificate expires within 14 days; replace the files, no restart is needed"
                ),
                Ok(_) => {}
            }
        }
    }

    pub fn check(&mut self) {
        let Live { port, used, loaded } = &*self.live;
        let built = Contents::read(port).and_then(|contents| {
            if contents == self.contents {
                return Ok(None);
            }
            LoadedFiles::build(port, *used, &contents).map(|loaded| Some((contents, loaded)))
        });
        match built {
            Ok(None) => self.said = None,
            Ok(Some((contents, new))) => {
                *loaded.lock() = Arc::new(new);
                self.contents = contents;
                (self.said, self.warned) = (None, None);
                tracing::info!(port = ?used, "reloaded certificates");
            }
            Err(error) => {
                let text = causes(&error);
                if self.said.as_ref() != Some(&text) {
                    tracing::error!(
                        port = ?used,
                        error = text,
                        "certificate reload failed; keeping the current certificates"
                    );
                    self.said = Some(text);
                }
            }
        }
    }
}
