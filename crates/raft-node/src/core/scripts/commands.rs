//! Words of scripts, client commands, and the machine's handling of membership changes.
//!
//! `+4` adds voter 4 or promotes the learner, `~4` adds a learner, `-4` removes a member. The machine
//! rejects every other command, and the removal of its last voter.

use bytes::Bytes;

use crate::Membership;
use crate::wire::{Batch, BatchBuilder, BatchId};

pub(super) fn link(word: &str) -> (u64, u64) {
    let (from, to) = word.split_once('>').expect("FROM>TO");
    (id(from), id(to))
}

pub(super) fn id(word: &str) -> u64 {
    word.parse().expect("the id of a member")
}

pub(super) fn ids(words: &[&str]) -> Vec<u64> {
    words.iter().map(|word| id(word)).collect()
}

/// Returns a batch with a single command; `a*1000` is a command of 1000 bytes that does not compress.
pub(super) fn batch(word: &str, sequence: u64) -> Bytes {
    let (name, count) = word.split_once('*').unwrap_or((word, "0"));
    let mut command = name.as_bytes().to_vec();
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ sequence;
    while command.len() < count.parse().expect("a length") {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        command.push((state >> 32) as u8);
    }
    let mut builder = BatchBuilder::new(BatchId { proposer: 1, nonce: 1, sequence }, command.len());
    builder.push(&command);
    builder.finish()
}

pub(super) fn change_batch(word: &str, sequence: u64) -> Bytes {
    BatchBuilder::change(BatchId { proposer: 1, nonce: 1, sequence }, word.as_bytes())
}

pub(super) fn removed_by(command: &[u8]) -> Option<u64> {
    std::str::from_utf8(command.strip_prefix(b"-")?).ok()?.parse().ok()
}

pub(super) fn keeps_voters(command: &[u8], voters: &[u64]) -> bool {
    let (verb, id) = (command[0], std::str::from_utf8(&command[1..]).unwrap().parse::<u64>());
    id.is_ok_and(|id| voters.contains(&id) == (verb == b'+'))
}

/// Applies the command of `batch` to the membership. Returns false if the machine rejects it.
pub(super) fn apply(membership: &mut Membership, batch: &Bytes) -> bool {
    let command = Batch::parse(batch).unwrap().commands().unwrap().iter().next().unwrap();
    let (verb, id) = (command[0], std::str::from_utf8(&command[1..]).unwrap().parse::<u64>());
    let Ok(id) = id else { return false };
    let Membership { mut voters, mut learners } = membership.clone();
    voters.retain(|voter| *voter != id);
    learners.retain(|learner| *learner != id);
    match verb {
        b'+' => voters.push(id),
        b'~' => learners.push(id),
        b'-' => {}
        _ => return false,
    }
    if voters.is_empty() {
        return false;
    }
    *membership = Membership { voters, learners };
    true
}

/// `members 1 2, learners 3`.
pub(super) fn shown(membership: &Membership) -> String {
    let list = |ids: &[u64]| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    let learners = match membership.learners.len() {
        0 => String::new(),
        _ => format!(", learners {}", list(&membership.learners)),
    };
    format!("members {}{learners}", list(&membership.voters))
}
