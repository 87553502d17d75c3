//! A bbolt file whose meta page is valid and whose other pages are arbitrary.
//!
//! The first byte chooses the root page. The rest of the input is the pages after the meta pages, each of
//! them cut into elements of the fuzzer's choice: it becomes pages of 1 KiB, as small as they may be.
//!
//! Laws: no panic, no loop, memory in proportion to the input; keys that are returned ascend.

#![no_main]

use libfuzzer_sys::fuzz_target;

const PAGE_BYTES: usize = 1024;

fuzz_target!(|input: &[u8]| {
    let Some((root, pages)) = input.split_first() else { return };
    let count = 2 + pages.len().div_ceil(PAGE_BYTES);
    let mut file = vec![0; count * PAGE_BYTES];
    file[2 * PAGE_BYTES..][..pages.len()].copy_from_slice(pages);
    meta(&mut file, 2 + usize::from(*root) % 8, count);
    read(&file);
    // As it is, for the checks of the meta pages.
    read(input);
});

/// Writes the first meta page. The second one stays invalid.
fn meta(file: &mut [u8], root: usize, pages: usize) {
    let meta = &mut file[16..80];
    meta[0..4].copy_from_slice(&0xED0C_DAED_u32.to_le_bytes());
    meta[4..8].copy_from_slice(&2_u32.to_le_bytes());
    meta[8..12].copy_from_slice(&(PAGE_BYTES as u32).to_le_bytes());
    meta[16..24].copy_from_slice(&(root as u64).to_le_bytes());
    meta[32..40].copy_from_slice(&u64::MAX.to_le_bytes()); // No freelist.
    meta[40..48].copy_from_slice(&(pages as u64).to_le_bytes());
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let checksum = meta[..56].iter().fold(0xcbf2_9ce4_8422_2325, step);
    meta[56..64].copy_from_slice(&checksum.to_le_bytes());
}

fn read(file: &[u8]) {
    let Ok(database) = snapshot_file::bbolt::Database::open(file, file.len() as u64) else { return };
    let Ok(buckets) = database.buckets() else { return };
    assert!(buckets.is_sorted_by(|left, right| left.name() < right.name()), "buckets ascend");
    for bucket in &buckets {
        let Ok(mut cursor) = database.cursor(bucket) else { continue };
        let (mut last, mut bytes) = (Vec::new(), 0);
        while let Ok(Some((key, value))) = cursor.next_pair() {
            assert!(last.is_empty() || last.as_slice() < key, "keys ascend");
            (bytes, last) = (bytes + key.len(), key.to_vec());
            let _used = value.len();
        }
        assert!(bytes <= file.len() * file.len(), "no page is read twice");
    }
}
