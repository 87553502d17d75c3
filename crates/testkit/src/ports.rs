//! Allocates ports for servers under test.
//!
//! A port that the kernel assigns for port 0 may be reused as soon as it is released, by another
//! test or as the source port of an outgoing connection. Ports are therefore allocated here, in
//! four steps:
//!
//! 1. They are outside `ip_local_port_range`, from which the kernel chooses ports for outgoing
//!    connections and port 0.
//! 2. A counter allocates each port once per process. Processes start at different offsets.
//! 3. An exclusive `flock` on a file per port excludes other test processes until this process
//!    exits. The kernel releases it even after a crash.
//! 4. A connection attempt detects programs that listen without locks. The port is not bound: a
//!    child process that another thread spawns concurrently would inherit the socket until it calls
//!    exec.

use std::fs::{DirBuilder, File};
use std::net::{Ipv4Addr, TcpStream};
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};

/// Above well-known ports, and below the ports that the project's scripts use.
const RANGE: Range<u16> = 10_000..20_000;
/// Distance between the first ports of two processes with consecutive PIDs: more than most
/// processes use, and coprime with the size of the range.
const STRIDE: u32 = 211;

/// Locks of this process. The files stay open until it exits.
struct PortLeases {
    /// Offset into the range of the next port to try.
    next: u32,
    /// Number of ports tried.
    tried: u32,
    files: Vec<File>,
}

static LEASES: Mutex<Option<PortLeases>> = Mutex::new(None);

/// Returns a port that no other test process or outgoing connection uses while this process runs.
///
/// # Panics
///
/// If the temporary directory is not writable, or every port of the range is in use.
pub fn port() -> u16 {
    let mut leases = LEASES.lock().unwrap_or_else(PoisonError::into_inner);
    let leases = leases.get_or_insert_with(|| PortLeases {
        next: std::process::id().wrapping_mul(STRIDE),
        tried: 0,
        files: Vec::new(),
    });
    let ephemeral = ephemeral_ports();
    let len = u32::from(RANGE.end - RANGE.start);
    loop {
        assert!(leases.tried < len, "all ports of {RANGE:?} are in use");
        let port = RANGE.start + (leases.next % len) as u16;
        leases.next = leases.next.wrapping_add(1);
        leases.tried += 1;
        if ephemeral.contains(&port) {
            continue;
        }
        if let Some(file) = lease(port) {
            leases.files.push(file);
            return port;
        }
    }
}

/// Returns `count` ports; see [`port`].
pub fn ports(count: usize) -> Vec<u16> {
    (0..count).map(|_| port()).collect()
}

/// Locks a port. Returns `None` if it is in use.
fn lease(port: u16) -> Option<File> {
    lock(port).filter(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err())
}

/// Locks the file of a port. Returns `None` if another process holds the lock. The file is never
/// removed; only the lock counts.
fn lock(port: u16) -> Option<File> {
    // One directory per user, since other users' files cannot be opened.
    let uid = rustix::process::getuid().as_raw();
    let directory = std::env::temp_dir().join(format!("kv-server-test-ports-{uid}"));
    let path: PathBuf = directory.join(port.to_string());
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    let file = made.and_then(|()| File::options().create(true).append(true).open(&path));
    let file = file.unwrap_or_else(|error| panic!("open {}: {error}", path.display()));
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok().map(|()| file)
}

/// Returns the kernel's range of ephemeral ports, or an empty one if it covers all of [`RANGE`],
/// because skipping it would leave no port.
fn ephemeral_ports() -> Range<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().map_while(|number| number.parse().ok());
    let range: Option<Range<u16>> =
        numbers.next().zip(numbers.next()).map(|(low, high): (u16, u16)| low..high);
    range.filter(|range| range.start > RANGE.start || range.end < RANGE.end).unwrap_or(0..0)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn ports_are_distinct_and_outside_the_range_of_outgoing_connections() {
        let given: Vec<u16> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| ports(25))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        let mut distinct = given.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!((given.len(), distinct.len()), (100, 100));
        assert!(given.iter().all(|port| RANGE.contains(port) && !ephemeral_ports().contains(port)));
        for port in given {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("free");
        }
    }

    #[test]
    fn a_port_that_is_held_is_given_to_no_other_process() {
        // A second open file description conflicts with the first, like one of another process.
        assert!(lease(port()).is_none());
    }

    #[test]
    fn a_port_with_a_listener_is_not_given_out() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        assert!(lock(port).is_some() && lease(port).is_none());
    }
}
