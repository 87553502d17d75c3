//! A unit of `Type=notify`: messages to the service manager and their timing.

use crate::common;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use crate::common::{Cluster, PATIENCE, Process, http};

fn heard(socket: &UnixDatagram) -> String {
    let mut message = [0; 256];
    let length = socket.recv(&mut message).expect("a message");
    String::from_utf8(message[..length].to_vec()).unwrap()
}

#[test]
fn systemd_hears_when_a_member_serves_and_when_it_stops() {
    let mut cluster = Cluster::new(1);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let member = &mut cluster.members[0];
    let mut command = Command::new(common::server());
    let process = Process::start(command.args(member.flags()).env_clear().env("NOTIFY_SOCKET", &path));
    assert!(heard(&socket).starts_with("READY=1\n"));
    assert!(http(member.client_port, "GET /health").contains("\"health\":\"true\""));
    process.wait_for("successfully notified init daemon");
    process.terminate();
    assert!(heard(&socket).starts_with("STOPPING=1\n"));
    let (status, said) = process.wait_end();
    assert!(status.success(), "{said}");
}

#[test]
fn a_socket_that_is_not_there_stops_nothing() {
    let mut cluster = Cluster::new(1);
    let member = &mut cluster.members[0];
    let mut command = Command::new(common::server());
    let process = Process::start(command.args(member.flags()).env_clear().env("NOTIFY_SOCKET", "/nowhere"));
    process.wait_for("failed to notify systemd");
    assert!(http(member.client_port, "GET /health").contains("\"health\":\"true\""));
}
