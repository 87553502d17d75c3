//! A naive store: every revision is a full map. It shares no code with the real one.

use std::collections::BTreeMap;

use api::etcdserverpb::RangeRequest;

/// A key as it was at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub value: String,
    pub create: i64,
    pub modified: i64,
    pub version: i64,
}

type State = BTreeMap<String, Kept>;

/// The whole history; the state at revision r is `states[r - 1]`.
pub struct Model {
    states: Vec<State>,
    compacted: i64,
}

/// One change inside a revision.
#[derive(Clone, Debug)]
pub enum Change {
    Put(String, String),
    Delete(String, String),
}

impl Model {
    pub fn new() -> Self {
        Model { states: vec![State::new()], compacted: -1 }
    }

    pub fn revision(&self) -> i64 {
        self.states.len() as i64
    }

    pub fn newest(&self) -> &State {
        self.states.last().expect("revision 1 exists")
    }

    /// Makes the changes as one revision, if they change anything.
    pub fn change(&mut self, changes: &[Change]) {
        let revision = self.revision() + 1;
        let mut state = self.newest().clone();
        let mut changed = false;
        for change in changes {
            match change {
                Change::Put(key, value) => {
                    let (create, version) =
                        state.get(key).map_or((revision, 0), |kept| (kept.create, kept.version));
                    let kept =
                        Kept { value: value.clone(), create, modified: revision, version: version + 1 };
                    state.insert(key.clone(), kept);
                    changed = true;
                }
                Change::Delete(key, end) => {
                    let doomed: Vec<_> = state.keys().filter(|it| within(it, key, end)).cloned().collect();
                    changed |= !doomed.is_empty();
                    for key in doomed {
                        state.remove(&key);
                    }
                }
            }
        }
        if changed {
            self.states.push(state);
        }
    }

    pub fn compact(&mut self, revision: i64) -> bool {
        let accepted = revision > self.compacted && revision <= self.revision();
        if accepted {
            self.compacted = revision;
        }
        accepted
    }

    /// The range as `World` prints it.
    pub fn range(&self, request: &RangeRequest) -> String {
        let now = self.revision();
        let at = if request.revision <= 0 { now } else { request.revision };
        if at > now {
            return "FutureRev".to_owned();
        }
        if at < self.compacted {
            return "Compacted".to_owned();
        }
        let (key, end) = (text(&request.key), text(&request.range_end));
        let state = &self.states[at as usize - 1];
        let all: Vec<_> = state.iter().filter(|(it, _)| within(it, &key, &end)).collect();
        let count = all.len();
        let bound = |revision: i64, min: i64, max: i64| {
            (min == 0 || revision >= min) && (max == 0 || revision <= max)
        };
        let mut kept: Vec<_> = all
            .into_iter()
            .filter(|(_, it)| bound(it.modified, request.min_mod_revision, request.max_mod_revision))
            .filter(|(_, it)| bound(it.create, request.min_create_revision, request.max_create_revision))
            .collect();
        let by_key = |(key, _): &(&String, &Kept)| (0, (*key).clone());
        let sort_key = |it: &(&String, &Kept)| match request.sort_target {
            0 => by_key(it),
            1 => (it.1.version, String::new()),
            2 => (it.1.create, String::new()),
            3 => (it.1.modified, String::new()),
            _ => (0, it.1.value.clone()),
        };
        match request.sort_order {
            1 => kept.sort_by_key(sort_key),
            2 => kept.sort_by_key(|it| std::cmp::Reverse(sort_key(it))),
            _ => assert_eq!(request.sort_target, 0, "an order of none is for keys here"),
        }
        let limit = if request.limit > 0 { request.limit as usize } else { usize::MAX };
        let more = if kept.len() > limit { " more" } else { "" };
        kept.truncate(limit);
        let kvs: Vec<_> = kept
            .iter()
            .map(|(key, it)| {
                let value = if request.keys_only { "" } else { &it.value };
                format!("{key}={value}@{}.{}.{}", it.create, it.modified, it.version)
            })
            .collect();
        format!("[{}] of {count}{more} r{now}", kvs.join(" "))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the model's keys are text")
}

fn within(it: &str, key: &str, end: &str) -> bool {
    match end {
        "" => it == key,
        "\0" => it >= key,
        end => it >= key && it < end,
    }
}
