//! The file operations of a process, as recorded by `preload/record.c`.
//!
//! ```text
//!   magic u32 │ kind u32 │ file u64 │ offset u64 │ number u64 │ bytes u32 │ name u16 │ other u16 │ name │ other │ data
//! ```
//!
//! * Operations are in an order in which they happened; `end` is the offset in the log after an operation's
//!   record.
//! * The log of several lives of a process is a single recording. A partial record at the death of a process
//!   is dropped.
//!
//! Durability is the subject of `disk`.

use std::path::Path;

use bytes::Bytes;

use crate::failure::{Attempt, ExperimentError, Result};

const HEAD_BYTES: usize = 40;
const MAGIC: u32 = 0x7472_6f54;

/// Inode number of a file or directory. The kernel reuses it after a removal.
pub type FileNumber = u64;

/// An operation that changed files or made a change durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskOperation {
    Start,
    Open {
        file: FileNumber,
        name: String,
    },
    Create {
        file: FileNumber,
        name: String,
    },
    Write {
        file: FileNumber,
        offset: u64,
        data: Bytes,
    },
    Truncate {
        file: FileNumber,
        length: u64,
    },
    /// A preallocation, after which the file extends at least to `end`.
    Allocate {
        file: FileNumber,
        end: u64,
    },
    SyncBegin {
        file: FileNumber,
        number: u64,
    },
    SyncEnd {
        number: u64,
    },
    Rename {
        from: String,
        to: String,
    },
    Remove {
        name: String,
    },
    MakeDirectory {
        file: FileNumber,
        name: String,
    },
    Failed,
}

/// An operation and its position in the log.
#[derive(Clone, Debug)]
pub struct RecordedOperation {
    pub operation: DiskOperation,
    /// A log of at least this length includes the operation.
    pub end: u64,
}

pub fn read(path: &Path) -> Result<Vec<RecordedOperation>> {
    let log = Bytes::from(std::fs::read(path).attempt("read", path)?);
    parse(&log)
}

fn parse(log: &Bytes) -> Result<Vec<RecordedOperation>> {
    let mut recorded = Vec::new();
    let mut at = 0;
    while let Some((operation, end)) = record(log, at)? {
        recorded.push(RecordedOperation { operation, end: end as u64 });
        at = end;
    }
    Ok(recorded)
}

/// Parses the record at `at`, and returns it with its end offset. Returns `None` at the end of the
/// log or at a partial record.
fn record(log: &Bytes, at: usize) -> Result<Option<(DiskOperation, usize)>> {
    let Some(head) = log.get(at..at + HEAD_BYTES) else { return Ok(None) };
    let u16_at = |from: usize| usize::from(u16::from_le_bytes([head[from], head[from + 1]]));
    let u32_at = |from: usize| u32::from_le_bytes(head[from..from + 4].try_into().expect("four bytes"));
    let u64_at = |from: usize| u64::from_le_bytes(head[from..from + 8].try_into().expect("eight bytes"));
    if u32_at(0) != MAGIC {
        return Err(ExperimentError::new(format!("the recording is corrupt at byte {at}")));
    }
    let (data_bytes, name_bytes, other_bytes) = (u32_at(32) as usize, u16_at(36), u16_at(38));
    let (name_at, other_at) = (at + HEAD_BYTES, at + HEAD_BYTES + name_bytes);
    let (data_at, end) = (other_at + other_bytes, other_at + other_bytes + data_bytes);
    if end > log.len() {
        return Ok(None);
    }
    let text = |from: usize, to: usize| String::from_utf8_lossy(&log[from..to]).into_owned();
    let (name, other) = (|| text(name_at, other_at), || text(other_at, data_at));
    let (file, offset, number) = (u64_at(8), u64_at(16), u64_at(24));
    let operation = match u32_at(4) {
        1 => DiskOperation::Start,
        2 => DiskOperation::Open { file, name: name() },
        3 => DiskOperation::Create { file, name: name() },
        4 => DiskOperation::Write { file, offset, data: log.slice(data_at..end) },
        5 => DiskOperation::Truncate { file, length: offset },
        6 if number & 0xff == 0 => DiskOperation::Allocate { file, end: offset + (number >> 8) },
        6 => {
            return Err(ExperimentError::new(format!(
                "an allocation of mode {} is not modelled",
                number & 0xff
            )));
        }
        7 => DiskOperation::SyncBegin { file, number },
        8 => DiskOperation::SyncEnd { number },
        9 => DiskOperation::Rename { from: name(), to: other() },
        10 | 12 => DiskOperation::Remove { name: name() },
        11 => DiskOperation::MakeDirectory { file, name: name() },
        13 => DiskOperation::Failed,
        other => {
            return Err(ExperimentError::new(format!(
                "the recording has a record of kind {other} at byte {at}"
            )));
        }
    };
    Ok(Some((operation, end)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]
    use super::*;

    fn bytes(kind: u32, file: u64, offset: u64, number: u64, texts: [&str; 3]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(MAGIC.to_le_bytes());
        out.extend(kind.to_le_bytes());
        [file, offset, number].iter().for_each(|field| out.extend(field.to_le_bytes()));
        out.extend((texts[2].len() as u32).to_le_bytes());
        texts[..2].iter().for_each(|text| out.extend((text.len() as u16).to_le_bytes()));
        texts.iter().for_each(|text| out.extend(text.bytes()));
        out
    }

    #[test]
    fn records_are_read_in_order_and_a_cut_one_is_left_out() {
        let mut log = [bytes(1, 0, 0, 0, [""; 3]), bytes(4, 7, 9, 0, ["", "", "data"])].concat();
        log.extend(bytes(9, 0, 0, 0, ["a", "b/c", ""]));
        let whole = log.len();
        log.extend(&bytes(4, 7, 9, 0, ["", "", "more"])[..42]);
        let recorded = parse(&Bytes::from(log)).unwrap();
        let data = Bytes::from_static(b"data");
        assert_eq!(recorded[1].operation, DiskOperation::Write { file: 7, offset: 9, data });
        assert_eq!(
            recorded[2].operation,
            DiskOperation::Rename { from: "a".to_owned(), to: "b/c".to_owned() }
        );
        assert_eq!((recorded.len(), recorded[2].end), (3, whole as u64));
    }

    #[test]
    fn what_is_no_record_is_refused() {
        assert!(parse(&Bytes::from(vec![1; 50])).is_err());
        assert!(parse(&Bytes::from(bytes(99, 0, 0, 0, [""; 3]))).is_err());
    }
}
