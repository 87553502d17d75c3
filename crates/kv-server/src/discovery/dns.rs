//! SRV lookups (RFC 2782): queries the name servers of `/etc/resolv.conf`.
//!
//! * A response is accepted only from the queried server, with the ID and question of the query.
//! * A truncated response is retried over TCP.
//! * Each server is queried twice with a timeout of five seconds, like Go's resolver. A lookup takes at most
//!   30 s.
//!
//! Blocks the calling thread, which has no other work during startup.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};

const CONFIGURATION: &str = "/etc/resolv.conf";
const SERVERS_MAX: usize = 3;
const ATTEMPTS: usize = 2;
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Receive buffer size. Responses without EDNS have at most 512 bytes; some servers exceed that.
const DATAGRAM_BYTES: usize = 4096;

/// Target of an SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceTarget {
    /// Host name without the trailing dot.
    pub host: String,
    pub port: u16,
}

/// Returns the targets of `name`, at least one, ordered by priority.
pub fn lookup(name: &str) -> Result<Vec<ServiceTarget>, String> {
    let configuration = std::fs::read_to_string(CONFIGURATION).unwrap_or_default();
    lookup_at(&servers(&configuration), name, RESPONSE_TIMEOUT)
}

/// Returns the configured name servers, or localhost if there are none.
fn servers(configuration: &str) -> Vec<SocketAddr> {
    let named = configuration.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        Some(SocketAddr::new(address.parse::<IpAddr>().ok()?, 53))
    });
    let named: Vec<SocketAddr> = named.take(SERVERS_MAX).collect();
    if named.is_empty() { vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 53)] } else { named }
}

fn lookup_at(servers: &[SocketAddr], name: &str, within: Duration) -> Result<Vec<ServiceTarget>, String> {
    let mut failure = format!("lookup {name}: no server");
    for server in (0..ATTEMPTS).flat_map(|_| servers) {
        match ask(*server, name, within) {
            Ok(DnsAnswer::Targets(targets)) => return Ok(targets),
            // NXDOMAIN is final: other servers would return the same.
            Ok(DnsAnswer::NoSuchName) => return Err(format!("lookup {name} on {server}: no such host")),
            Ok(DnsAnswer::Failed(code)) => {
                failure = format!("lookup {name} on {server}: server failure: {code}")
            }
            Err(error) => failure = format!("lookup {name} on {server}: {error}"),
        }
    }
    Err(failure)
}

enum DnsAnswer {
    Targets(Vec<ServiceTarget>),
    NoSuchName,
    Failed(String),
}

fn ask(server: SocketAddr, name: &str, within: Duration) -> io::Result<DnsAnswer> {
    let number = rand::random();
    let question = question(number, name)?;
    let until = Instant::now() + within;
    let answer = by_datagram(server, &question, number, name, until)?;
    match said(&answer, number, name)? {
        Some(said) => Ok(said),
        None => {
            let answer = by_stream(server, &question, until)?;
            said(&answer, number, name)?.ok_or_else(|| io::Error::other("an answer by TCP was cut short"))
        }
    }
}

fn question(number: u16, name: &str) -> io::Result<Vec<u8>> {
    let name = Name::new(name).map_err(io::Error::other)?;
    let mut packet = Packet::new_query(number);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    packet.questions.push(Question::new(name, QTYPE::TYPE(TYPE::SRV), QCLASS::CLASS(CLASS::IN), false));
    packet.build_bytes_vec().map_err(io::Error::other)
}

/// Returns the first valid response. Other datagrams may be forged and are ignored.
fn by_datagram(
    server: SocketAddr,
    question: &[u8],
    number: u16,
    name: &str,
    until: Instant,
) -> io::Result<Vec<u8>> {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.send(question)?;
    let mut buffer = vec![0; DATAGRAM_BYTES];
    loop {
        socket.set_read_timeout(Some(left(until)?))?;
        let length = socket.recv(&mut buffer)?;
        if said(&buffer[..length], number, name).is_ok() {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

fn by_stream(server: SocketAddr, question: &[u8], until: Instant) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, left(until)?)?;
    stream.set_write_timeout(Some(left(until)?))?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), question].concat())?;
    let mut length = [0; 2];
    read_until(&mut stream, &mut length, until)?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    read_until(&mut stream, &mut answer, until)?;
    Ok(answer)
}

/// Fills `bytes`. The deadline applies to the whole read, so that a server that sends single bytes cannot
/// extend it.
fn read_until(stream: &mut TcpStream, bytes: &mut [u8], until: Instant) -> io::Result<()> {
    let mut read = 0;
    while read < bytes.len() {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut bytes[read..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Decodes a response. Returns None if it is truncated, and an error if it does not match the query.
fn said(answer: &[u8], number: u16, name: &str) -> io::Result<Option<DnsAnswer>> {
    let packet = Packet::parse(answer).map_err(io::Error::other)?;
    let asked = packet.questions.first().map(|question| question.qname.to_string());
    let is_ours = packet.id() == number
        && packet.has_flags(PacketFlag::RESPONSE)
        && asked.is_some_and(|asked| asked.eq_ignore_ascii_case(name.trim_end_matches('.')));
    if !is_ours {
        return Err(io::Error::other("an answer to another question"));
    }
    if packet.has_flags(PacketFlag::TRUNCATION) {
        return Ok(None);
    }
    let mut targets: Vec<_> = packet
        .answers
        .iter()
        .filter_map(|record| match &record.rdata {
            RData::SRV(srv) => {
                let host = srv.target.to_string().trim_end_matches('.').to_owned();
                Some((srv.priority, ServiceTarget { host, port: srv.port }))
            }
            _ => None,
        })
        .collect();
    targets.sort_by(|(a, left), (b, right)| (a, &left.host, left.port).cmp(&(b, &right.host, right.port)));
    Ok(Some(match packet.rcode() {
        RCODE::NoError if !targets.is_empty() => {
            DnsAnswer::Targets(targets.into_iter().map(|(_, target)| target).collect())
        }
        RCODE::NoError | RCODE::NameError => DnsAnswer::NoSuchName,
        code => DnsAnswer::Failed(format!("{code:?}")),
    }))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use simple_dns::ResourceRecord;
    use simple_dns::rdata::SRV;

    use super::*;

    const NAME: &str = "_etcd-server._tcp.d.example";
    const SOON: Duration = Duration::from_secs(2);

    fn answer(question: &[u8], targets: &[(u16, &str, u16)], flags: PacketFlag, code: RCODE) -> Vec<u8> {
        let mut packet = Packet::parse(question).unwrap();
        packet.set_flags(PacketFlag::RESPONSE | flags);
        *packet.rcode_mut() = code;
        let name = packet.questions[0].qname.clone();
        for (priority, host, port) in targets {
            let srv = SRV { priority: *priority, weight: 1, port: *port, target: Name::new(host).unwrap() };
            packet.answers.push(ResourceRecord::new(name.clone(), CLASS::IN, 60, RData::SRV(srv)));
        }
        packet.build_bytes_vec_compressed().unwrap()
    }

    /// Starts a server that sends `replies` to each query.
    fn server(replies: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                for reply in replies(&buffer[..length]) {
                    socket.send_to(&reply, from).unwrap();
                }
            }
        });
        address
    }

    fn shown(targets: Result<Vec<ServiceTarget>, String>) -> Result<Vec<String>, String> {
        targets
            .map(|targets| targets.iter().map(|target| format!("{}:{}", target.host, target.port)).collect())
    }

    const TWO: &[(u16, &str, u16)] = &[(2, "b.example", 2), (1, "c.example", 3), (1, "a.example", 1)];

    #[test]
    fn targets_come_in_order_of_priority_and_forged_answers_are_passed_over() {
        let at = server(|question| {
            let mut forged = answer(question, &[(1, "evil.example", 6)], PacketFlag::empty(), RCODE::NoError);
            forged[0] ^= 1;
            let good = answer(question, TWO, PacketFlag::empty(), RCODE::NoError);
            vec![b"noise".to_vec(), forged, good]
        });
        let wanted = ["a.example:1", "c.example:3", "b.example:2"].map(str::to_owned).to_vec();
        assert_eq!(shown(lookup_at(&[at], NAME, SOON)), Ok(wanted));
    }

    #[test]
    fn a_name_that_is_not_there_is_no_such_host() {
        for code in [RCODE::NameError, RCODE::NoError] {
            let at = server(move |question| vec![answer(question, &[], PacketFlag::empty(), code)]);
            let wanted = format!("lookup {NAME} on {at}: no such host");
            assert_eq!(shown(lookup_at(&[at], NAME, SOON)), Err(wanted));
        }
    }

    #[test]
    fn a_server_that_fails_or_is_silent_is_followed_by_the_next() {
        let failing =
            server(|question| vec![answer(question, &[], PacketFlag::empty(), RCODE::ServerFailure)]);
        let silent = server(|_| Vec::new());
        let good = server(|question| vec![answer(question, TWO, PacketFlag::empty(), RCODE::NoError)]);
        let found = lookup_at(&[failing, silent, good], NAME, Duration::from_millis(100));
        assert_eq!(found.map(|targets| targets.len()), Ok(3));
        let error = lookup_at(&[failing], NAME, SOON).unwrap_err();
        assert!(error.starts_with(&format!("lookup {NAME} on {failing}: server failure")), "{error}");
    }

    /// A server with truncated responses over UDP, and a listener at the same TCP port. The TCP port of an
    /// attempt may be in use.
    fn truncating_server() -> (SocketAddr, TcpListener) {
        loop {
            let at = server(|question| vec![answer(question, &[], PacketFlag::TRUNCATION, RCODE::NoError)]);
            if let Ok(listener) = TcpListener::bind(at) {
                return (at, listener);
            }
        }
    }

    #[test]
    fn an_answer_that_was_cut_short_is_asked_for_by_tcp() {
        let (at, listener) = truncating_server();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut question = vec![0; u16::from_be_bytes(length).into()];
            stream.read_exact(&mut question).unwrap();
            let answer = answer(&question, TWO, PacketFlag::empty(), RCODE::NoError);
            stream.write_all(&[&(answer.len() as u16).to_be_bytes(), answer.as_slice()].concat()).unwrap();
        });
        assert_eq!(lookup_at(&[at], NAME, SOON).map(|targets| targets.len()), Ok(3));
    }

    #[test]
    fn a_server_that_answers_a_byte_at_a_time_is_given_up() {
        let (at, listener) = truncating_server();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                while stream.write_all(&[1]).is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        let (began, within) = (Instant::now(), Duration::from_millis(300));
        lookup_at(&[at], NAME, within).unwrap_err();
        // Two attempts. Without a deadline for the whole response each would take 257 bytes × 5 s.
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }

    #[test]
    fn servers_are_those_of_the_configuration() {
        let text = "# x\nnameserver 10.0.0.1\n search d\nnameserver  ::1 # y\nnameserver bad\n";
        let wanted: Vec<SocketAddr> = ["10.0.0.1:53", "[::1]:53"].map(|at| at.parse().unwrap()).to_vec();
        assert_eq!(servers(text), wanted);
        assert_eq!(servers(""), ["127.0.0.1:53".parse().unwrap()]);
    }
}
