//! `kv-server top`: the figures of the members' status pages, in a terminal.
//!
//! ```text
//!   endpoints ─▶ figures: fetch ─▶ clean ─▶ rates ─▶ show: tables ─▶ picture ─▶ terminal, or plain text (--once)
//!                                                     ▲
//!                                           keys ─▶ state
//! ```
//!
//! * Reads only: `GET /ui/status.json` of listeners of `--listen-metrics-urls`, and nothing else.
//! * What a server sends is untrusted. An answer has limits of size and time. Its texts reach the screen
//!   without control and formatting characters; no number can end the program.
//! * An endpoint that does not answer is a row that says so, and delays no other endpoint.
//! * A picture is a function of figures and state. Without color it shows the same facts.
//! * The terminal has its modes back when the program ends: by a key, by SIGTERM or SIGINT, by an error or by
//!   a panic.
//!
//! Must not depend on a running member: it is a client like any other.

mod figures; // what the members say

mod show; // how it is shown

mod terminal; // modes, events

mod command; // the command line

pub use command::{COMMAND, described, run};
