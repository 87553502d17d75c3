//! What a replicated put costs at least: three processes of one thread, and an open-loop client.
//!
//! ```text
//!   client ─put─▶ member ─forward─▶ leader ─append─▶ followers
//!          ◀─answer─ member ◀─done─ leader ◀─ack (after fdatasync)─ followers
//! ```
//!
//! * `floor serve 0 FILE A,B,C`: a member; the first one leads. Each turn of its loop reads all sockets,
//!   writes once to each that has something to get, and syncs what came with one `fdatasync`.
//! * `floor drive RATE SECONDS CONNS A,B,C`: puts of 256 bytes, each at its intended time, to all members in
//!   turn. With a rate of 0 one client waits for each answer.
//!
//! The leader counts itself after its sync. The commit index travels with the next append or answer, or alone
//! after a millisecond. No elections, no checks, no store, no HTTP/2: a server that does less loses writes.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

const LISTENER: Token = Token(usize::MAX);
const VALUE: [u8; 256] = [7; 256];
/// How long the commit index waits for something that takes it along.
const COMMIT_TIMEOUT: Duration = Duration::from_millis(1);

/// Kinds of frames: kind, length of the payload, number, commit index, payload.
const HELLO: u8 = 0;
const PUT: u8 = 1;
const ANSWER: u8 = 2;
const APPEND: u8 = 3;
const ACK: u8 = 4;
const COMMIT: u8 = 5;
const HEAD: usize = 21;

struct Peer {
    socket: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
}

struct Frame {
    from: usize,
    kind: u8,
    number: u64,
    commit: u64,
    payload: Vec<u8>,
}

impl Peer {
    fn send(&mut self, kind: u8, number: u64, commit: u64, payload: &[u8]) {
        self.output.push(kind);
        self.output.extend((payload.len() as u32).to_le_bytes());
        self.output.extend(number.to_le_bytes());
        self.output.extend(commit.to_le_bytes());
        self.output.extend(payload);
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.socket.write(&self.output) {
                Ok(bytes) => drop(self.output.drain(..bytes)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what is there. A short read means that the socket is empty.
    fn receive(&mut self, from: usize, frames: &mut Vec<Frame>) -> io::Result<()> {
        let mut buffer = [0; 64 << 10];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => {
                    self.input.extend_from_slice(&buffer[..bytes]);
                    if bytes < buffer.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let mut at = 0;
        while let Some(head) = self.input[at..].first_chunk::<HEAD>() {
            let word =
                |from: usize| u64::from_le_bytes(head[from..from + 8].try_into().expect("eight bytes"));
            let length = u32::from_le_bytes(head[1..5].try_into().expect("four bytes")) as usize;
            let Some(payload) = self.input[at + HEAD..].get(..length) else { break };
            frames.push(Frame {
                from,
                kind: head[0],
                number: word(5),
                commit: word(13),
                payload: payload.into(),
            });
            at += HEAD + length;
        }
        self.input.drain(..at);
        Ok(())
    }
}

/// The sockets of a process.
struct Sockets {
    poll: Poll,
    events: Events,
    listener: Option<TcpListener>,
    peers: HashMap<usize, Peer>,
    next: usize,
}

impl Sockets {
    fn new(listen: Option<SocketAddr>) -> io::Result<Sockets> {
        let poll = Poll::new()?;
        let mut listener = listen.map(TcpListener::bind).transpose()?;
        if let Some(listener) = &mut listener {
            poll.registry().register(listener, LISTENER, Interest::READABLE)?;
        }
        Ok(Sockets { poll, events: Events::with_capacity(1024), listener, peers: HashMap::new(), next: 0 })
    }

    fn add(&mut self, mut socket: TcpStream) -> io::Result<usize> {
        socket.set_nodelay(true)?;
        let id = self.next;
        self.poll.registry().register(&mut socket, Token(id), Interest::READABLE | Interest::WRITABLE)?;
        self.peers.insert(id, Peer { socket, input: Vec::new(), output: Vec::new() });
        self.next += 1;
        Ok(id)
    }

    fn dial(&mut self, address: SocketAddr) -> io::Result<usize> {
        let socket = loop {
            match std::net::TcpStream::connect(address) {
                Ok(socket) => break socket,
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        socket.set_nonblocking(true)?;
        self.add(TcpStream::from_std(socket))
    }

    /// Writes what is to be sent, waits, and returns what came.
    fn turn(&mut self, wait: Option<Duration>) -> io::Result<Vec<Frame>> {
        self.peers.retain(|_, peer| peer.flush().is_ok());
        let mut frames = Vec::new();
        self.poll.poll(&mut self.events, wait)?;
        let ready: Vec<Token> = self.events.iter().map(mio::event::Event::token).collect();
        for token in ready {
            if token == LISTENER {
                while let Some(Ok((socket, _))) = self.listener.as_ref().map(TcpListener::accept) {
                    self.add(socket)?;
                }
            } else if let Some(peer) = self.peers.get_mut(&token.0)
                && peer.receive(token.0, &mut frames).is_err()
            {
                self.peers.remove(&token.0);
            }
        }
        Ok(frames)
    }

    fn send(&mut self, to: usize, kind: u8, number: u64, commit: u64, payload: &[u8]) {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.send(kind, number, commit, payload);
        }
    }
}

fn append(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.sync_data()
}

fn lead(mut sockets: Sockets, mut file: File) -> io::Result<()> {
    // By socket: the last entry that it has synced, and the commit index that it was sent.
    let mut followers: HashMap<usize, (u64, u64)> = HashMap::new();
    let mut waiting: VecDeque<(usize, u64)> = VecDeque::new();
    let (mut last, mut commit, mut answered, mut commit_since) = (0, 0, 0, None::<Instant>);
    loop {
        let wait = commit_since.map(|since| COMMIT_TIMEOUT.saturating_sub(since.elapsed()));
        let mut entries = Vec::new();
        for frame in sockets.turn(wait)? {
            match frame.kind {
                HELLO => drop(followers.insert(frame.from, (0, 0))),
                ACK => followers.entry(frame.from).or_default().0 = frame.number,
                _ => {
                    waiting.push_back((frame.from, frame.number));
                    entries.extend(frame.payload);
                    last += 1;
                }
            }
        }
        if !entries.is_empty() {
            for (follower, sent) in &mut followers {
                sockets.send(*follower, APPEND, last, commit, &entries);
                sent.1 = commit;
            }
            sockets.peers.retain(|_, peer| peer.flush().is_ok());
            append(&mut file, &entries)?;
        }
        // With its own copy, the best of the others is a majority of three.
        commit = followers.values().map(|sent| sent.0).max().unwrap_or(last).max(commit);
        while answered < commit {
            let (to, number) = waiting.pop_front().expect("an entry for each index");
            sockets.send(to, ANSWER, number, commit, &[]);
            followers.entry(to).and_modify(|sent| sent.1 = commit);
            answered += 1;
        }
        followers.retain(|id, _| sockets.peers.contains_key(id));
        let is_late = commit_since.is_some_and(|since| since.elapsed() >= COMMIT_TIMEOUT);
        for (follower, sent) in followers.iter_mut().filter(|(_, sent)| is_late && sent.1 < commit) {
            sockets.send(*follower, COMMIT, 0, commit, &[]);
            sent.1 = commit;
        }
        let is_known = followers.values().all(|sent| sent.1 == commit);
        commit_since = if is_known { None } else { commit_since.or_else(|| Some(Instant::now())) };
    }
}

fn follow(mut sockets: Sockets, mut file: File, leader: SocketAddr) -> io::Result<()> {
    let leader = sockets.dial(leader)?;
    sockets.send(leader, HELLO, 0, 0, &[]);
    let (mut waiting, mut next, mut commit) = (HashMap::new(), 0, 0);
    loop {
        let (mut entries, mut last) = (Vec::new(), None);
        for frame in sockets.turn(None)? {
            commit = frame.commit.max(commit);
            match frame.kind {
                PUT => {
                    waiting.insert(next, (frame.from, frame.number));
                    sockets.send(leader, PUT, next, 0, &frame.payload);
                    next += 1;
                }
                APPEND => {
                    entries.extend(frame.payload);
                    last = Some(frame.number);
                }
                ANSWER => {
                    let (to, number) = waiting.remove(&frame.number).expect("what was forwarded");
                    sockets.send(to, ANSWER, number, commit, &[]);
                }
                _ => {}
            }
        }
        sockets.peers.retain(|_, peer| peer.flush().is_ok());
        if let Some(last) = last {
            append(&mut file, &entries)?;
            sockets.send(leader, ACK, last, 0, &[]);
        }
    }
}

#[expect(clippy::print_stdout, reason = "the figures are the program's purpose")]
fn drive(rate: u64, seconds: u64, conns: usize, members: &[SocketAddr]) -> io::Result<()> {
    let mut sockets = Sockets::new(None)?;
    let count = conns * members.len();
    for conn in 0..count {
        sockets.dial(members[conn % members.len()])?;
    }
    let began = Instant::now();
    let due = |put: u64| began + Duration::from_nanos(put * 1_000_000_000 / rate.max(1));
    let (end, mut sent, mut under_way) = (began + Duration::from_secs(seconds), 0, HashMap::new());
    let mut taken = Histogram::<u64>::new(3).map_err(io::Error::other)?;
    while Instant::now() < end || !under_way.is_empty() {
        let now = Instant::now();
        while now < end && if rate == 0 { under_way.is_empty() } else { due(sent) <= now } {
            sockets.send(sent as usize % count, PUT, sent, 0, &VALUE);
            under_way.insert(sent, if rate == 0 { now } else { due(sent) });
            sent += 1;
        }
        let next = if rate == 0 || now >= end { end } else { due(sent) };
        for frame in sockets.turn(Some(next.saturating_duration_since(now).max(Duration::from_millis(1))))? {
            let intended = under_way.remove(&frame.number).expect("an answer for each put");
            taken.record(intended.elapsed().as_nanos() as u64).map_err(io::Error::other)?;
        }
    }
    println!("  Requests/sec: {:.1}", taken.len() as f64 / seconds as f64);
    for percent in [50.0, 99.0] {
        println!("  {percent}% in {:.6} secs.", taken.value_at_percentile(percent) as f64 / 1e9);
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let members =
        |text: &str| -> Vec<SocketAddr> { text.split(',').filter_map(|one| one.parse().ok()).collect() };
    match words[..] {
        ["serve", member, file, all] => {
            let (member, members) = (member.parse::<usize>().map_err(io::Error::other)?, members(all));
            let sockets = Sockets::new(Some(members[member]))?;
            let file = OpenOptions::new().append(true).create(true).open(file)?;
            if member == 0 { lead(sockets, file) } else { follow(sockets, file, members[0]) }
        }
        ["drive", rate, seconds, conns, all] => {
            let number = |text: &str| text.parse::<u64>().map_err(io::Error::other);
            drive(number(rate)?, number(seconds)?, number(conns)? as usize, &members(all))
        }
        _ => Err(io::Error::other("floor serve MEMBER FILE A,B,C | floor drive RATE SECONDS CONNS A,B,C")),
    }
}
