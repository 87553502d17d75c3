//! Recordings of requests to real etcd, and its responses.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine;
use bytes::Bytes;
use serde::Deserialize;

use crate::{fields, wire};

/// A script, in the order of its steps.
#[derive(Deserialize)]
pub struct Recording {
    pub script: String,
    /// Server flags in addition to the default ones.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Masked fields of responses, by method.
    varying: HashMap<String, Vec<Field>>,
    /// Encoded placeholder values in requests, by variable.
    #[serde(default)]
    stand_ins: HashMap<String, Packed>,
    pub steps: Vec<Step>,
}

/// A field by its numbers, from the outermost message inwards, and how it is masked.
#[derive(Deserialize)]
pub struct Field {
    pub path: String,
    /// Field from which it counts down: it is masked by that field's value while it is slightly below.
    pub counts_down_from: Option<String>,
    /// True for a list with elements in any order.
    #[serde(default)]
    pub unordered: bool,
}

#[derive(Deserialize)]
pub struct Slot {
    pub path: String,
    pub variable: String,
}

/// Action of a step.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "lowercase")]
pub enum Act {
    /// A complete call, up to its status.
    #[default]
    Call,
    /// Starts a named call.
    Open,
    /// Sends a further request.
    Send,
    /// Takes the following responses.
    Expect,
    /// Expects that there is no unread response.
    Silent,
    /// Half-closes the call.
    Close,
    /// Takes the remaining responses and the status.
    End,
    /// Resets the call.
    Cancel,
}

/// A call, or an action on a named call, and its outcome.
#[derive(Deserialize)]
pub struct Step {
    pub call: String,
    /// Purpose of the step, from the script.
    #[serde(default)]
    pub why: String,
    #[serde(default)]
    pub act: Act,
    /// True if the call has the metadata `hasleader: true`.
    #[serde(default)]
    pub has_leader: bool,
    /// Number of sequential repetitions; the last outcome counts.
    #[serde(default = "once")]
    pub times: usize,
    #[serde(default)]
    pub stream: String,
    #[serde(default)]
    pub request: serde_json::Value,
    /// Status; empty while the call is open.
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
    /// Path of the field within which equal values retain their order; without it, all responses do.
    pub ordered_by: Option<String>,
    #[serde(default)]
    pub uses: Vec<Slot>,
    #[serde(default)]
    pub binds: Vec<Slot>,
    /// Method; empty if an earlier step opened the call.
    #[serde(default)]
    pub method: String,
    /// True for methods with a request stream.
    #[serde(default)]
    pub sends: bool,
    request_bytes: Option<Packed>,
    #[serde(default)]
    answer_bytes: Vec<Packed>,
}

fn once() -> usize {
    1
}

/// Outcome of a step: responses, and the status if the call was closed.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    pub code: String,
    pub message: String,
    pub answers: Vec<Bytes>,
}

/// Bytes in parts separated by bars: base64, or `120*3000` for 3000 bytes of value 120.
#[derive(Deserialize)]
pub struct Packed(String);

impl Recording {
    pub fn varying(&self, method: &str) -> &[Field] {
        self.varying.get(method).map_or(&[], Vec::as_slice)
    }

    pub fn stand_in(&self, variable: &str) -> Option<Bytes> {
        self.stand_ins.get(variable).map(Packed::unpack)
    }

    /// Returns the method of a step, or of the step that opened its call.
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
    /// Returns None if the step does not send a request.
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
