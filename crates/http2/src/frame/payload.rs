//! Parts of payloads: padding (section 6.1), priority (section 6.3), 32-bit words.

/// The padding is as long as the payload or longer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Padding;

/// What stands before and after the padding of a payload with the PADDED flag.
pub(crate) fn strip_padding(payload: &[u8]) -> Result<&[u8], Padding> {
    let (&padding, rest) = payload.split_first().ok_or(Padding)?;
    let length = rest.len().checked_sub(usize::from(padding)).ok_or(Padding)?;
    Ok(&rest[..length])
}

/// The priority fields are ignored (section 5.3.2), except that RFC 7540 forbade a stream to depend on
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Priority {
    pub(crate) dependency: u32,
}

/// Takes the five bytes of priority off the start of `payload`.
pub(crate) fn strip_priority(payload: &[u8]) -> Option<(Priority, &[u8])> {
    let (fields, rest) = payload.split_first_chunk::<5>()?;
    Some((Priority { dependency: word(fields)? & 0x7fff_ffff }, rest))
}

/// The first four bytes as a number.
pub(crate) fn word(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}
