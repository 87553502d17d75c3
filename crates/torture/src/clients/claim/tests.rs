//! Violates each law once, to prove that the checker detects it.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

use super::*;

fn bytes(text: &str) -> Bytes {
    Bytes::from(text.to_owned())
}

/// Parses `put k=v @2 ..5`: requested at 1, acknowledged at 5 with revision 2; never acknowledged
/// without a revision.
fn claim(line: &str) -> Claim {
    let words: Vec<&str> = line.split_whitespace().collect();
    let pair = |text: &str| {
        let (key, value) = text.split_once('=').unwrap();
        (bytes(key), bytes(value))
    };
    let effect = match words[0] {
        "put" => {
            let (key, value) = pair(words[1]);
            Effect::Put { key, value }
        }
        "delete" => Effect::Delete { key: bytes(words[1]) },
        "txn" => Effect::Txn { puts: words[1].split(',').map(pair).collect() },
        other => panic!("{other}"),
    };
    let number = |prefix: &str| {
        words.iter().find_map(|word| word.strip_prefix(prefix)).map(|text| text.parse::<u64>().unwrap())
    };
    let answer = number("@")
        .map(|revision| Acknowledgement { at: number("..").unwrap_or(5), revision: revision as i64 });
    Claim { effect, asked_at: number("from").unwrap_or(1), answer }
}

/// Parses `revision 3: a=1@2 b=2@3`.
fn state(text: &str) -> MemberKeys {
    let (revision, keys) = text.split_once(':').unwrap();
    let found = |word: &str| {
        let (key, rest) = word.split_once('=').unwrap();
        let (value, modified) = rest.split_once('@').unwrap();
        let modified = modified.parse().unwrap();
        (bytes(key), KeyState { value: bytes(value), created: modified, modified, version: 1 })
    };
    MemberKeys { revision: revision.parse().unwrap(), keys: keys.split_whitespace().map(found).collect() }
}

fn violations(claims: &[&str], found: &str) -> String {
    let claims: Vec<Claim> = claims.iter().map(|line| claim(line)).collect();
    check(&claims, 10, &MemberKeys::default(), &state(found)).join("; ")
}

#[test]
fn whatever_the_claims_allow_is_accepted() {
    let cases: [(&[&str], &str); 8] = [
        (&["put a=1 @2"], "2: a=1@2"),
        (&["put a=1"], "1:"),
        (&["put a=1"], "2: a=1@2"),
        (&["put a=1 @2", "put a=2"], "3: a=2@3"),
        (&["put a=1 @2", "delete a"], "3:"),
        (&["put a=1 @2", "delete a @3"], "3:"),
        (&["put a=1 @2 ..50"], "1:"),
        (&["txn a=1,b=2 @2", "put a=3 @3"], "3: a=3@3 b=2@2"),
    ];
    for (claims, found) in cases {
        assert_eq!(violations(claims, found), "", "{claims:?}");
    }
}

#[test]
fn each_broken_law_is_named() {
    let cases: [(&[&str], &str, &str); 11] = [
        (&["put a=1 @2"], "2:", "the write acknowledged at revision 2 is lost"),
        (&["put a=1 @2", "put a=2 @3"], "3: a=1@2", "acknowledged at revision 3, but stands at 2"),
        (&["put a=1 @2", "delete a @3"], "3: a=1@2", "acknowledged at revision 3, but stands at 2"),
        (&["put a=1 @2", "put b=1 @3"], "2: a=1@2", "revision 2 after 3 was acknowledged"),
        (&["put a=1 @2"], "3: a=1@3", "is found at 3"),
        (&["put a=1 @2"], "2: a=9@2", "that no client wrote"),
        (&["put a=1 @2"], "2: a=1@2 z=1@2", "no client wrote it"),
        (&["put a=1"], "7: a=1@2", "revision 7 after 1 writes"),
        (&["put a=1", "put b=2"], "3: a=1@2 b=2@2", "holds two requests"),
        (&["txn a=1,b=2"], "2: a=1@2", "half a txn"),
        (&["put a=1 @3 ..50"], "3: a=1@2", "is found at 2"),
    ];
    for (claims, found, wanted) in cases {
        let said = violations(claims, found);
        assert!(said.contains(wanted), "{claims:?}: {said:?}");
    }
}

#[test]
fn what_was_once_read_must_stay() {
    let baseline = state("5: a=1@2 b=2@5");
    let check = |found| check(&[], 10, &baseline, &state(found)).join("; ");
    assert_eq!(check("5: a=1@2 b=2@5"), "");
    assert!(check("5: a=1@2").contains("revision 5 is lost"));
    assert!(check("4: a=1@2 b=2@5").contains("revision 4 after 5"));
}

#[test]
fn revisions_follow_time() {
    let check =
        |lines: &[&str]| check_order(&lines.iter().map(|line| claim(line)).collect::<Vec<_>>()).join("; ");
    assert_eq!(check(&["put a=1 @2 from1 ..5", "put b=1 @3 from6 ..8", "delete c @3 from9 ..10"]), "");
    assert_eq!(check(&["put a=1 @3 from1 ..5", "put b=1 @2 from4 ..8"]), "", "they overlap");
    assert!(check(&["put a=1 @3 from1 ..5", "put b=1 @2 from6 ..8"]).contains("after 3 was acknowledged"));
    assert!(check(&["put a=1 @3 from1 ..5", "put b=1 @3 from4 ..8"]).contains("given twice"));
}
