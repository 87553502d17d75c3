//! Complete members as processes, driven by clients.
//!
//! A single test binary, linked once. Tests that need a separate process are separate targets: see
//! `Cargo.toml`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

mod admission;
mod audit;
mod auth;
mod auto_compaction;
mod backup;
mod calls;
mod check_config;
mod cluster;
mod config_file;
mod connections;
mod deadlines;
mod debug;
mod discovery;
mod floods;
mod force_new_cluster;
mod gateway;
mod large_ranges;
mod lease;
mod listeners;
mod locks;
mod log_outputs;
mod member_updates;
mod members;
mod old_data;
mod process;
mod services;
mod snapshots;
mod start_errors;
mod stops;
mod systemd;
mod tls;
mod traces;
mod unix_sockets;
mod upgrade;
mod watch;
