//! One fresh member as a separate process: temporary directory, loopback, ports that no other test takes.

use std::ffi::OsString;
use std::process::Command;

use testkit::Process;

/// Names the binary to run in place of this project's.
const OVERRIDE: &str = "KV_CONFORMANCE_SERVER";
const READY: &str = "ready to serve client requests";
/// etcd is ready before its cluster has a version, and until then refuses every downgrade.
const HAS_VERSION: &str = "set initial cluster version";

pub struct Server {
    client_port: u16,
    _process: Process,
    _data: tempfile::TempDir,
}

pub fn overridden() -> bool {
    std::env::var_os(OVERRIDE).is_some()
}

impl Server {
    /// Returns when the member has said that it is ready.
    pub fn start(flags: &[String]) -> Self {
        let binary =
            std::env::var_os(OVERRIDE).unwrap_or_else(|| OsString::from(env!("CARGO_BIN_EXE_kv-server")));
        let data = tempfile::tempdir().expect("a directory can be made");
        let client_port = testkit::port();
        let client = format!("http://127.0.0.1:{client_port}");
        let peer = format!("http://127.0.0.1:{}", testkit::port());
        let process = Process::start(
            Command::new(&binary)
                .args(["--name", "m1", "--data-dir"])
                .arg(data.path().join("m1"))
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &format!("m1={peer}"), "--log-level", "info"])
                .args(flags),
        );
        process.wait_for(READY);
        if overridden() {
            process.wait_for(HAS_VERSION);
        }
        Self { client_port, _process: process, _data: data }
    }

    pub fn client_port(&self) -> u16 {
        self.client_port
    }
}
