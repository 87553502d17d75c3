//! Shows the log: segments, frames, and the requests in its entries.

use std::io::Write;
use std::path::Path;

use bytes::Bytes;
use raft_node::inspect::{BatchSeen, EntrySeen, read_entry, read_state};
use serde_json::Value;
use wal::{Finding, FrameContent, FrameFound, ReadOnlyFs};

use super::report::{InspectError, InspectReport, ReportLine, id};
use super::requests;
use process::log::causes;

/// Shows every segment and frame of the log in `dir`, then whether a member could open it.
pub fn show<W: Write>(dir: &Path, report: &mut InspectReport<W>) -> Result<(), InspectError> {
    let inspection = wal::inspect(&ReadOnlyFs, dir, &mut |finding| show_finding(finding, report))?;
    let summary = ReportLine::new("log")
        .with("segments", inspection.segments)
        .with("frames", inspection.frames)
        .with("damages", inspection.damages);
    match &inspection.opens {
        Ok(recovery) => report.line(
            summary
                .with("opens", true)
                .with("start_index", recovery.start.index.0)
                .with("start_term", recovery.start.term.0)
                .with("last_index", recovery.last.index.0)
                .with("last_term", recovery.last.term.0)
                .with("torn_bytes", recovery.torn_bytes),
        ),
        Err(error) => {
            report.damage(
                &dir.display().to_string(),
                0,
                &format!("the log cannot be opened: {}", causes(error)),
            );
            report.line(summary.with("opens", false));
        }
    }
    Ok(())
}

fn show_finding<W: Write>(finding: Finding<'_>, report: &mut InspectReport<W>) {
    match finding {
        Finding::Segment(segment) => {
            let line = ReportLine::new("segment")
                .with("file", segment.file.display().to_string())
                .with("sequence", segment.sequence)
                .with("bytes", segment.bytes)
                .with_some("base_index", segment.base.map(|base| base.index.0))
                .with_some("base_term", segment.base.map(|base| base.term.0))
                .with("begins_the_log", segment.is_origin)
                .with("is_void", segment.is_void);
            report.line(match whose(segment.identity) {
                Some((cluster, member)) => line.with("cluster", id(cluster)).with("member", id(member)),
                None => line,
            });
        }
        Finding::Frame(frame) => show_frame(&frame, report),
        Finding::Damage { file, offset, bytes, reason } => {
            let what = format!("{reason} ({bytes} bytes)");
            report.damage(&file.display().to_string(), offset, &what);
        }
        Finding::Torn { file, offset, bytes } => report.line(
            ReportLine::new("torn")
                .with("file", file.display().to_string())
                .with("offset", offset)
                .with("bytes", bytes)
                .with("what", "the remains of a group that was never synced"),
        ),
    }
}

/// Decodes the cluster and member IDs that `identity` writes to the log.
fn whose(identity: &[u8]) -> Option<(u64, u64)> {
    let (cluster, member) = identity.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*cluster), u64::from_be_bytes(member.try_into().ok()?)))
}

fn show_frame<W: Write>(frame: &FrameFound<'_>, report: &mut InspectReport<W>) {
    let line = |kind| ReportLine::new(kind).with("offset", frame.offset).with("bytes", frame.bytes);
    match frame.content {
        FrameContent::Entry { position, kind, payload } => {
            let line = line("entry").with("index", position.index.0).with("term", position.term.0);
            match read_entry(kind, Bytes::copy_from_slice(payload)) {
                Ok(seen) => report.line(entry(line, seen)),
                Err(reason) => {
                    report.line(line.with("kind_byte", kind));
                    // The checksum is valid, so it was written by another version, or by a bug.
                    report.damage(&frame.file.display().to_string(), frame.offset, &reason);
                }
            }
        }
        FrameContent::State(bytes) => match read_state(bytes) {
            Ok(state) => {
                let ids = |ids: Vec<u64>| ids.into_iter().map(id).collect::<Vec<_>>();
                report.line(
                    line("state")
                        .with("term", state.term.0)
                        .with("vote", id(state.vote))
                        .with("commit", state.commit.0)
                        .with("voters", ids(state.voters))
                        .with("learners", ids(state.learners)),
                );
            }
            Err(reason) => report.damage(&frame.file.display().to_string(), frame.offset, &reason),
        },
        FrameContent::Mark => report.line(line("mark")),
    }
    if !frame.is_chained {
        let file = frame.file.display().to_string();
        report.damage(&file, frame.offset, "the frame does not follow the one before it");
    }
}

fn entry(line: ReportLine, seen: EntrySeen) -> ReportLine {
    match seen {
        EntrySeen::Empty => line.with("holds", "nothing"),
        EntrySeen::Membership(batch) => with_batch(line.with("holds", "membership"), &batch),
        EntrySeen::Batch(batch) => with_batch(line.with("holds", "batch"), &batch),
    }
}

fn with_batch(line: ReportLine, batch: &BatchSeen) -> ReportLine {
    let described = |command| match requests::describe(command) {
        Ok(value) => value,
        Err(reason) => Value::from(format!("not a command: {reason}")),
    };
    let requests: Vec<Value> = batch.commands.iter().map(described).collect();
    line.with("proposer", id(batch.proposer))
        .with("run", id(batch.nonce))
        .with("sequence", batch.sequence)
        .with("requests", requests)
}
