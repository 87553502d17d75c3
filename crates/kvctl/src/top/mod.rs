//! `kvctl top`: shows the metrics of the members' status pages in a terminal.
//!
//! ```text
//!   endpoints ─▶ figures: fetch ─▶ clean ─▶ rates ─▶ show: tables ─▶ screen ─▶ terminal, or text (--once)
//!                                                     ▲
//!                                           keys ─▶ state
//! ```
//!
//! * Read-only: requests `GET /ui/status.json` from listeners of `--listen-metrics-urls`.
//! * Responses are untrusted. Their size and time are limited, their texts are stripped of control and
//!   formatting characters, and no number can crash the program.
//! * An unreachable endpoint is shown as such, and does not delay other endpoints.
//! * The screen is a function of metrics and state. Colors do not add information.
//! * Terminal modes are restored at exit: by a key, SIGTERM, SIGINT, an error or a panic.

mod figures; // metrics of the members

mod show; // rendering

mod terminal; // modes, events

mod command; // the command line

pub use command::{COMMAND, described, run};
