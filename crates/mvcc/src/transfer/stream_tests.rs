//! The stream format: parts survive the division into chunks, and invalid chunks are rejected.

use super::*;

/// Returns parts of all kinds, with sizes below and above that of a chunk.
fn parts() -> Vec<StreamPart> {
    let part = |kind, key: &'static [u8], value: Vec<u8>, frame: Vec<u8>| StreamPart {
        kind,
        key: Bytes::from_static(key),
        value: Bytes::from(value),
        frame: Bytes::from(frame),
    };
    vec![
        part(PartKind::Entry, b"m", vec![1; 80], vec![]),
        part(PartKind::Entry, b"i", vec![], vec![]),
        part(PartKind::Block, b"b1", vec![2; 40], vec![3; 700]),
        part(PartKind::Block, b"b2", vec![4; 40], vec![5; 3]),
        part(PartKind::End, b"", vec![], vec![]),
    ]
}

fn chunks(body_bytes_max: usize) -> Vec<Bytes> {
    let mut writer = ChunkWriter::default();
    for part in parts() {
        writer.push(part.kind, &part.key, &part.value, &part.frame);
    }
    std::iter::from_fn(|| writer.cut(body_bytes_max)).collect()
}

/// Receives these chunks and returns the parts, or the first error.
fn received<'c>(chunks: impl IntoIterator<Item = &'c [u8]>) -> Result<Vec<StreamPart>> {
    let (mut reader, mut parts) = (ChunkReader::default(), Vec::new());
    for chunk in chunks {
        reader.add(chunk)?;
        while let Some(part) = reader.part()? {
            parts.push(part);
        }
    }
    Ok(parts)
}

#[test]
fn parts_come_together_however_they_were_cut() {
    for body_bytes_max in [1, 7, 13, 100, 1000, 1 << 20] {
        let chunks = chunks(body_bytes_max);
        assert!(chunks.iter().all(|chunk| chunk.len() <= body_bytes_max + CHUNK_HEADER_BYTES));
        let received = received(chunks.iter().map(Bytes::as_ref)).unwrap();
        assert_eq!(received, parts(), "cut at {body_bytes_max}");
    }
}

#[test]
fn every_flipped_bit_of_every_chunk_is_detected() {
    let intact = chunks(200);
    for (number, chunk) in intact.iter().enumerate() {
        for bit in 0..chunk.len() * 8 {
            let mut damaged: Vec<Vec<u8>> = intact.iter().map(|chunk| chunk.to_vec()).collect();
            damaged[number][bit / 8] ^= 1 << (bit % 8);
            let found = received(damaged.iter().map(Vec::as_slice));
            assert!(matches!(found, Err(Error::Corrupt { .. })), "chunk {number}, bit {bit}");
        }
    }
}

#[test]
fn chunks_that_are_missing_repeated_swapped_or_cut_are_noticed() {
    let intact = chunks(100);
    for number in 0..intact.len() - 1 {
        let mut missing = intact.clone();
        missing.remove(number);
        let mut repeated = intact.clone();
        repeated.insert(number, intact[number].clone());
        let mut swapped = intact.clone();
        swapped.swap(number, number + 1);
        let mut cut = intact.clone();
        cut[number].truncate(intact[number].len() - 1);
        for (what, damaged) in
            [("missing", missing), ("repeated", repeated), ("swapped", swapped), ("cut", cut)]
        {
            let found = received(damaged.iter().map(Bytes::as_ref));
            assert!(found.is_err(), "chunk {number} {what}");
        }
    }
}

#[test]
fn a_chunk_of_another_stream_is_noticed_even_if_it_is_intact_and_in_its_turn() {
    let (one, mut other) = (chunks(100), ChunkWriter::default());
    other.push(PartKind::Entry, b"m", &[9; 80], &[]);
    other.push(PartKind::Block, b"b", &[9; 40], &[9; 300]);
    let first = other.cut(100).unwrap();
    let error = received([&first[..], &one[1][..]]).unwrap_err().to_string();
    assert!(error.contains("checksum"), "{error}");
}

#[test]
fn an_error_names_the_offset_in_the_stream() {
    let chunks = chunks(100);
    let mut reader = ChunkReader::default();
    reader.add(&chunks[0]).unwrap();
    let error = reader.add(&chunks[0]).unwrap_err();
    assert!(matches!(error, Error::Corrupt { offset: 116, .. }), "{error}");
}

#[test]
fn a_part_of_impossible_size_is_refused_before_it_is_gathered() {
    let mut writer = ChunkWriter::default();
    writer.push(PartKind::Block, b"key", b"value", b"frame");
    // The same part, with a frame length of 4 GiB.
    writer.pending[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
    let chunk = writer.cut(100).unwrap();
    assert!(received([&chunk[..]]).unwrap_err().to_string().contains("limit"));
}

#[test]
fn the_form_is_frozen() {
    let mut writer = ChunkWriter::default();
    writer.push(PartKind::Entry, b"m", b"vv", b"");
    writer.push(PartKind::Block, b"b", b"w", b"fff");
    writer.push(PartKind::End, b"", b"", b"");
    let hex = |chunk: Bytes| chunk.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let chunks: Vec<String> = std::iter::from_fn(|| writer.cut(30)).map(hex).collect();
    assert_eq!(
        chunks,
        [
            // magic, number, bytes, crc; an entry of a one-byte key; the head of a block
            "6d767831000000001e0000007cab52b7010100000002000000000000006d76760201000000010000000300000062",
            // the rest of the block, its frame, the end
            "6d767831010000001100000058d3afbf7766666603000000000000000000000000",
        ]
    );
}
