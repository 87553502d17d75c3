use std::fs;

use ::wal::{Entry, LogIndex, LogPosition, RealFs, Term, Wal, WalOptions};
use api::etcdserverpb::PutRequest;
use mvcc::SledBackend;
use state_machine::command::{self, Kind};

use std::path::Path;

use super::*;
use process::log::causes;

/// Runs the command line. Returns its output, and the number of corruptions found.
fn inspect(line: &str, dir: &Path) -> (String, u64) {
    let named = format!("inspect {line} --data-dir {}", dir.display());
    let arguments = InspectArguments::try_parse_from(named.split_whitespace()).unwrap();
    let mut out = Vec::new();
    let mut report = InspectReport::new(&mut out, arguments.json);
    show(&arguments, &mut report).unwrap();
    let damages = report.finish().unwrap();
    (String::from_utf8(out).unwrap(), damages)
}

/// Encodes a batch with one put, in the format of the log.
fn batch(key: &str, value: &str) -> Vec<u8> {
    let put =
        PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..PutRequest::default() };
    let command = command::encode(Kind::Put(put));
    let mut payload = vec![1];
    for number in [7u64, 8, 9] {
        payload.extend_from_slice(&number.to_le_bytes());
    }
    payload.extend_from_slice(&1u32.to_le_bytes());
    payload.extend_from_slice(&u32::try_from(command.len()).unwrap().to_le_bytes());
    payload.extend_from_slice(&command);
    payload
}

/// Creates a data directory with a log of three entries and a store of two.
fn data_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let options = WalOptions { segment_bytes: WalOptions::SEGMENT_BYTES, salt: [7; 16] };
    let identity = [5u64.to_be_bytes(), 6u64.to_be_bytes()].concat();
    let mut log =
        Wal::create(RealFs, &dir.path().join("wal"), &identity, LogPosition::default(), options).unwrap();
    log.append(Entry { index: LogIndex(1), term: Term(1), kind: 0, payload: b"" });
    log.append(Entry { index: LogIndex(2), term: Term(1), kind: 0, payload: &batch("one", "1") });
    log.sync().unwrap();
    log.append(Entry {
        index: LogIndex(3),
        term: Term(1),
        kind: 0,
        payload: &batch("two\n", &"x".repeat(1000)),
    });
    log.put_state(&[1, 1, 6, 2, 1, 6, 0, 0, 0, 0]);
    log.sync().unwrap();
    let backend = SledBackend::open(&dir.path().join("store")).unwrap();
    let (mut writer, _, mut maintainer) =
        mvcc::open(Box::new(backend), mvcc::StoreOptions::default()).unwrap();
    for index in 2..=3 {
        let mut revision = writer.begin();
        revision.put(format!("k{index}").as_bytes(), b"v", 0);
        revision.finish();
        writer.set_item(b"item", Some(b"\x00thing"));
        writer.end_entry(LogPosition::new(index, 1)).unwrap();
        maintainer.persist().unwrap();
    }
    dir
}

#[test]
fn a_log_is_shown_with_its_requests() {
    let dir = data_dir();
    let (text, damages) = inspect("wal", dir.path());
    assert_eq!(damages, 0, "{text}");
    for part in [
        "segment ",
        "cluster=5",
        "member=6",
        "index=1",
        "holds=nothing",
        r#"{"key":"one","request":"put","value":"1"}"#,
        r"two\\n",
        "(1000 bytes)",
        "commit=2",
        "last_index=3",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn json_is_one_object_per_line_and_holds_everything() {
    let dir = data_dir();
    let (text, _) = inspect("wal --json", dir.path());
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    let wanted = ["segment", "entry", "entry", "entry", "state", "log"];
    assert_eq!(kinds.iter().copied().filter(|kind| *kind != "mark").collect::<Vec<_>>(), wanted);
    let third = lines.iter().find(|line| line["index"] == 3).unwrap();
    assert_eq!(third["requests"][0]["key"], r"two\n");
    assert_eq!(third["requests"][0]["value"].as_str().unwrap().len(), 1000);
}

#[test]
fn a_store_is_shown_down_to_its_records() {
    let dir = data_dir();
    let (text, damages) = inspect("store", dir.path());
    assert_eq!(damages, 0, "{text}");
    assert!(
        text.contains("applied_index=3") && text.contains("revision=3") && text.contains(r"value=\x00thing")
    );
    assert!(text.contains("block ") && !text.contains("key=k2"), "{text}");
    let (text, _) = inspect("store --records", dir.path());
    assert!(text.contains("revision=2.0") && text.contains("key=k3"), "{text}");
    let (text, _) = inspect("snapshot", dir.path());
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("applied_index=3"), "{text}");
}

#[test]
fn every_flipped_byte_of_a_block_file_is_found_and_nothing_is_changed() {
    let dir = data_dir();
    let path = dir.path().join("store/blocks/000001.blk");
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(41) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        for what in ["store", "store --records", "snapshot"] {
            let (text, damages) = inspect(what, dir.path());
            assert!(damages > 0, "byte {at}, {what}: {text}");
        }
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn a_damaged_log_is_shown_to_its_end() {
    let dir = data_dir();
    let path = fs::read_dir(dir.path().join("wal")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(3).position(|window| window == b"one").unwrap();
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let (text, damages) = inspect("wal", dir.path());
    assert!(damages > 0 && text.contains("opens=false"), "{text}");
    assert!(text.contains(&format!("file={}", path.display())) && text.contains("index=3"), "{text}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn what_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut report = InspectReport::new(Vec::new(), false);
    for what in ["wal", "store"] {
        let line = format!("inspect {what} --data-dir {}", dir.path().display());
        let arguments = InspectArguments::try_parse_from(line.split_whitespace()).unwrap();
        let error = causes(&show(&arguments, &mut report).unwrap_err());
        assert!(error.contains(&dir.path().join(what).display().to_string()), "{error}");
    }
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
}
