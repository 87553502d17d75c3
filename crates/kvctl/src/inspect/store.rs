//! Shows the position of a store, and verifies all its blocks.

use std::io::Write;
use std::path::Path;

use api::authpb::User;
use mvcc::inspect::{BlockSeen, FileSeen, Inspector, RecordSeen};
use prost::Message;

use super::report::{InspectError, InspectReport, ReportLine, text};
use process::log::causes;
use process::scratch::Scratch;

/// Level of detail. All of the store is verified in any case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    Marks,
    Blocks,
    Records,
}

/// Shows the store in `dir`, with all records if `records` is set.
pub fn show<W: Write>(dir: &Path, records: bool, report: &mut InspectReport<W>) -> Result<(), InspectError> {
    look(dir, if records { Detail::Records } else { Detail::Blocks }, report)
}

/// Shows the position of each store in a data directory: the current one, which would be sent as a snapshot,
/// one being received, and those set aside.
pub fn show_all<W: Write>(
    data_dir: &Path,
    store: &Path,
    report: &mut InspectReport<W>,
) -> Result<(), InspectError> {
    match mvcc::staged_at(store) {
        Ok(Some(applied)) => report.line(
            ReportLine::new("received")
                .with("applied_index", applied.index.0)
                .with("applied_term", applied.term.0),
        ),
        Ok(None) => {}
        Err(error) => report.damage(&data_dir.display().to_string(), 0, &causes(&error)),
    }
    let entries = std::fs::read_dir(data_dir)?.map(|entry| Ok(entry?.path()));
    let mut stores: Vec<_> = entries.collect::<std::io::Result<_>>()?;
    stores.retain(|path| path.file_stem() == store.file_name() && path.is_dir());
    stores.sort();
    for dir in stores {
        look(&dir, Detail::Marks, report)?;
    }
    Ok(())
}

fn look<W: Write>(dir: &Path, detail: Detail, report: &mut InspectReport<W>) -> Result<(), InspectError> {
    let scratch = Scratch::new().map_err(InspectError::Scratch)?;
    scratch.remove_at_signal().map_err(InspectError::Scratch)?;
    let inspector = Inspector::open(dir, scratch.path())?;
    drop(scratch);
    let store = dir.display().to_string();
    match inspector.marks() {
        Some(marks) => report.line(
            ReportLine::new("marks")
                .with("store", store)
                .with("applied_index", marks.applied.index.0)
                .with("applied_term", marks.applied.term.0)
                .with("revision", marks.revision)
                .with("compact_revision", marks.compact_revision)
                .with("compacted", marks.compacted)
                .with("blocks", marks.blocks)
                .with("items", marks.items),
        ),
        None => report.line(ReportLine::new("marks").with("store", store).with("readable", false)),
    }
    for fault in inspector.faults() {
        report.damage(&fault.file, fault.offset, &fault.what);
    }
    if detail != Detail::Marks {
        for (key, value) in inspector.items() {
            report.line(ReportLine::new("item").with("key", text(key)).with("value", item_value(key, value)));
        }
        show_leases(&inspector, report);
    }
    for file in inspector.files()? {
        show_file(&inspector, &file, detail, report)?;
    }
    Ok(())
}

/// Formats an item's value. A user's password hash is omitted.
fn item_value(key: &[u8], value: &[u8]) -> String {
    match User::decode(value) {
        Ok(user) if key.starts_with(b"auth-user/") => format!("{user:?}"),
        Ok(_) | Err(_) => text(value),
    }
}

/// Shows the leases of the checkpoint, which are stored as items.
fn show_leases<W: Write>(inspector: &Inspector, report: &mut InspectReport<W>) {
    let items = inspector.items().map(|(key, value)| (key.clone(), value.clone()));
    match state_machine::leases(items) {
        Ok(leases) => {
            for (id, lease) in leases {
                let line = ReportLine::new("lease").with("lease", id).with("ttl", lease.ttl);
                report.line(line.with_some("deadline", lease.deadline));
            }
        }
        Err(error) => report.damage("leases", 0, &causes(&error)),
    }
}

fn show_file<W: Write>(
    inspector: &Inspector,
    file: &FileSeen,
    detail: Detail,
    report: &mut InspectReport<W>,
) -> Result<(), InspectError> {
    let path = file.path.display().to_string();
    if detail != Detail::Marks {
        report.line(ReportLine::new("file").with("file", path.as_str()).with("bytes", file.bytes));
    }
    if let Some(fault) = file.fault {
        report.damage(&path, 0, fault);
    }
    for block in inspector.blocks(file)? {
        show_block(inspector, &block, detail, report)?;
    }
    Ok(())
}

fn show_block<W: Write>(
    inspector: &Inspector,
    block: &BlockSeen,
    detail: Detail,
    report: &mut InspectReport<W>,
) -> Result<(), InspectError> {
    if detail != Detail::Marks {
        let content = block.content;
        report.line(
            ReportLine::new("block")
                .with("offset", block.offset)
                .with("stored_bytes", block.stored_bytes)
                .with("is_named", block.is_named)
                .with_some("raw_bytes", content.map(|content| content.raw_bytes))
                .with_some("records", content.map(|content| content.records))
                .with_some("dead_records", content.map(|content| content.dead_records))
                .with_some("first", content.map(|content| content.first.to_string()))
                .with_some("last", content.map(|content| content.last.to_string())),
        );
    }
    if let Some(fault) = block.fault {
        // A block that the manifest does not reference was left by a crash; the next start truncates it.
        if block.is_named {
            report.damage(&block.file.display().to_string(), block.offset, fault);
        }
        return Ok(());
    }
    if detail == Detail::Records && block.is_named {
        for record in inspector.records(block)? {
            report.line(show_record(&record));
        }
    }
    Ok(())
}

fn show_record(record: &RecordSeen) -> ReportLine {
    let line = ReportLine::new(if record.put.is_some() { "put" } else { "tombstone" })
        .with("revision", record.revision.to_string())
        .with("is_dead", record.is_dead)
        .with("key", text(&record.key));
    match &record.put {
        Some(put) => line
            .with("value", text(&put.value))
            .with("create_revision", put.create_revision)
            .with("version", put.version)
            .with("lease", put.lease),
        None => line,
    }
}
