//! gRPC's framing: a prefix of five bytes in front of each message.

/// One byte that says whether the message is compressed, and four bytes of length.
pub const PREFIX_BYTES: usize = 5;

/// The prefix of a message that is not compressed. `None` if its length does not fit in four bytes.
pub fn prefix(message_bytes: usize) -> Option<[u8; PREFIX_BYTES]> {
    let [a, b, c, d] = u32::try_from(message_bytes).ok()?.to_be_bytes();
    Some([0, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_the_length_of_its_message() {
        assert_eq!(prefix(0), Some([0; 5]));
        assert_eq!(prefix(0x0102_0304), Some([0, 1, 2, 3, 4]));
        assert_eq!(prefix(1 << 32), None);
    }
}
