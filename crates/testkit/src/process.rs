//! A child process and the lines that it writes to standard error.
//!
//! * It is killed by its handle, never by name, and does not outlive its [`Process`].
//! * A failing test prints the last lines. This module does not panic while holding a lock or in
//!   `drop`.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Timeout, far above the duration of a start or an election, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);
const LINES_SHOWN: usize = 12;

/// Returns the path of a program of this workspace, which the command that built the running test
/// has built as well: `cargo test --workspace` builds all.
pub fn built(name: &str) -> String {
    let own = std::env::current_exe().expect("a test knows its program");
    let profile = own.ancestors().nth(2).expect("a test is in target/PROFILE/deps");
    let program = profile.join(name);
    assert!(
        program.is_file(),
        "{} is not built: run `cargo build --workspace --bin {name}`",
        program.display()
    );
    program.to_str().expect("a path of this workspace is text").to_owned()
}

pub struct Process {
    child: Child,
    /// True if the process was waited for. Its PID may have been reused since.
    is_reaped: bool,
    said: Arc<ProcessOutput>,
}

#[derive(Debug)]
pub struct ProcessEnd {
    pub status: ExitStatus,
    pub said: String,
}

#[derive(Default)]
struct ProcessOutput {
    lines: Mutex<OutputLines>,
    changed: Condvar,
}

#[derive(Default)]
struct OutputLines {
    lines: Vec<String>,
    ended: bool,
}

impl ProcessOutput {
    fn lock(&self) -> MutexGuard<'_, OutputLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: String) {
        self.lock().lines.push(line);
        self.changed.notify_all();
    }

    fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits until `done`, the end of the output, or for at most [`PATIENCE`]. Reports whether it
    /// is done.
    fn wait(&self, done: impl Fn(&OutputLines) -> bool) -> bool {
        let waiting = |lines: &mut OutputLines| !done(lines) && !lines.ended;
        let waited = self.changed.wait_timeout_while(self.lock(), PATIENCE, waiting);
        done(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

impl Process {
    /// Starts `command` and captures its standard error.
    ///
    /// # Panics
    ///
    /// If the program cannot be run.
    pub fn start(command: &mut Command) -> Process {
        Process::spawn(command).unwrap_or_else(|error| panic!("run {command:?}: {error}"))
    }

    /// Starts `command`, for callers other than tests. Returns an error if the program cannot be
    /// run.
    pub fn spawn(command: &mut Command) -> io::Result<Process> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let stderr = child.stderr.take().expect("stderr is piped");
        let said = Arc::new(ProcessOutput::default());
        let heard = Arc::clone(&said);
        // Drains the pipe, so that the process never blocks on a full one.
        std::thread::spawn(move || {
            BufReader::new(stderr).lines().map_while(Result::ok).for_each(|line| heard.add(line));
            heard.end();
        });
        Ok(Process { child, is_reaped: false, said })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn said(&self) -> String {
        self.said.lock().lines.join("\n")
    }

    /// Waits until a line contains `text` (true) or the output is closed (false). Returns `None` on
    /// timeout, after [`PATIENCE`].
    pub fn says(&self, text: &str) -> Option<bool> {
        let found = self.said.wait(|lines| lines.lines.iter().any(|line| line.contains(text)));
        (found || self.said.lock().ended).then_some(found)
    }

    /// Waits until a line contains `text`.
    ///
    /// # Panics
    ///
    /// If the output is closed first, or after [`PATIENCE`].
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        assert!(self.says(text) == Some(true), "never said {text:?}, but:\n{}", self.said());
    }

    /// Returns the exit status and output, if the process has exited.
    pub fn end(&mut self) -> Option<ProcessEnd> {
        let status = self.child.try_wait().expect("a child can be waited for")?;
        self.is_reaped = true;
        self.said.wait(|lines| lines.ended);
        Some(ProcessEnd { status, said: self.said() })
    }

    /// Waits for the process to exit and for its last line. Returns `None` after [`PATIENCE`].
    pub fn await_end(&mut self) -> Option<ProcessEnd> {
        let deadline = Instant::now() + PATIENCE;
        // Its output is closed on exit, unless it closes standard error earlier.
        self.said.wait(|lines| lines.ended);
        loop {
            let end = self.end();
            if end.is_some() || Instant::now() > deadline {
                return end;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the process to exit and for its last line.
    ///
    /// # Panics
    ///
    /// If it is still running after [`PATIENCE`].
    #[track_caller]
    pub fn wait_end(mut self) -> (ExitStatus, String) {
        let Some(end) = self.await_end() else { panic!("did not end:\n{}", self.said()) };
        (end.status, end.said)
    }

    /// Sends a signal, unless the process has exited.
    pub fn signal(&self, signal: Signal) {
        if !self.is_reaped {
            let _ended = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGSTOP and returns when the process has stopped or exited. Its connections stay open.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        // Its threads continue to run until the signal has reached each of them.
        let _ended = waitid(WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::STOPPED);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGKILL and waits for the process to exit.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines = &self.said.lock().lines;
            eprintln!("--- last lines of process {}", self.pid());
            lines[lines.len().saturating_sub(LINES_SHOWN)..].iter().for_each(|line| eprintln!("{line}"));
        }
        // Fails only if it has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn shell(script: &str) -> Process {
        Process::start(Command::new("/bin/sh").args(["-c", script]))
    }

    #[test]
    fn lines_are_awaited_and_kept_and_the_status_is_returned() {
        let process = shell("echo one >&2; echo two >&2; exit 3");
        process.wait_for("tw");
        let (status, said) = process.wait_end();
        assert_eq!((status.code(), said.as_str()), (Some(3), "one\ntwo"));
    }

    #[test]
    fn a_line_that_never_comes_fails_the_test_with_the_others_and_ends_the_process() {
        let process = shell("echo no >&2; exec 2>&-; exec sleep 600");
        let pid = Pid::from_child(&process.child);
        let failed = std::panic::catch_unwind(move || process.wait_for("ready")).expect_err("it fails");
        let text = failed.downcast_ref::<String>().expect("a text");
        assert_eq!(text, "never said \"ready\", but:\nno");
        assert!(rustix::process::test_kill_process(pid).is_err(), "it is still there");
    }

    #[test]
    fn a_signal_ends_it() {
        let process = shell("echo up >&2; exec sleep 600");
        process.wait_for("up");
        process.terminate();
        assert_eq!(process.wait_end().0.signal(), Some(Signal::TERM.as_raw()));
    }
}
