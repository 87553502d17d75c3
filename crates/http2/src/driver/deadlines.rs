//! What may take how long, in milliseconds.

use crate::{Connection, ErrorCode, StreamId, Tick, Waiting};

/// Milliseconds that each wait may last. The defaults suit clients on slow networks, and end those that send
/// nothing.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// From the accepted socket to the client's SETTINGS.
    pub preface: Tick,
    /// From the accepted socket to the acknowledgement of the server's SETTINGS.
    pub settings_ack: Tick,
    /// From the first byte of a frame or header block to its last.
    pub frame: Tick,
    /// From the head of a request to its end, unless [`super::Handler::stays_open`].
    pub body: Tick,
    /// Without a byte of an answer that the client's windows admit. The stream is reset.
    pub window: Tick,
    /// Without a byte that the socket takes.
    pub output: Tick,
    /// From the first GOAWAY of a shutdown to the end of the last stream: one that stays open may have no
    /// end. Then the connection is closed.
    pub drain: Tick,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        let second = 1000;
        Deadlines {
            preface: 10 * second,
            settings_ack: 60 * second,
            frame: 60 * second,
            body: 60 * second,
            window: 60 * second,
            output: 60 * second,
            drain: 60 * second,
        }
    }
}

/// What the deadlines did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checked {
    /// Something may still time out.
    Waits,
    Nothing,
    /// The socket has taken nothing: no error can be sent either.
    Dead,
}

impl Deadlines {
    fn of(&self, waiting: Waiting) -> Tick {
        match waiting {
            Waiting::Preface => self.preface,
            Waiting::SettingsAck => self.settings_ack,
            Waiting::Frame => self.frame,
            Waiting::Body(_) => self.body,
            Waiting::Window(_) => self.window,
            Waiting::Output => self.output,
        }
    }

    /// Ends what has waited too long.
    pub(super) fn check(
        &self,
        connection: &mut Connection,
        now: Tick,
        stays_open: impl Fn(StreamId) -> bool,
    ) -> Checked {
        let mut any = false;
        let late: Vec<Waiting> = connection
            .waits()
            .filter(|wait| !matches!(wait.waiting, Waiting::Body(stream) if stays_open(stream)))
            .inspect(|_| any = true)
            .filter(|wait| now.saturating_sub(wait.since) >= self.of(wait.waiting))
            .map(|wait| wait.waiting)
            .collect();
        for waiting in late {
            match waiting {
                Waiting::Preface => connection.close(ErrorCode::PROTOCOL_ERROR, "no preface in time"),
                Waiting::SettingsAck => {
                    connection.close(ErrorCode::SETTINGS_TIMEOUT, "SETTINGS not acknowledged in time");
                }
                Waiting::Frame => connection.close(ErrorCode::PROTOCOL_ERROR, "a frame did not end in time"),
                Waiting::Body(stream) | Waiting::Window(stream) => {
                    connection.cancel(stream, ErrorCode::CANCEL);
                }
                Waiting::Output => return Checked::Dead,
            }
        }
        if any { Checked::Waits } else { Checked::Nothing }
    }
}
