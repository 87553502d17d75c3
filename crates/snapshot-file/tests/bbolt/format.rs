//! The exact bytes of a file that bbolt can read.

use snapshot_file::bbolt::{FileWriter, PAGE_BYTES, Planner};

/// Formats a page in hexadecimal without trailing zeros.
fn hex(page: &[u8]) -> String {
    let end = page.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    page[..end].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_pages_of_a_small_file_are_frozen() {
    let mut planner = Planner::default();
    planner.begin_bucket(b"b");
    planner.add(b"k", 2);
    let mut writer = FileWriter::new(planner.finish());
    writer.begin_bucket(b"b");
    writer.add(b"k", b"vv");
    writer.finish();
    let file = writer.take();
    let pages: Vec<String> = file.chunks(PAGE_BYTES).map(hex).collect();
    assert_eq!(
        pages,
        [
            // number 0, meta │ magic, version 2, 4096, flags │ root 4 │ sequence │ freelist 2 │ 5 pages
            // │ txid 0 │ FNV-1a
            concat!(
                "00000000000000000400000000000000",
                "edda0ced020000000010000000000000",
                "04000000000000000000000000000000",
                "02000000000000000500000000000000",
                "0000000000000000",
                "88b4e6c8a24208fc"
            ),
            concat!(
                "01000000000000000400000000000000",
                "edda0ced020000000010000000000000",
                "04000000000000000000000000000000",
                "02000000000000000500000000000000",
                "0100000000000000",
                "a9fed5d3ab09031b"
            ),
            "020000000000000010",
            // leaf with one element: flags 0, pos 16, key length 1, value length 2
            concat!("03000000000000000200010000000000", "00000000100000000100000002000000", "6b7676"),
            // root bucket: element with the bucket flag and root page 3
            concat!("04000000000000000200010000000000", "01000000100000000100000010000000", "6203"),
        ]
    );
}
