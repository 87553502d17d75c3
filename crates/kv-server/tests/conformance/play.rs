//! Plays the steps of a recording against a server.

use std::collections::HashMap;

use bytes::Bytes;

use crate::client::{Client, Requests, Stream};
use crate::fields;
use crate::recording::{Act, Outcome, Recording, Slot, Step};

pub struct Player<'a> {
    recording: &'a Recording,
    client: Client,
    /// Open calls, by name in the script.
    streams: HashMap<&'a str, Stream>,
    /// Encoded values of variables.
    bound: HashMap<&'a str, Bytes>,
}

impl<'a> Player<'a> {
    pub fn new(recording: &'a Recording, client: Client) -> Self {
        Self { recording, client, streams: HashMap::new(), bound: HashMap::new() }
    }

    /// Plays a step. Returns its outcome with varying fields masked.
    pub async fn play(&mut self, position: usize) -> Outcome {
        let step = &self.recording.steps[position];
        let request = step.request_bytes().map(|request| self.substituted(request, &step.uses));
        let mut outcome = match (step.act, self.streams.get_mut(step.stream.as_str())) {
            (Act::Call, _) => self.call(step, request.unwrap_or_default()).await,
            (Act::Open, _) => {
                let requests = if step.sends { Requests::Any } else { Requests::One };
                let stream = self.client_of(step).open(&step.method, request, requests);
                self.streams.insert(&step.stream, stream);
                Outcome::default()
            }
            (act, Some(stream)) => {
                let outcome = self::act(act, step, request, stream).await;
                // Responses that were received before the reset and not yet expected are ignored.
                if matches!(act, Act::End | Act::Cancel) {
                    self.streams.remove(step.stream.as_str());
                }
                outcome
            }
            (_, None) => panic!("{}: {} is not open", self.recording.script, step.stream),
        };
        if let Some(path) = &step.ordered_by {
            outcome.answers.sort_by_cached_key(|answer| fields::first(answer, path).unwrap_or_default());
        }
        self.bind(&outcome, &step.binds);
        for answer in &mut outcome.answers {
            *answer = self.masked(answer, &step.binds);
        }
        outcome.masked(self.recording.varying(self.recording.method_of(position)))
    }

    fn client_of(&self, step: &Step) -> Client {
        if step.has_leader { self.client.with_has_leader() } else { self.client.clone() }
    }

    /// Repeats the call as the step specifies, up to the first failure.
    async fn call(&self, step: &Step, request: Bytes) -> Outcome {
        let client = self.client_of(step);
        let mut outcome = client.call(&step.method, request.clone()).await;
        for _ in 1..step.times {
            if outcome.code != "OK" {
                break;
            }
            outcome = client.call(&step.method, request.clone()).await;
        }
        outcome
    }

    /// Cancels all streams. Returns their unexpected responses.
    pub fn finish(&mut self) -> Vec<(String, Outcome)> {
        let mut left = Vec::new();
        for (name, mut stream) in self.streams.drain() {
            let arrived = stream.arrived();
            if arrived != Outcome::default() {
                left.push((name.to_owned(), arrived));
            }
            stream.cancel();
        }
        left
    }

    fn substituted(&self, mut request: Bytes, uses: &[Slot]) -> Bytes {
        for Slot { path, variable } in uses {
            let (stand_in, value) = (self.recording.stand_in(variable), self.bound.get(variable.as_str()));
            request = fields::replace(&request, path, &mut |found, _| match value {
                Some(value) if stand_in.as_ref() == Some(found) => value.clone(),
                _ => found.clone(),
            });
        }
        request
    }

    /// Binds unbound variables to the first value on their path. If there is none, the response differs from
    /// the recording, and the step fails.
    fn bind(&mut self, outcome: &Outcome, binds: &'a [Slot]) {
        for Slot { path, variable } in binds {
            let value = outcome.answers.iter().find_map(|answer| fields::first(answer, path));
            if let (Some(value), false) = (value, self.bound.contains_key(variable.as_str())) {
                self.bound.insert(variable, value);
            }
        }
    }

    fn masked(&self, answer: &Bytes, binds: &[Slot]) -> Bytes {
        binds.iter().fold(answer.clone(), |answer, Slot { path, variable }| {
            let value = self.bound.get(variable.as_str());
            fields::replace(&answer, path, &mut |found, kind| {
                if value == Some(found) { fields::masked(kind) } else { found.clone() }
            })
        })
    }
}

async fn act(act: Act, step: &Step, request: Option<Bytes>, stream: &mut Stream) -> Outcome {
    match act {
        Act::Expect => return stream.take(step.answers()).await,
        Act::End => return stream.end().await,
        Act::Silent => return stream.arrived(),
        Act::Send => stream.send(request.unwrap_or_default()),
        Act::Close => stream.close(),
        Act::Cancel => stream.cancel(),
        Act::Call | Act::Open => unreachable!("these need no stream that is open"),
    }
    Outcome::default()
}
