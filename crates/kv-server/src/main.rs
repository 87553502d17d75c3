//! The `kv-server` binary: an allocator, and a call of the library.

use std::process::ExitCode;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    kv_server::run(std::env::args_os().skip(1), std::env::vars_os())
}
