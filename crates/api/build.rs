//! Compiles `proto/` with a compiler written in Rust: no protoc is needed to build this project.

use std::error::Error;
use std::path::PathBuf;

const FILES: [&str; 8] = [
    "kv.proto",
    "auth.proto",
    "rpc.proto",
    "health.proto",
    "v3lock.proto",
    "v3election.proto",
    "command.proto",
    "peer.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let proto_dir = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", proto_dir.display());
    let descriptors = protox::compile(FILES, [&proto_dir])?;
    // Every `bytes` field becomes a refcounted slice: a key or a value is not copied when a message is decoded.
    let bounded = "crate::message_batch::MessageBatch";
    let config = tonic_prost_build::configure().bytes(".").extern_path(".peer.MessageBatch", bounded);
    config.compile_fds(descriptors)?;
    Ok(())
}
