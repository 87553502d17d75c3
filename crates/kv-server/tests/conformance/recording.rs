//! Recordings: what real etcd was asked, and what it said.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine;
use bytes::Bytes;
use serde::Deserialize;

use crate::{fields, wire};

/// One script, in the order of its steps.
#[derive(Deserialize)]
pub struct Recording {
    pub script: String,
    /// Of the server, besides the usual ones.
    #[serde(default)]
    pub flags: Vec<String>,
    /// By method: the fields that are masked in its answers.
    varying: HashMap<String, Vec<Field>>,
    /// By variable: the encoded value that requests hold in its place.
    #[serde(default)]
    stand_ins: HashMap<String, Packed>,
    pub steps: Vec<Step>,
}

/// A field by its numbers, from the outermost message inwards, and how it is masked.
#[derive(Deserialize)]
pub struct Field {
    pub path: String,
    /// The field that it counts down from: it is masked by that one's value while it is close below it.
    pub counts_down_from: Option<String>,
    /// The elements of a list in any order.
    #[serde(default)]
    pub unordered: bool,
}

/// A field that holds the value of a variable.
#[derive(Deserialize)]
pub struct Slot {
    pub path: String,
    pub variable: String,
}

/// What a step does.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "lowercase")]
pub enum Act {
    /// One call, up to its status.
    #[default]
    Call,
    /// Starts a call under a name.
    Open,
    /// Sends one more request.
    Send,
    /// Takes the next answers.
    Expect,
    /// Finds no answer that was not taken.
    Silent,
    /// Sends no further request.
    Close,
    /// Takes the answers that are left, and the status.
    End,
    /// Resets the call.
    Cancel,
}

/// One call or one act on a call that has a name, and what came of it.
#[derive(Deserialize)]
pub struct Step {
    pub call: String,
    /// Why the step is there, in the words of the script.
    #[serde(default)]
    pub why: String,
    #[serde(default)]
    pub act: Act,
    /// Whether the call has the metadata `hasleader: true`.
    #[serde(default)]
    pub has_leader: bool,
    /// How often the call is made, one after the other; the last outcome counts.
    #[serde(default = "once")]
    pub times: usize,
    /// The name of the call.
    #[serde(default)]
    pub stream: String,
    #[serde(default)]
    pub request: serde_json::Value,
    /// Empty while the call goes on.
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
    /// Path of the field whose equal values keep their order; without it all answers do.
    pub ordered_by: Option<String>,
    #[serde(default)]
    pub uses: Vec<Slot>,
    #[serde(default)]
    pub binds: Vec<Slot>,
    /// Empty where the call was opened by an earlier step.
    #[serde(default)]
    pub method: String,
    /// Whether any number of requests may be sent.
    #[serde(default)]
    pub sends: bool,
    request_bytes: Option<Packed>,
    #[serde(default)]
    answer_bytes: Vec<Packed>,
}

fn once() -> usize {
    1
}

/// What came of a step: the answers, and the status where the call ended.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    pub code: String,
    pub message: String,
    pub answers: Vec<Bytes>,
}

/// Bytes as pieces between bars: base64, or `120*3000` for 3000 bytes of value 120.
#[derive(Deserialize)]
pub struct Packed(String);

impl Recording {
    pub fn varying(&self, method: &str) -> &[Field] {
        self.varying.get(method).map_or(&[], Vec::as_slice)
    }

    pub fn stand_in(&self, variable: &str) -> Option<Bytes> {
        self.stand_ins.get(variable).map(Packed::unpack)
    }

    /// The method of a step: its own, or that of the step which opened its call.
    pub fn method_of(&self, position: usize) -> &str {
        let step = &self.steps[position];
        let opened = |earlier: &&Step| earlier.act == Act::Open && earlier.stream == step.stream;
        match step.method.as_str() {
            "" => self.steps[..position].iter().rev().find(opened).map_or("", |earlier| &earlier.method),
            method => method,
        }
    }
}

impl Step {
    /// None where the step sends nothing.
    pub fn request_bytes(&self) -> Option<Bytes> {
        self.request_bytes.as_ref().map(Packed::unpack)
    }

    pub fn answers(&self) -> usize {
        self.answer_bytes.len()
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
        let plain = |field: &&Field| !field.unordered && field.counts_down_from.is_none();
        let paths = wire::Paths::new(fields.iter().filter(plain).map(|field| field.path.as_str()));
        for answer in &mut self.answers {
            for field in fields {
                if let Some(from) = &field.counts_down_from {
                    *answer = fields::mask_counted(answer, &field.path, from);
                }
                if field.unordered {
                    *answer = fields::sorted(answer, &field.path);
                }
            }
            *answer = paths.mask(answer);
        }
        self
    }
}

impl Packed {
    pub fn unpack(&self) -> Bytes {
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
