//! Ports for servers under test.
//!
//! A port that the kernel hands out for port 0 may be taken again as soon as it is released: by another test,
//! or as the source port of an outgoing connection. So ports are chosen here, in four steps:
//!
//! 1. They are outside `ip_local_port_range`, where the kernel chooses for outgoing connections and port 0.
//! 2. A counter gives each port out once per process. Processes begin at different places.
//! 3. An exclusive `flock` on a file per port keeps other test processes away until this process ends. The
//!    kernel releases it, however the process ends.
//! 4. The port is dialled once, so that one on which a program without locks listens is skipped. It is not
//!    bound: a program that another thread starts meanwhile would hold the socket until it has begun.

use std::fs::{DirBuilder, File};
use std::net::{Ipv4Addr, TcpStream};
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};

/// Above the ports of well-known services, below those that the scripts of this project use.
const RANGE: Range<u16> = 10_000..20_000;
/// The distance of the first ports of two processes whose ids are neighbours: more than most processes use,
/// and coprime with the size of the range.
const STRIDE: u32 = 211;

/// What this process holds. The files stay open until it ends.
struct PortLeases {
    /// Offset into the range of the next port to try.
    next: u32,
    /// Ports that were tried.
    tried: u32,
    files: Vec<File>,
}

static LEASES: Mutex<Option<PortLeases>> = Mutex::new(None);

/// A port that no other test process and no outgoing connection takes while this process runs.
///
/// # Panics
///
/// If the temporary directory cannot be written, or every port of the range is in use.
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

/// So many ports, each as in [`port`].
pub fn ports(count: usize) -> Vec<u16> {
    (0..count).map(|_| port()).collect()
}

/// The locked file of a port, unless the port is taken.
fn lease(port: u16) -> Option<File> {
    lock(port).filter(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err())
}

/// The lock file of a port, unless another process holds it. It is never removed: its lock is what counts.
fn lock(port: u16) -> Option<File> {
    // One directory per user, since another user's files cannot be opened.
    let uid = rustix::process::getuid().as_raw();
    let directory = std::env::temp_dir().join(format!("kv-server-test-ports-{uid}"));
    let path: PathBuf = directory.join(port.to_string());
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    let file = made.and_then(|()| File::options().create(true).append(true).open(&path));
    let file = file.unwrap_or_else(|error| panic!("open {}: {error}", path.display()));
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok().map(|()| file)
}

/// Where the kernel chooses ports by itself. A machine whose range covers all of [`RANGE`] has no better
/// ports than others, so none is left out there.
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
        // A second open file description conflicts with the first as one of another process does.
        assert!(lease(port()).is_none());
    }

    #[test]
    fn a_port_with_a_listener_is_not_given_out() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let port = listener.local_addr().expect("a bound listener has an address").port();
        assert!(lock(port).is_some() && lease(port).is_none());
    }
}
