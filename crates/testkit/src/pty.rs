//! A program in a pseudoterminal: its output, keyboard input, and the terminal modes.
//!
//! * The terminal is the program's controlling one, so that the program can query its size, also
//!   through /dev/tty.
//! * The program does not outlive its [`Terminal`].

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::process::PATIENCE;

pub struct Terminal {
    master: File,
    /// Open handle that preserves the terminal modes, which are reset on the last close.
    slave: File,
    child: Child,
    seen: Arc<TerminalOutput>,
}

#[derive(Default)]
struct TerminalOutput {
    bytes: Mutex<Vec<u8>>,
    changed: Condvar,
}

impl TerminalOutput {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Terminal {
    /// Starts a program in a terminal of this size.
    ///
    /// # Panics
    ///
    /// If no terminal is available, or the program cannot be run.
    pub fn start(
        program: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
        columns: u16,
        rows: u16,
    ) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudoterminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a pseudoterminal of ours");
        let path = ptsname(&master, Vec::new()).expect("a pseudoterminal has a name");
        let path = path.into_string().expect("its name is text");
        let slave = || OpenOptions::new().read(true).write(true).open(&path).expect("the other end");
        let kept = slave();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&kept, size).expect("a terminal has a size");
        // A new session with standard input as its controlling terminal.
        let mut command = Command::new("setsid");
        command.args(["--ctty", program]).args(arguments).env_clear().envs(variables.iter().copied());
        command.stdin(slave()).stdout(slave()).stderr(slave());
        let child = command.spawn().unwrap_or_else(|error| panic!("run {program}: {error}"));
        let seen = Arc::new(TerminalOutput::default());
        follow(master.try_clone().expect("a descriptor can be cloned"), Arc::clone(&seen));
        Terminal { master: File::from(master), slave: kept, child, seen }
    }

    /// Returns the output so far, with escape sequences.
    pub fn seen(&self) -> String {
        self.seen.text()
    }

    /// Waits for this output.
    ///
    /// # Panics
    ///
    /// On timeout.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        let waiting = |bytes: &mut Vec<u8>| !String::from_utf8_lossy(bytes).contains(text);
        let bytes = self.seen.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.seen.changed.wait_timeout_while(bytes, PATIENCE, waiting));
        assert!(self.seen().contains(text), "never wrote {text:?}, but:\n{:?}", self.seen());
    }

    /// Types these characters.
    ///
    /// # Panics
    ///
    /// If the terminal is closed.
    pub fn type_in(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("a terminal takes characters");
    }

    /// Reports whether the terminal is in raw mode, without line buffering and echo.
    ///
    /// # Panics
    ///
    /// If the terminal is closed.
    pub fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.slave).expect("a terminal has modes").local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Sends a signal.
    ///
    /// # Panics
    ///
    /// If the process has exited and was waited for.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal)
            .expect("a child that was not waited for has its pid");
    }

    /// Waits for the program to exit.
    ///
    /// # Panics
    ///
    /// On timeout.
    #[track_caller]
    pub fn wait_end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return status;
            }
            assert!(Instant::now() < deadline, "did not end:\n{:?}", self.seen());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// Drains the terminal, so that the program never blocks on a full buffer.
fn follow(master: OwnedFd, seen: Arc<TerminalOutput>) {
    let mut master = File::from(master);
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = master.read(&mut chunk) {
            seen.bytes.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&chunk[..read]);
            seen.changed.notify_all();
        }
    });
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Fails only if it has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_a_terminal_with_a_size_and_modes() {
        let script =
            "stty size </dev/tty; stty raw -echo; echo ready; read -r line; stty sane; echo got $line";
        let path = [("PATH", "/usr/bin:/bin")];
        let mut terminal = Terminal::start("/bin/sh", &["-c", script], &path, 70, 20);
        terminal.wait_for("20 70");
        terminal.wait_for("ready");
        assert!(terminal.is_raw());
        terminal.type_in("word\n");
        terminal.wait_for("got word");
        assert!(terminal.wait_end().success() && !terminal.is_raw());
    }
}
