//! The connections between members. Each passes through a relay of this program, which can isolate members.
//!
//! ```text
//!   member ──▶ advertised peer port: relay ──▶ peer port of the member in that place
//! ```
//!
//! * Members are isolated in groups. Members of a group still reach each other, and clients reach all
//!   members.
//! * Silent: no bytes pass in the affected directions, not even a close. Connections stay open, and new ones
//!   are accepted. With a single direction, either requests or responses are held.
//! * Closed: connections are closed immediately, new ones included. With a single direction, either those
//!   that the group opened are closed, or the ones opened to it: each member sends its messages on
//!   connections that it opened.
//! * Bytes held longer than a moment are dropped and their connection is closed: a membership change that
//!   arrived long after it was requested would be applied after later ones.
//! * The process that opened a connection is found through `/proc`. An unnamed process is not a member, and
//!   is isolated from the isolated members.
//!
//! Handles places and process ids only; the transported bytes are opaque.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::plan::{At, Manner, Ways};
use crate::failure::{Attempt, Result};

/// Maximum bytes that one direction of a connection holds while it is severed.
const HELD_BYTES_MAX: usize = 64 << 10;
/// Held bytes are dropped after this time. It is shorter than the operator's timeout, and the
/// operator does not retry earlier.
const HELD_FOR_MAX: Duration = Duration::from_secs(3);
/// The state `ESTABLISHED` in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";

pub struct Links {
    processes: Arc<Mutex<BTreeMap<At, u32>>>,
    cuts: watch::Sender<Cuts>,
    /// Aborted on drop.
    _relays: JoinSet<()>,
}

#[derive(Clone, Debug, Default)]
struct Cuts {
    by_place: BTreeMap<At, Cut>,
    count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Equal for all members isolated together.
    number: u64,
    ways: Ways,
    manner: Manner,
}

impl Cuts {
    fn add(&mut self, group: impl Iterator<Item = At>, ways: Ways, manner: Manner) {
        self.count += 1;
        let cut = Cut { number: self.count, ways, manner };
        self.by_place.extend(group.map(|at| (at, cut)));
    }

    /// Reports whether a cut of this manner blocks traffic from one member to another. None is not a member.
    fn stop(&self, from: Option<At>, to: Option<At>, manner: Manner) -> bool {
        let cut = |at: Option<At>| at.and_then(|at| self.by_place.get(&at));
        let (from, to) = (cut(from), cut(to));
        if from.is_some() && from.map(|cut| cut.number) == to.map(|cut| cut.number) {
            return false;
        }
        let counts = |cut: Option<&Cut>, way| {
            cut.is_some_and(|cut| cut.manner == manner && (cut.ways == Ways::Both || cut.ways == way))
        };
        counts(from, Ways::From) || counts(to, Ways::To)
    }
}

/// A port that members dial, and the member it leads to.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub at: At,
    pub dialled_port: u16,
    pub peer_port: u16,
}

impl Links {
    /// Listens on all ports that members dial.
    pub async fn open(ways: &[Way]) -> Result<Links> {
        let mut bound = Vec::new();
        for way in ways {
            let listener = TcpListener::bind(("127.0.0.1", way.dialled_port)).await;
            bound.push((listener.or_say(&format!("listen on port {}", way.dialled_port))?, *way));
        }
        Ok(Links::over(bound))
    }

    fn over(bound: Vec<(TcpListener, Way)>) -> Links {
        let processes = Arc::new(Mutex::new(BTreeMap::new()));
        let cuts = watch::Sender::new(Cuts::default());
        let mut relays = JoinSet::new();
        for (listener, way) in bound {
            relays.spawn(relay(listener, way, Arc::clone(&processes), cuts.subscribe()));
        }
        Links { processes, cuts, _relays: relays }
    }

    pub fn name(&self, at: At, process: u32) {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).insert(at, process);
    }

    /// Severs these directions between the group and all remaining members.
    pub fn cut(&self, group: impl Iterator<Item = At>, ways: Ways, manner: Manner) {
        self.cuts.send_modify(|cuts| cuts.add(group, ways, manner));
    }

    /// Reconnects this member; held bytes are delivered first.
    pub fn mend(&self, at: At) {
        self.cuts.send_if_modified(|cuts| cuts.by_place.remove(&at).is_some());
    }
}

async fn relay(
    listener: TcpListener,
    way: Way,
    processes: Arc<Mutex<BTreeMap<At, u32>>>,
    cuts: watch::Receiver<Cuts>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                // The member has closed the connection already.
                let Ok((dialler, address)) = accepted else { continue };
                let processes = processes.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let from = owner(address.port(), way.dialled_port, &processes);
                connections.spawn(connect(dialler, way, from, cuts.clone()));
            }
        }
    }
}

/// Relays bytes in both directions until a side fails, both sides are closed, or a cut closes the
/// connection.
async fn connect(dialler: TcpStream, way: Way, from: Option<At>, mut cuts: watch::Receiver<Cuts>) {
    let to = Some(way.at);
    let passed = relay_connection(dialler, way, from, cuts.clone());
    // An error means that the experiment is over.
    let closed = async { cuts.wait_for(|cuts| cuts.stop(from, to, Manner::Closed)).await.map(drop) };
    tokio::select! {
        biased;
        _ = closed => {}
        () = passed => {}
    }
}

async fn relay_connection(dialler: TcpStream, way: Way, from: Option<At>, cuts: watch::Receiver<Cuts>) {
    let to = Some(way.at);
    let Ok(member) = TcpStream::connect(("127.0.0.1", way.peer_port)).await else { return };
    let (dialler_in, dialler_out) = dialler.into_split();
    let (member_in, member_out) = member.into_split();
    // An error closes both connections, and members see only that.
    let _ended = tokio::try_join!(
        pass(dialler_in, member_out, cuts.clone(), |cuts| !cuts.stop(from, to, Manner::Silent)),
        pass(member_in, dialler_out, cuts, |cuts| !cuts.stop(to, from, Manner::Silent)),
    );
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut cuts: watch::Receiver<Cuts>,
    passes: impl Fn(&Cuts) -> bool,
) -> std::io::Result<()> {
    let mut held = vec![0; HELD_BYTES_MAX];
    loop {
        let read = from.read(&mut held).await;
        let since = Instant::now();
        if cuts.wait_for(&passes).await.is_err() || since.elapsed() > HELD_FOR_MAX {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        match read? {
            0 => return to.shutdown().await,
            bytes => to.write_all(&held[..bytes]).await?,
        }
    }
}

/// Returns the process with the connection from one port to another.
fn owner(from_port: u16, to_port: u16, processes: &BTreeMap<At, u32>) -> Option<At> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let socket = format!("socket:[{}]", inode(&table, from_port, to_port)?);
    let holds = |process: u32| -> bool {
        let Ok(files) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
        files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to == Path::new(&socket)))
    };
    processes.iter().find(|(_, process)| holds(**process)).map(|(at, _)| *at)
}

/// Returns the inode of a connection in a table in the format of `/proc/net/tcp`.
fn inode(table: &str, from_port: u16, to_port: u16) -> Option<&str> {
    let (from, to) = (format!(":{from_port:04X}"), format!(":{to_port:04X}"));
    table.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = local.ends_with(&from) && remote.ends_with(&to) && state == ESTABLISHED;
        // Skips queues, timer, retransmissions, user and timeout.
        is_it.then(|| fields.nth(5)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inode_of_a_connection_is_found() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 0100007F:C001 0100007F:0050 06 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20 4 30 10 -1
   2: 0100007F:C001 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 20 4 30 10 -1
   3: 0100007F:0050 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 14 1 0 20 4 30 10 -1
";
        assert_eq!(inode(table, 0xC001, 0x50), Some("13"));
        assert_eq!(inode(table, 0x50, 0xC001), Some("14"));
        assert_eq!(inode(table, 0x50, 0x51), None);
    }

    async fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    async fn echoed(stream: &mut TcpStream, byte: u8) -> u8 {
        let mut echo = [byte];
        stream.write_all(&echo).await.unwrap();
        stream.read_exact(&mut echo).await.unwrap();
        echo[0]
    }

    #[test]
    fn a_cut_stops_its_ways_between_its_group_and_all_others() {
        let stops = |ways, manner| {
            let mut cuts = Cuts::default();
            cuts.add([1, 2].into_iter(), ways, manner);
            cuts.add(std::iter::once(3), Ways::Both, Manner::Silent);
            let pairs = [(1, 2), (1, 0), (0, 1), (1, 9), (9, 1), (0, 9)];
            let member = |at| (at != 9).then_some(at);
            pairs.map(|(from, to)| cuts.stop(member(from), member(to), manner))
        };
        assert_eq!(stops(Ways::Both, Manner::Silent), [false, true, true, true, true, false]);
        assert_eq!(stops(Ways::From, Manner::Closed), [false, true, false, true, false, false]);
        assert_eq!(stops(Ways::To, Manner::Closed), [false, false, true, false, true, false]);

        let mut cuts = Cuts::default();
        cuts.add(std::iter::once(1), Ways::Both, Manner::Silent);
        cuts.add(std::iter::once(2), Ways::From, Manner::Closed);
        let both = [(Some(1), Some(2)), (Some(2), Some(1))];
        assert_eq!(both.map(|(from, to)| cuts.stop(from, to, Manner::Silent)), [true, true], "two cuts");
        assert_eq!(both.map(|(from, to)| cuts.stop(from, to, Manner::Closed)), [false, true], "two cuts");
    }

    /// Starts an echo member in places 1 and 2, dialled by this process. Returns its dial ports.
    async fn echo() -> (Links, [u16; 2]) {
        let (member, peer_port) = listener().await;
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = member.accept().await.unwrap();
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await.unwrap();
                });
            }
        });
        let ((first, first_port), (second, second_port)) = (listener().await, listener().await);
        let way = |at, dialled_port| Way { at, dialled_port, peer_port };
        let links = Links::over(vec![(first, way(1, first_port)), (second, way(2, second_port))]);
        (links, [first_port, second_port])
    }

    /// This process acts as the member in place 0.
    #[tokio::test]
    async fn nothing_passes_while_either_end_is_cut_off() {
        let (links, [first_port, second_port]) = echo().await;
        let mut stranger = TcpStream::connect(("127.0.0.1", second_port)).await.unwrap();
        assert_eq!(echoed(&mut stranger, 1).await, 1);
        links.name(0, std::process::id());
        let mut own = TcpStream::connect(("127.0.0.1", first_port)).await.unwrap();
        for (at, ways) in [(0, Ways::Both), (1, Ways::Both), (0, Ways::From), (0, Ways::To), (1, Ways::To)] {
            assert_eq!(echoed(&mut own, 7).await, 7);
            links.cut(std::iter::once(at), ways, Manner::Silent);
            own.write_all(&[8]).await.unwrap();
            // These bytes were sent later and echoed, so the relays have run.
            for _ in 0..10 {
                assert_eq!(echoed(&mut stranger, 9).await, 9);
            }
            let mut echo = [0];
            assert!(own.try_read(&mut echo).is_err(), "{at} is cut off, {ways:?}");
            links.mend(at);
            own.read_exact(&mut echo).await.unwrap();
            assert_eq!(echo, [8]);
        }
        links.cut([0, 1].into_iter(), Ways::Both, Manner::Silent);
        assert_eq!(echoed(&mut own, 7).await, 7, "cut off together");
    }

    #[tokio::test]
    async fn connections_end_where_a_cut_closes_them() {
        let (links, [first_port, _]) = echo().await;
        links.name(0, std::process::id());
        for (at, ways) in [(0, Ways::Both), (1, Ways::Both), (0, Ways::From), (1, Ways::To)] {
            let mut own = TcpStream::connect(("127.0.0.1", first_port)).await.unwrap();
            assert_eq!(echoed(&mut own, 7).await, 7);
            links.cut(std::iter::once(at), ways, Manner::Closed);
            let mut next = TcpStream::connect(("127.0.0.1", first_port)).await.unwrap();
            for stream in [&mut own, &mut next] {
                assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0, "{at} is cut off, {ways:?}");
            }
            links.mend(at);
        }
        links.cut(std::iter::once(1), Ways::From, Manner::Closed);
        let mut own = TcpStream::connect(("127.0.0.1", first_port)).await.unwrap();
        assert_eq!(echoed(&mut own, 7).await, 7, "opened from the other side");
    }
}
