//! The members of the cluster, with their names and URLs.
//!
//! * The initial members are written before the first entry is applied.
//! * A running member publishes its name and client URLs. Before that both are empty ("unstarted"
//!   to clients).
//! * Each member is an item of the store, so the membership survives restarts and is equal on all
//!   members.

use std::collections::BTreeMap;

use api::Error;
use api::command::PublishMember;
use api::etcdserverpb::Member;
use bytes::Bytes;
use mvcc::{ITEM_BYTES_MAX, Store, Writer};
use prost::Message;

use crate::failure::ApplyError;

/// Item prefix of members, followed by the id as eight bytes, big endian. The value is a protobuf
/// `Member`.
const PREFIX: &[u8] = b"member/";

/// Initial members of a new cluster. Must be equal on all members.
#[derive(Clone, Debug, Default)]
pub struct Genesis {
    /// Ids and peer URLs; a name and client URLs are published later.
    pub members: Vec<Member>,
}

/// Returns all members, by id.
pub fn list(store: &Store) -> Result<Vec<Member>, ApplyError> {
    store.items(PREFIX).into_iter().map(|(item, value)| decode(&item, &value)).collect()
}

pub fn list_in(items: &[(Bytes, Bytes)]) -> Result<Vec<Member>, ApplyError> {
    let members = items.iter().filter(|(item, _)| item.starts_with(PREFIX));
    members.map(|(item, value)| decode(item, value)).collect()
}

/// Returns the items of the initial members, ascending, for a store created outside apply. They
/// sort after the items of leases.
pub fn items(genesis: &Genesis) -> BTreeMap<Vec<u8>, Vec<u8>> {
    genesis.members.iter().map(|member| (item(member.id), member.encode_to_vec())).collect()
}

/// Writes the initial members into a store that has none.
pub(crate) fn initialize(writer: &mut Writer, genesis: &Genesis) {
    if !writer.store().items(PREFIX).is_empty() {
        return;
    }
    for member in &genesis.members {
        store(writer, member);
    }
}

/// Stores the name and URLs that a member publishes. Ignores unknown members. Rejects data that is
/// too large for an item.
pub(crate) fn publish(writer: &mut Writer, request: PublishMember) -> Result<Result<(), Error>, ApplyError> {
    let item = item(request.member_id);
    let Some(value) = writer.store().item(&item) else {
        return Ok(Ok(()));
    };
    let known = decode(&item, &value)?;
    assert_eq!(known.id, request.member_id, "an item holds the member that it is named after");
    let member = Member { name: request.name, client_ur_ls: request.client_urls, ..known };
    if item.len() + member.encoded_len() > ITEM_BYTES_MAX {
        return Ok(Err(Error::RequestTooLarge));
    }
    store(writer, &member);
    Ok(Ok(()))
}

pub(crate) fn store(writer: &mut Writer, member: &Member) {
    assert_ne!(member.id, 0, "0 means no member");
    writer.set_item(&item(member.id), Some(&member.encode_to_vec()));
}

pub(crate) fn item(id: u64) -> Vec<u8> {
    [PREFIX, &id.to_be_bytes()].concat()
}

fn decode(item: &[u8], value: &[u8]) -> Result<Member, ApplyError> {
    let broken = |reason| ApplyError::Item { item: item.to_vec(), reason };
    let member = Member::decode(value).map_err(|_| broken("not a member"))?;
    let named = self::item(member.id) == item;
    if named { Ok(member) } else { Err(broken("the member differs from the name's")) }
}
