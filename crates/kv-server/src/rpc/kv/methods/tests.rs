use super::*;

#[test]
fn what_a_range_reads_is_known_before() {
    let page = RangeRequest { range_end: "z".into(), limit: 1000, ..RangeRequest::default() };
    let cases = [
        (RangeRequest { range_end: Vec::new().into(), ..page.clone() }, 1),
        (RangeRequest { count_only: true, ..page.clone() }, 1),
        (RangeRequest { limit: 0, ..page.clone() }, 5000),
        (RangeRequest { revision: 7, ..page.clone() }, i64::MAX),
        (page, 1001),
    ];
    for (request, read) in cases {
        assert_eq!(keys_of_range(&request, || 5000), read, "{request:?}");
    }
}
