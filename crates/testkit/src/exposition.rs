//! `/metrics` as Prometheus reads it: series, and the quantiles of histograms.

use std::collections::BTreeMap;

/// One sample: a series with its labels, and the value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// Buckets of one histogram series, by ascending bound. Each is the text of its bound, the bound and the
/// cumulative count.
pub type Buckets = Vec<(String, f64, f64)>;

/// Parses the samples of Prometheus' text format.
///
/// # Panics
///
/// On a line that Prometheus rejects.
pub fn samples(text: &str) -> Vec<Sample> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(sample).collect()
}

fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
    let value = number(value).unwrap_or_else(|| panic!("no number: {line}"));
    let Some((name, labels)) = series.split_once('{') else {
        return Sample { name: series.to_owned(), labels: BTreeMap::new(), value };
    };
    let mut left = labels.strip_suffix('}').unwrap_or_else(|| panic!("labels do not end: {line}"));
    let mut labels = BTreeMap::new();
    while let Some((label, rest)) = left.split_once("=\"") {
        let is_end = |(at, _): &(usize, &str)| {
            let unescaped = rest[..*at].trim_end_matches('\\');
            (at - unescaped.len()).is_multiple_of(2)
        };
        let (end, _) = rest.match_indices('"').find(is_end).unwrap_or_else(|| panic!("no end: {line}"));
        labels.insert(label.to_owned(), rest[..end].to_owned());
        left = rest[end + 1..].trim_start_matches(',');
    }
    Sample { name: name.to_owned(), labels, value }
}

fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        text => text.parse().ok().filter(|value: &f64| !value.is_nan()),
    }
}

/// Buckets of all histograms by name and labels, as written.
///
/// # Panics
///
/// On a bound that is no number.
pub fn histograms(text: &str) -> BTreeMap<(String, BTreeMap<String, String>), Buckets> {
    let mut found: BTreeMap<_, Buckets> = BTreeMap::new();
    for Sample { name, mut labels, value } in samples(text) {
        let Some(name) = name.strip_suffix("_bucket") else { continue };
        let Some(le) = labels.remove("le") else { continue };
        let bound = number(&le).unwrap_or_else(|| panic!("no bound: {le}"));
        found.entry((name.to_owned(), labels)).or_default().push((le, bound, value));
    }
    found
}

/// The quantile as `histogram_quantile` of Prometheus computes it: NaN without observations, and without a
/// bucket whose bound is `+Inf`.
pub fn quantile(quantile: f64, buckets: &Buckets) -> f64 {
    let Some(&(_, highest, count)) = buckets.last() else { return f64::NAN };
    if highest != f64::INFINITY || buckets.len() < 2 || count == 0.0 {
        return f64::NAN;
    }
    let rank = quantile * count;
    let at = buckets.iter().position(|(_, _, count)| *count >= rank).unwrap_or(buckets.len() - 1);
    if at == buckets.len() - 1 {
        return buckets[at - 1].1;
    }
    let (start, before) = if at == 0 { (0.0, 0.0) } else { (buckets[at - 1].1, buckets[at - 1].2) };
    let (_, end, count) = buckets[at];
    start + (end - start) * (rank - before) / (count - before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_prometheus() {
        let text = "# TYPE a histogram\n\
                    a_bucket{m=\"x,\\\"}\",le=\"1\"} 2\n\
                    a_bucket{m=\"x,\\\"}\",le=\"2\"} 4\n\
                    a_bucket{m=\"x,\\\"}\",le=\"+Inf\"} 5\n\
                    a_sum{m=\"x\"} 7.5\n";
        let found = histograms(text);
        let ((name, labels), buckets) = found.first_key_value().unwrap();
        assert_eq!((name.as_str(), labels["m"].as_str(), found.len()), ("a", "x,\\\"}", 1));
        for (wanted, at) in [(0.5, 0.2), (1.25, 0.5), (2.0, 0.99)] {
            assert!((quantile(at, buckets) - wanted).abs() < 1e-9, "{at}");
        }
        assert!(quantile(0.5, &buckets[..2].to_vec()).is_nan(), "without +Inf");
    }
}
