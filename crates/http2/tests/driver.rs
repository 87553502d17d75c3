//! The driver with misbehaving clients, on a paused clock.

use std::future::pending;
use std::time::Duration;

use crate::common::*;
use crate::echo::{Echo, Requests};
use crate::harness::{Deadlines, serve};
use http2::{Limits, Tick};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A client's end of a connection, and the server's task.
fn connect(cut: usize) -> (DuplexStream, JoinHandle<std::io::Result<()>>) {
    let (near, far) = tokio::io::duplex(cut);
    let echo = Echo::new(Requests::default());
    (near, tokio::spawn(serve(far, echo, Limits::default(), Deadlines::default(), pending())))
}

async fn read_all(mut client: DuplexStream) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).await.unwrap();
    frames(&bytes)
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_waits_too_long_is_closed_with_an_error() {
    let half_a_block = [hello(), frame(HEADERS, 0, 1, &[])].concat();
    let half_a_frame = [hello(), get(1)[..5].to_vec()].concat();
    let no_ack = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    for (name, sent, seconds, code) in [
        ("nothing", vec![], 10, 1),
        ("half a preface", PREFACE[..9].to_vec(), 10, 1),
        ("no acknowledgement of SETTINGS", no_ack, 60, 4),
        ("half a frame", half_a_frame, 60, 1),
        ("half a header block", half_a_block, 60, 1),
    ] {
        let (mut client, server) = connect(1 << 16);
        let started = Instant::now();
        client.write_all(&sent).await.unwrap();
        let (read, ended) = tokio::join!(read_all(client), server);
        ended.unwrap().unwrap();
        let last = read.last().unwrap();
        assert_eq!((last.0, last.3[7]), (GOAWAY, code), "{name}");
        let waited = started.elapsed();
        assert!(waited >= Duration::from_secs(seconds), "{name}: {waited:?}");
        assert!(waited < Duration::from_secs(seconds + 4), "{name}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_end_is_reset_and_the_connection_goes_on() {
    let (mut client, server) = connect(1 << 16);
    client.write_all(&[hello(), post(1)].concat()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(65)).await;
    client.write_all(&get(3)).await.unwrap();
    let mut output = vec![0; 1 << 16];
    let length = client.read(&mut output).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut more = vec![0; 1 << 16];
    let rest = client.read(&mut more).await.unwrap();
    let read = frames(&[&output[..length], &more[..rest]].concat());
    assert!(read.contains(&(RST_STREAM, 0, 1, vec![0, 0, 0, 8])), "{read:?}");
    assert!(
        read.iter().any(|frame| frame.0 == HEADERS && frame.2 == 3 && frame.1 == END_HEADERS | END_STREAM)
    );
    drop(client);
    server.await.unwrap().unwrap();
}

/// 10 MB of pings without reading the pongs: the server stops reading, and disconnects after the deadline.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_not_read_and_loses_its_connection() {
    let (mut client, server) = connect(1 << 12);
    let pings = frame(PING, 0, 0, b"pingpong").repeat(600_000);
    let mut sent = 0;
    client.write_all(&hello()).await.unwrap();
    while let Ok(bytes) = client.write(&pings[sent..]).await {
        sent += bytes;
    }
    let output_bytes_max = Limits::default().output_bytes_max;
    assert!(sent < output_bytes_max + 2 * (64 << 10), "{sent} bytes were read");
    assert_eq!(server.await.unwrap().unwrap_err().kind(), std::io::ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_an_idle_connection_with_goaway() {
    let (near, far) = tokio::io::duplex(1 << 16);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let echo = Echo::new(Requests::default());
    let server = tokio::spawn(serve(far, echo, Limits::default(), Deadlines::default(), async {
        drop(stopped.await)
    }));
    let mut client = near;
    client.write_all(&[hello(), get(1)].concat()).await.unwrap();
    let mut bytes = vec![0; 4096];
    let length = client.read(&mut bytes).await.unwrap();
    assert_eq!(frames(&bytes[..length]).last().unwrap().2, 1, "the answer");
    stop.send(()).unwrap();
    let length = client.read(&mut bytes).await.unwrap();
    let goaway = frames(&bytes[..length]);
    assert_eq!((goaway[0].0, goaway[1].0), (GOAWAY, PING));
    client.write_all(&frame(PING, ACK, 0, &goaway[1].3)).await.unwrap();
    assert_eq!(read_all(client).await, [(GOAWAY, 0, 0, vec![0, 0, 0, 1, 0, 0, 0, 0])]);
    server.await.unwrap().unwrap();
}

/// The client neither acknowledges pings nor closes its stream.
#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_a_stream_without_end() {
    let (mut client, far) = tokio::io::duplex(1 << 16);
    let echo = Echo::new(Requests::default());
    let deadlines = Deadlines { body: Tick::MAX, drain: 30_000, ..Deadlines::default() };
    client.write_all(&[hello(), post(1)].concat()).await.unwrap();
    let started = Instant::now();
    let server = tokio::spawn(serve(far, echo, Limits::default(), deadlines, async {}));
    let read = read_all(client).await;
    server.await.unwrap().unwrap();
    let goaways: Vec<&[u8]> =
        read.iter().filter(|frame| frame.0 == GOAWAY).map(|frame| &frame.3[..8]).collect();
    let (all, last) = ([0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(goaways, [&all[..], &last, &last]);
    let lasted = started.elapsed();
    assert!((30..40).contains(&lasted.as_secs()), "{lasted:?}");
}

/// Handlers with deferred responses: each response is sent when it is ready, without a read in between.
#[tokio::test(start_paused = true)]
async fn answers_that_are_ready_later_are_sent_then() {
    use http2::{Connection, EndOfBody, Event, HeaderBlock, StreamId};
    use std::pin::Pin;
    use std::task::{Context, Poll};

    struct Late(Vec<(Pin<Box<tokio::time::Sleep>>, StreamId)>);
    impl crate::harness::Handler for Late {
        fn round(&mut self, connection: &mut Connection) {
            while let Some(event) = connection.next_event() {
                if let Event::Request { stream, .. } = event {
                    let sleep = tokio::time::sleep(Duration::from_secs(u64::from(stream.number())));
                    self.0.push((Box::pin(sleep), stream));
                }
            }
        }

        fn poll(&mut self, context: &mut Context<'_>, connection: &mut Connection) -> Poll<()> {
            let ready = self.0.iter_mut().position(|(sleep, _)| sleep.as_mut().poll(context).is_ready());
            let Some(ready) = ready else { return Poll::Pending };
            let (_, stream) = self.0.remove(ready);
            connection.send_head(stream, &HeaderBlock::new([(":status", "200")]), EndOfBody::Stream).unwrap();
            Poll::Ready(())
        }
    }

    let (mut client, far) = tokio::io::duplex(1 << 16);
    let server =
        tokio::spawn(serve(far, Late(Vec::new()), Limits::default(), Deadlines::default(), pending()));
    let started = Instant::now();
    client.write_all(&[hello(), get(5), get(7)].concat()).await.unwrap();
    let mut bytes = vec![0; 4096];
    let preface = client.read(&mut bytes).await.unwrap();
    assert_eq!(frames(&bytes[..preface]).last().unwrap().0, SETTINGS);
    for stream in [5, 7] {
        let length = client.read(&mut bytes).await.unwrap();
        assert_eq!(frames(&bytes[..length]), [(HEADERS, END_HEADERS | END_STREAM, stream, vec![0x88])]);
        let late = started.elapsed().as_secs_f64() - f64::from(stream);
        assert!((0.0..0.1).contains(&late), "{late}");
    }
    drop(client);
    server.await.unwrap().unwrap();
}
