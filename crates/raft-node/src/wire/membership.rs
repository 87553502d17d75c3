//! The encoding of a membership in the durable state and in snapshot messages; and the payload of an entry
//! that changes it.
//!
//! ```text
//!   voters │ learners │ voters outgoing │ learners next │ auto leave (1 byte)
//!   a list is its length, then its node ids: numbers as in `codec`
//! ```

use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb::{ConfChange, ConfState};

use super::codec::{ByteReader, MalformedBytes, put_number};

/// Encodes the payload of a change: raft-rs' message with the batch inside. raft-rs only detects that it is
/// a change. The machine reports the effect after it has applied the command.
pub(crate) fn change_payload(batch: &Bytes) -> Bytes {
    let change = ConfChange { context: batch.clone(), ..ConfChange::default() };
    change.write_to_bytes().expect("all fields of a change are optional").into()
}

/// Converts a batch with a change to a batch of an ordinary entry, in which every machine rejects the
/// command.
pub(crate) fn refused_change(batch: &Bytes) -> Bytes {
    let mut bytes = batch.to_vec();
    bytes[0] = super::batch::PLAIN;
    bytes.into()
}

pub(crate) fn change_batch(payload: &Bytes) -> Result<Bytes, MalformedBytes> {
    let mut change = ConfChange::default();
    change.merge_from_bytes(payload).map_err(|_| MalformedBytes("a change of the membership"))?;
    Ok(change.context)
}

pub(crate) fn put_conf(out: &mut Vec<u8>, conf: &ConfState) {
    let ConfState { voters, learners, voters_outgoing, learners_next, auto_leave, .. } = conf;
    for list in [voters, learners, voters_outgoing, learners_next] {
        put_number(out, list.len() as u64);
        list.iter().for_each(|id| put_number(out, *id));
    }
    out.push(u8::from(*auto_leave));
}

pub(crate) fn conf(cursor: &mut ByteReader) -> Result<ConfState, MalformedBytes> {
    let mut conf = ConfState {
        voters: ids(cursor)?,
        learners: ids(cursor)?,
        voters_outgoing: ids(cursor)?,
        learners_next: ids(cursor)?,
        ..ConfState::default()
    };
    conf.auto_leave = match cursor.byte("auto leave")? {
        0 => false,
        1 => true,
        _ => return Err(MalformedBytes("auto leave")),
    };
    Ok(conf)
}

fn ids(cursor: &mut ByteReader) -> Result<Vec<u64>, MalformedBytes> {
    let count = cursor.count(1, "member count")?;
    (0..count).map(|_| cursor.number("member")).collect()
}
