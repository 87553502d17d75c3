//! A naive store: every revision is a full map. It shares no code with the real one.

use std::collections::BTreeMap;

use api::etcdserverpb::RangeRequest;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelKey {
    pub value: String,
    pub create: i64,
    pub modified: i64,
    pub version: i64,
    pub lease: i64,
}

type ModelState = BTreeMap<String, ModelKey>;

/// The whole history; the state at revision r is `states[r - 1]`.
pub struct Model {
    states: Vec<ModelState>,
    compacted: i64,
    /// TTL and deadline.
    leases: BTreeMap<i64, (i64, Option<i64>)>,
    clock: i64,
}

#[derive(Clone, Debug)]
pub enum ModelChange {
    /// Key, value, and lease; 0 is none.
    Put(String, String, i64),
    Delete(String, String),
}

impl Model {
    pub fn new() -> Self {
        Model { states: vec![ModelState::new()], compacted: -1, leases: BTreeMap::new(), clock: 0 }
    }

    pub fn revision(&self) -> i64 {
        self.states.len() as i64
    }

    pub fn newest(&self) -> &ModelState {
        self.states.last().expect("revision 1 exists")
    }

    /// Makes the changes as one revision, if they change anything.
    pub fn change(&mut self, changes: &[ModelChange]) {
        let revision = self.revision() + 1;
        let mut state = self.newest().clone();
        let mut changed = false;
        for change in changes {
            match change {
                ModelChange::Put(key, value, lease) => {
                    let (create, version) =
                        state.get(key).map_or((revision, 0), |kept| (kept.create, kept.version));
                    let (value, version, lease) = (value.clone(), version + 1, *lease);
                    let kept = ModelKey { value, create, modified: revision, version, lease };
                    state.insert(key.clone(), kept);
                    changed = true;
                }
                ModelChange::Delete(key, end) => {
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

    pub fn permits(&self, changes: &[ModelChange]) -> bool {
        changes.iter().all(|change| match change {
            ModelChange::Put(_, _, lease) => *lease == 0 || self.leases.contains_key(lease),
            ModelChange::Delete(..) => true,
        })
    }

    /// Ids, TTLs and deadlines.
    pub fn leases(&self) -> Vec<(i64, i64, Option<i64>)> {
        self.leases.iter().map(|(id, (ttl, deadline))| (*id, *ttl, *deadline)).collect()
    }

    pub fn keys_of(&self, lease: i64) -> Vec<String> {
        let keys = self.newest().iter().filter(|(_, kept)| kept.lease == lease);
        keys.map(|(key, _)| key.clone()).collect()
    }

    pub fn grant(&mut self, id: i64, ttl: i64) -> bool {
        let accepted = id != 0 && !self.leases.contains_key(&id);
        if accepted {
            self.leases.insert(id, (ttl.max(1), None));
        }
        accepted
    }

    /// Removes a lease and deletes its keys as a single revision.
    pub fn revoke(&mut self, id: i64) -> bool {
        let existed = self.leases.remove(&id).is_some();
        if existed {
            let keys = self.keys_of(id);
            self.change(
                &keys.into_iter().map(|key| ModelChange::Delete(key, String::new())).collect::<Vec<_>>(),
            );
        }
        existed
    }

    pub fn renew(&mut self, now: i64, ids: &[i64]) {
        self.clock = self.clock.max(now);
        for id in ids {
            if let Some((ttl, deadline)) = self.leases.get_mut(id) {
                *deadline = Some(deadline.unwrap_or(0).max(self.clock + *ttl * 1000));
            }
        }
    }

    /// Revokes leases whose deadline was half a second ago, and returns their number.
    pub fn expire(&mut self, now: i64, ids: &[i64]) -> usize {
        let over = |(_, (_, deadline)): &(&i64, &(i64, Option<i64>))| {
            deadline.is_some_and(|deadline| deadline + 500 <= now)
        };
        let over: Vec<i64> = self.leases.iter().filter(over).map(|(id, _)| *id).collect();
        let named: Vec<i64> = over.into_iter().filter(|id| ids.contains(id)).collect();
        named.iter().filter(|id| self.revoke(**id)).count()
    }

    pub fn compact(&mut self, revision: i64) -> bool {
        let accepted = revision > self.compacted && revision <= self.revision();
        if accepted {
            self.compacted = revision;
        }
        accepted
    }

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
        let by_key = |(key, _): &(&String, &ModelKey)| (0, (*key).clone());
        let sort_key = |it: &(&String, &ModelKey)| match request.sort_target {
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
                // Keys-only ranges are served from the index, which has no leases, unless sorted by
                // value. etcd does the same.
                let has_lease = it.lease != 0 && (!request.keys_only || request.sort_target == 4);
                let lease = if has_lease { format!("+{}", it.lease) } else { String::new() };
                format!("{key}={value}@{}.{}.{}{lease}", it.create, it.modified, it.version)
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
