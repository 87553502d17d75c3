//! Compiles `proto/` with a compiler written in Rust: no protoc is needed to build this project.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use protox::prost_reflect::prost_types::FileDescriptorSet;

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

/// Messages that contain passwords, hashes or tokens: `src/secret.rs` prints them without.
const WITH_SECRETS: [&str; 8] = [
    ".etcdserverpb.AuthenticateRequest",
    ".etcdserverpb.AuthenticateResponse",
    ".etcdserverpb.AuthUserAddRequest",
    ".etcdserverpb.AuthUserChangePasswordRequest",
    ".authpb.User",
    ".command.IssueToken",
    ".command.AddUser",
    ".command.SetPassword",
];

fn main() -> Result<(), Box<dyn Error>> {
    let proto_dir = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", proto_dir.display());
    let descriptors = protox::compile(FILES, [&proto_dir])?;
    // Every `bytes` field becomes a refcounted slice: a key or a value is not copied when a message is
    // decoded.
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    write_methods(&descriptors, &out.join("methods.rs"))?;
    let bounded = "crate::message_batch::MessageBatch";
    let config = tonic_prost_build::configure().bytes(".").extern_path(".peer.MessageBatch", bounded);
    config.skip_debug(WITH_SECRETS).compile_fds(descriptors)?;
    Ok(())
}

/// Rows for `src/method.rs`: the methods that clients call, which are all but those of members.
fn write_methods(descriptors: &FileDescriptorSet, path: &Path) -> Result<(), Box<dyn Error>> {
    let mut rows = String::from("methods! {\n");
    for file in descriptors.file.iter().filter(|file| file.package() != "peer") {
        for service in &file.service {
            let short = if service.name() == "KV" { "Kv" } else { service.name() };
            for method in &service.method {
                let kind = match (method.client_streaming(), method.server_streaming()) {
                    (false, false) => "Unary",
                    (true, false) => "ClientStream",
                    (false, true) => "ServerStream",
                    (true, true) => "BidiStream",
                };
                let (package, service, name) = (file.package(), service.name(), method.name());
                // `LeaseGrant` of `Lease` says its service already.
                let variant =
                    if name.starts_with(short) { name.to_owned() } else { format!("{short}{name}") };
                let full = format!("{package}.{service}");
                writeln!(rows, "{variant} {full:?} {name:?} {:?} {kind}", format!("/{full}/{name}"))?;
            }
        }
    }
    rows.push('}');
    std::fs::write(path, rows)?;
    Ok(())
}
