//! DER values: encoding, and decoding with Go's rules.

/// A value: tag including the class bits, encoding, contents, and the remaining input.
#[derive(Clone, Copy, Debug)]
pub struct DerValue<'a> {
    pub tag: u8,
    pub whole: &'a [u8],
    pub content: &'a [u8],
    others: &'a [u8],
}

impl<'a> DerValue<'a> {
    /// Decodes the first value. Returns None unless its length encoding is minimal and its tag is a
    /// single byte.
    pub fn first(values: &'a [u8]) -> Option<DerValue<'a>> {
        let [tag, length, rest @ ..] = values else { return None };
        let (size, rest) = if *length < 0x80 {
            (usize::from(*length), rest)
        } else {
            let (long, rest) = rest.split_at_checked(usize::from(*length & 0x7f))?;
            let size = long.iter().fold(0, |size: usize, byte| (size << 8) | usize::from(*byte));
            let is_shortest = (1..=4).contains(&long.len()) && long[0] != 0 && size >= 0x80;
            is_shortest.then_some((size, rest))?
        };
        let (content, others) = rest.split_at_checked(size)?;
        let (whole, _) = values.split_at(values.len() - others.len());
        (tag & 0x1f != 0x1f).then_some(DerValue { tag: *tag, whole, content, others })
    }

    /// Decodes the values inside a constructed value. Returns None if the tag differs.
    pub fn inside(&self, tag: u8) -> Option<Vec<DerValue<'a>>> {
        let (mut found, mut left) = (Vec::new(), self.content);
        while !left.is_empty() {
            let value = DerValue::first(left)?;
            left = value.others;
            found.push(value);
        }
        (self.tag == tag).then_some(found)
    }
}

pub fn wrapped(tag: u8, inside: &[u8]) -> Vec<u8> {
    let bytes: Vec<u8> = inside.len().to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
    let length = match (inside.len(), u8::try_from(bytes.len())) {
        (short @ 0..0x80, _) => vec![short as u8],
        (_, size) => [vec![0x80 | size.unwrap_or_default()], bytes].concat(),
    };
    [&[tag], &length[..], inside].concat()
}

/// Reports whether `values` is valid DER, with at most `depth` nested levels.
pub fn is_der(mut values: &[u8], depth: usize) -> bool {
    while !values.is_empty() {
        let Some(others) = after_der(values, depth) else { return false };
        values = others;
    }
    true
}

/// Skips the first value and returns the remaining input. Returns None if it is malformed: booleans
/// must be 0 or 255, and times must not have fractional seconds.
pub fn after_der(values: &[u8], depth: usize) -> Option<&[u8]> {
    let DerValue { tag, content, others, .. } = DerValue::first(values)?;
    let is_good = match tag {
        1 => matches!(content, [0 | 0xff]),
        23 | 24 => !content.contains(&b'.'),
        tag if tag & 0x20 != 0 => depth > 0 && is_der(content, depth - 1),
        _ => true,
    };
    is_good.then_some(others)
}
