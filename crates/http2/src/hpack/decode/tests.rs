use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<String, Undecodable> {
    let mut fields = Vec::new();
    decoder.decode(block, |name, value| {
        fields.push(format!("{}: {}", name.escape_ascii(), value.escape_ascii()));
    })?;
    Ok(fields.join("\n"))
}

/// Cases: blocks of one connection with the expected fields and the table size after each.
fn check(bytes_max: usize, cases: &[(&str, &str, usize)]) {
    let mut decoder = Decoder::new();
    decoder.table.resize(bytes_max);
    for (block, expected, size) in cases {
        assert_eq!(decode(&mut decoder, &bytes(block)).as_deref(), Ok(*expected));
        assert_eq!(decoder.table.bytes(), *size, "{expected}");
    }
}

#[test]
fn literals_of_appendix_c_2() {
    for (block, expected, size) in [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", "custom-key: custom-header", 55),
        ("040c2f73616d706c652f70617468", ":path: /sample/path", 0),
        ("100870617373776f726406736563726574", "password: secret", 0),
        ("82", ":method: GET", 0),
    ] {
        check(4096, &[(block, expected, size)]);
    }
}

const REQUESTS: [&str; 3] = [
    ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com",
    ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\ncache-control: no-cache",
    ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\ncustom-key: custom-value",
];

#[test]
fn requests_of_appendix_c_3_and_c_4() {
    let [first, second, third] = REQUESTS;
    check(
        4096,
        &[
            ("828684410f7777772e6578616d706c652e636f6d", first, 57),
            ("828684be58086e6f2d6361636865", second, 110),
            ("828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565", third, 164),
        ],
    );
    check(
        4096,
        &[
            ("828684418cf1e3c2e5f23a6ba0ab90f4ff", first, 57),
            ("828684be5886a8eb10649cbf", second, 110),
            ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", third, 164),
        ],
    );
}

const RESPONSES: [&str; 3] = [
    ":status: 302\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:21 GMT\n\
     location: https://www.example.com",
    ":status: 307\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:21 GMT\n\
     location: https://www.example.com",
    ":status: 200\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:22 GMT\n\
     location: https://www.example.com\n\
     content-encoding: gzip\nset-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
];

/// With a table of 256 bytes, so that entries are evicted.
#[test]
fn responses_of_appendix_c_5_and_c_6() {
    let [first, second, third] = RESPONSES;
    check(
        256,
        &[
            (
                "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a3231\
                 20474d546e1768747470733a2f2f7777772e6578616d706c652e636f6d",
                first,
                222,
            ),
            ("4803333037c1c0bf", second, 222),
            (
                "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a6970\
                 7738666f6f3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d61\
                 67653d333630303b2076657273696f6e3d31",
                third,
                215,
            ),
        ],
    );
    check(
        256,
        &[
            (
                "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad\
                 171863c78f0b97c8e9ae82ae43d3",
                first,
                222,
            ),
            ("4883640effc1c0bf", second, 222),
            (
                "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2\
                 e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
                third,
                215,
            ),
        ],
    );
}

#[test]
fn undecodable_blocks_are_refused() {
    for (block, why) in [
        ("80", "index 0"),
        ("be", "an index beyond both tables"),
        ("7f00", "a name index beyond both tables"),
        ("40", "cut before the name"),
        ("4003", "cut inside the name"),
        ("400161", "cut before the value"),
        ("0001610262", "cut inside the value"),
        ("ffffffffffff0f", "an index that is too large"),
        ("823f", "a cut size update"),
        ("8220", "a size update after a field"),
        ("3fe21f", "a size above the announced one"),
        ("0081ff00", "a name with padding of eight ones"),
    ] {
        assert_eq!(decode(&mut Decoder::new(), &bytes(block)), Err(Undecodable), "{why}");
    }
}

#[test]
fn a_smaller_announced_table_must_be_confirmed_by_the_next_block() {
    let mut decoder = Decoder::new();
    decoder.acknowledged(0);
    assert_eq!(decoder.version(), None);
    assert_eq!(decode(&mut decoder, &[0x82]), Err(Undecodable));

    let mut decoder = Decoder::new();
    decoder.acknowledged(0);
    assert_eq!(decode(&mut decoder, &[0x20, 0x82]).as_deref(), Ok(":method: GET"));
    assert!(decoder.version().is_some());
}

#[test]
fn the_version_changes_with_the_table_and_only_then() {
    let mut decoder = Decoder::new();
    let mut before = decoder.version();
    for (block, changes) in
        [("82", false), ("400161016240", true), ("be", false), ("0001610162", false), ("20", true)]
    {
        let block = bytes(block);
        // The second block is truncated inside a field; its earlier insertions count.
        drop(decode(&mut decoder, &block));
        assert_eq!(decoder.version() != before, changes, "{block:x?}");
        before = decoder.version();
    }
}

#[test]
fn constant_blocks_decode_to_what_they_were_made_of() {
    let fields =
        [(":status", "200"), (":status", "418"), ("content-type", "application/grpc"), ("x-\u{7f}", "")];
    let block = crate::hpack::HeaderBlock::new(fields);
    let expected: Vec<String> =
        fields.iter().map(|(name, value)| format!("{}: {}", name.as_bytes().escape_ascii(), value)).collect();
    let mut decoder = Decoder::new();
    let before = decoder.version();
    assert_eq!(decode(&mut decoder, block.bytes()), Ok(expected.join("\n")));
    assert_eq!(decoder.version(), before);
}
