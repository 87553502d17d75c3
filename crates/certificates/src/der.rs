//! Values in DER, read as Go reads them and written.

/// One value: its tag with the bits of its class, what is in it, and what follows it.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    pub tag: u8,
    pub whole: &'a [u8],
    pub content: &'a [u8],
    others: &'a [u8],
}

impl<'a> Value<'a> {
    /// The first of some values. None unless its length is the shortest and its tag one byte.
    pub fn first(values: &'a [u8]) -> Option<Value<'a>> {
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
        (tag & 0x1f != 0x1f).then_some(Value { tag: *tag, whole, content, others })
    }

    /// The values in one of this tag.
    pub fn inside(&self, tag: u8) -> Option<Vec<Value<'a>>> {
        let (mut found, mut left) = (Vec::new(), self.content);
        while !left.is_empty() {
            let value = Value::first(left)?;
            left = value.others;
            found.push(value);
        }
        (self.tag == tag).then_some(found)
    }
}

/// A value of DER with its tag and length.
pub fn wrapped(tag: u8, inside: &[u8]) -> Vec<u8> {
    let bytes: Vec<u8> = inside.len().to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
    let length = match (inside.len(), u8::try_from(bytes.len())) {
        (short @ 0..0x80, _) => vec![short as u8],
        (_, size) => [vec![0x80 | size.unwrap_or_default()], bytes].concat(),
    };
    [&[tag], &length[..], inside].concat()
}

/// Whether these values are in DER, with at most `depth` levels below them.
pub fn is_der(mut values: &[u8], depth: usize) -> bool {
    while !values.is_empty() {
        let Some(others) = after_der(values, depth) else { return false };
        values = others;
    }
    true
}

/// What follows the first of some values. None unless it can be read, its booleans are 0 or 255, and the
/// seconds of its times whole.
pub fn after_der(values: &[u8], depth: usize) -> Option<&[u8]> {
    let Value { tag, content, others, .. } = Value::first(values)?;
    let is_good = match tag {
        1 => matches!(content, [0 | 0xff]),
        23 | 24 => !content.contains(&b'.'),
        tag if tag & 0x20 != 0 => depth > 0 && is_der(content, depth - 1),
        _ => true,
    };
    is_good.then_some(others)
}
