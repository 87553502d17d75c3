//! Compiles `proto/` with a compiler written in Rust, so the build does not need protoc.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use heck::{ToSnakeCase, ToUpperCamelCase};
use protox::prost_reflect::prost_types::{FileDescriptorProto, FileDescriptorSet};
use protox::prost_reflect::{DescriptorPool, Kind};

/// Packages of client-visible messages, and their modules in this crate.
const PACKAGES: [(&str, &str); 7] = [
    (".mvccpb", "mvccpb"),
    (".authpb", "authpb"),
    (".etcdserverpb", "etcdserverpb"),
    (".v3lockpb", "v3lockpb"),
    (".v3electionpb", "v3electionpb"),
    (".grpc.health.v1", "health"),
    (".kvserver", "kvserver"),
];

const FILES: [&str; 9] = [
    "kv.proto",
    "auth.proto",
    "rpc.proto",
    "health.proto",
    "v3lock.proto",
    "v3election.proto",
    "kvserver.proto",
    "command.proto",
    "peer.proto",
];

/// Messages with passwords, hashes or tokens. `src/secret.rs` implements their `Debug`.
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
    // Decode `bytes` fields as refcounted slices to avoid copies of keys and values.
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    write_methods(&descriptors, &out.join("methods.rs"))?;
    write_json(&descriptors, &out.join("json_forms.rs"))?;
    let bounded = "crate::message_batch::MessageBatch";
    let config = tonic_prost_build::configure().bytes(".").extern_path(".peer.MessageBatch", bounded);
    config.skip_debug(WITH_SECRETS).compile_fds(descriptors)?;
    Ok(())
}

/// Writes the rows for `src/method.rs`: all methods except those between members.
fn write_methods(descriptors: &FileDescriptorSet, path: &Path) -> Result<(), Box<dyn Error>> {
    let mut rows = String::from("methods! {\n");
    for file in descriptors.file.iter().filter(|file| file.package() != "peer") {
        for service in &file.service {
            for method in &service.method {
                let kind = match (method.client_streaming(), method.server_streaming()) {
                    (false, false) => "Unary",
                    (true, false) => "ClientStream",
                    (false, true) => "ServerStream",
                    (true, true) => "BidiStream",
                };
                let (package, service, name) = (file.package(), service.name(), method.name());
                let variant = variant(service, name);
                let full = format!("{package}.{service}");
                writeln!(rows, "{variant} {full:?} {name:?} {:?} {kind}", format!("/{full}/{name}"))?;
            }
        }
    }
    rows.push('}');
    std::fs::write(path, rows)?;
    Ok(())
}

/// Returns the name of a method's variant in `Method`.
fn variant(service: &str, name: &str) -> String {
    let short = if service == "KV" { "Kv" } else { service };
    // `LeaseGrant` of `Lease` already includes its service.
    if name.starts_with(short) { name.to_owned() } else { format!("{short}{name}") }
}

/// Writes the JSON form of each client-visible message, and the table of methods for `src/json.rs`.
fn write_json(descriptors: &FileDescriptorSet, path: &Path) -> Result<(), Box<dyn Error>> {
    let mut builder = pbjson_build::Builder::new();
    let shown =
        |file: &&FileDescriptorProto| PACKAGES.iter().any(|(package, _)| package[1..] == *file.package());
    for file in descriptors.file.iter().filter(shown) {
        builder.register_file_descriptor(file.clone());
    }
    builder.preserve_proto_field_names().ignore_unknown_fields();
    builder.build(&PACKAGES.map(|(package, _)| package))?;
    for (package, _) in PACKAGES {
        show_numbers_without_names(&path.with_file_name(format!("{}.serde.rs", &package[1..])))?;
    }
    let mut rows = String::from("match method {\n");
    for file in descriptors.file.iter().filter(shown) {
        for service in &file.service {
            for method in &service.method {
                let variant = variant(service.name(), method.name());
                let (request, response) =
                    (fields_of(&method.input_type()[1..]), rust_type(method.output_type())?);
                writeln!(rows, "Method::{variant} => JsonForm::of::<{response}>(fields::{request}),")?;
            }
        }
    }
    rows.push('}');
    std::fs::write(path, rows)?;
    std::fs::write(path.with_file_name("json_fields.rs"), tables(descriptors)?)?;
    Ok(())
}

/// Changes the generated code to write an unknown enum number as a number instead of failing.
fn show_numbers_without_names(generated: &Path) -> Result<(), Box<dyn Error>> {
    let mut code = String::new();
    for line in std::fs::read_to_string(generated)?.lines() {
        let is_error = line.trim_start().starts_with(".map_err(|_| serde::ser::Error::custom(");
        match code.trim_end().rsplit_once("let v = ") {
            Some((before, number)) if is_error && line.ends_with("?;") => {
                code = format!("{before}let v = crate::json::ShownEnum({number});\n");
            }
            _ => writeln!(code, "{line}")?,
        }
    }
    std::fs::write(generated, code)?;
    Ok(())
}

/// Generates the field tables of client-visible messages for `src/json_request.rs`.
fn tables(descriptors: &FileDescriptorSet) -> Result<String, Box<dyn Error>> {
    let pool = DescriptorPool::from_file_descriptor_set(descriptors.clone())?;
    let mut tables = String::new();
    let shown = |name: &str| PACKAGES.iter().any(|(package, _)| package[1..] == *name);
    for message in pool.all_messages().filter(|message| shown(message.package_name())) {
        let mut rows = String::new();
        // Requests have no maps.
        for field in message.fields().filter(|field| !field.is_map()) {
            let kind = match field.kind() {
                Kind::Bool => "Bool".to_owned(),
                Kind::String => "String".to_owned(),
                Kind::Bytes => "Bytes".to_owned(),
                kind @ (Kind::Int32 | Kind::Int64 | Kind::Uint32 | Kind::Uint64) => {
                    let name = format!("{kind:?}");
                    let rust = name.replace("uint", "u").replace("int", "i");
                    format!("Integer {{ name: {name:?}, range: {rust}::MIN as i128..={rust}::MAX as i128 }}")
                }
                Kind::Enum(values) => {
                    let values = values.values().map(|value| (value.name().to_owned(), value.number()));
                    format!("Enum(&{:?})", values.collect::<Vec<_>>())
                }
                Kind::Message(message) => format!("Message({})", fields_of(message.full_name())),
                other => return Err(format!("{}: no JSON form of {other:?}", field.full_name()).into()),
            };
            let names = [field.name(), field.json_name()];
            let one_of = field.containing_oneof().map(|one_of| one_of.name().to_owned());
            let (number, is_list) = (field.number(), field.is_list());
            writeln!(
                rows,
                "JsonField {{ number: {number}, names: {names:?}, kind: Kind::{kind}, is_list: {is_list}, \
                 one_of: {one_of:?} }},"
            )?;
        }
        writeln!(tables, "pub fn {}() -> JsonFields {{ &[{rows}] }}", fields_of(message.full_name()))?;
    }
    Ok(tables)
}

fn fields_of(message: &str) -> String {
    message.replace('.', "_").to_snake_case()
}

/// Returns the Rust path of a message such as `.etcdserverpb.PutRequest`.
fn rust_type(message: &str) -> Result<String, Box<dyn Error>> {
    let (package, name) = message.rsplit_once('.').ok_or_else(|| format!("no package: {message}"))?;
    let (_, module) = PACKAGES
        .iter()
        .find(|(known, _)| *known == package)
        .ok_or_else(|| format!("a message that clients do not see: {message}"))?;
    Ok(format!("crate::{module}::{}", name.to_upper_camel_case()))
}
