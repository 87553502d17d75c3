//! Recordings: what real etcd was asked, and what it said.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine;
use bytes::Bytes;
use serde::Deserialize;

use crate::wire;

/// One script, in the order of its steps.
#[derive(Deserialize)]
pub struct Recording {
    pub script: String,
    /// By method: the fields that are masked in its answers.
    varying: HashMap<String, Vec<Field>>,
    pub steps: Vec<Step>,
}

/// A field by its numbers, from the outermost message inwards.
#[derive(Deserialize)]
pub struct Field {
    pub path: String,
}

/// One call and how it ended.
#[derive(Deserialize)]
pub struct Step {
    pub call: String,
    /// Why the step is there, in the words of the script.
    #[serde(default)]
    pub why: String,
    pub request: serde_json::Value,
    code: String,
    message: String,
    pub method: String,
    request_bytes: Packed,
    answer_bytes: Vec<Packed>,
}

/// How a call ended: the answers that came, and the status after them.
#[derive(PartialEq, Eq, Debug)]
pub struct Outcome {
    pub code: String,
    pub message: String,
    pub answers: Vec<Bytes>,
}

/// Bytes as pieces between bars: base64, or `120*3000` for 3000 bytes of value 120.
#[derive(Deserialize)]
struct Packed(String);

impl Recording {
    pub fn varying(&self, method: &str) -> &[Field] {
        self.varying.get(method).map_or(&[], Vec::as_slice)
    }
}

impl Step {
    pub fn request_bytes(&self) -> Bytes {
        self.request_bytes.unpack()
    }

    pub fn outcome(&self) -> Outcome {
        Outcome {
            code: self.code.clone(),
            message: self.message.clone(),
            answers: self.answer_bytes.iter().map(Packed::unpack).collect(),
        }
    }
}

impl Outcome {
    pub fn masked(mut self, fields: &[Field]) -> Self {
        let paths = wire::Paths::new(fields.iter().map(|field| field.path.as_str()));
        for answer in &mut self.answers {
            *answer = paths.mask(answer);
        }
        self
    }
}

impl Packed {
    fn unpack(&self) -> Bytes {
        let mut bytes = Vec::new();
        for piece in self.0.split('|').filter(|piece| !piece.is_empty()) {
            match piece.split_once('*') {
                Some((value, times)) => {
                    let value: u8 = value.parse().expect("a byte before the star");
                    let times: usize = times.parse().expect("a count after the star");
                    bytes.resize(bytes.len() + times, value);
                }
                None => base64::engine::general_purpose::STANDARD
                    .decode_vec(piece, &mut bytes)
                    .expect("base64 between the bars"),
            }
        }
        bytes.into()
    }
}

/// All recordings, in the order of their names.
pub fn read_all() -> Vec<Recording> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/recordings");
    let mut paths: Vec<_> = std::fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("list {}: {error}", dir.display()))
        .map(|entry| entry.expect("an entry of a directory that was just listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> Recording {
    let text = std::fs::read(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("parse {}: {error}", path.display()))
}

#[test]
fn a_run_of_one_byte_is_unpacked_between_plain_pieces() {
    assert_eq!(Packed("YQ==|120*3|Yg==".into()).unpack(), "axxxb");
    assert_eq!(Packed(String::new()).unpack(), "");
}
