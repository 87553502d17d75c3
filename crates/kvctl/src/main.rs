//! The `kvctl` binary: an allocator, and a call of the library.

use std::process::ExitCode;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    kvctl::run(std::env::args_os().skip(1))
}
