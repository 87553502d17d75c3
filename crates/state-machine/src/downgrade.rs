//! The downgrade that an operator has enabled: bookkeeping that clients see, without an effect on the store.
//!
//! One item of the store, so it survives restarts and is equal on all members. Whether a downgrade may begin
//! is decided before consensus, as in etcd; apply records it.

use api::Error;
use api::command::SetDowngrade;
use mvcc::{Store, Writer};

use crate::failure::ApplyError;

/// The item's value is the target version as text. It exists while a downgrade is enabled.
const ITEM: &[u8] = b"downgrade";
/// Three numbers of 64 bits and two dots take 59 bytes.
const VERSION_BYTES_MAX: usize = 64;

/// The target version of the downgrade that is enabled, such as `3.6.0`.
///
/// Errors: the item is not text.
pub fn target(store: &Store) -> Result<Option<String>, ApplyError> {
    let broken = || ApplyError::Item { item: ITEM.to_vec(), reason: "not a version" };
    let text = |value: bytes::Bytes| String::from_utf8(value.to_vec()).map_err(|_| broken());
    store.item(ITEM).map(text).transpose()
}

/// Records a target version, or with an empty one the end of a downgrade. Refuses a version that is too long.
pub(crate) fn set(writer: &mut Writer, request: &SetDowngrade) -> Result<(), Error> {
    let version = request.target_version.as_bytes();
    if version.len() > VERSION_BYTES_MAX {
        return Err(Error::RequestTooLarge);
    }
    writer.set_item(ITEM, (!version.is_empty()).then_some(version));
    Ok(())
}
