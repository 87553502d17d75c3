//! The claims of a token that etcd writes and reads.

use serde_json::{Map, Value};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    pub user: String,
    pub revision: u64,
    /// Unix seconds; none if it does not expire.
    pub expires_at: Option<u64>,
    not_before: Option<u64>,
}

impl Claims {
    /// Parses the claims. Returns None if a claim is missing or has a different type.
    pub fn of(json: &[u8]) -> Option<Claims> {
        let claims: Map<String, Value> = serde_json::from_slice(json).ok()?;
        Some(Claims {
            user: claims.get("username")?.as_str()?.to_owned(),
            revision: whole(claims.get("revision")?.as_f64()?),
            expires_at: date(claims.get("exp"))?,
            not_before: date(claims.get("nbf"))?,
        })
    }

    pub fn is_valid_at(&self, now: u64) -> bool {
        self.expires_at.is_none_or(|end| now < end) && self.not_before.is_none_or(|start| now >= start)
    }
}

/// Parses a date. The inner None: the claim is missing or 0, which etcd treats as missing. The
/// outer one: it is not a number.
fn date(claim: Option<&Value>) -> Option<Option<u64>> {
    match claim {
        None => Some(None),
        Some(value) => value.as_f64().map(|seconds| Some(whole(seconds)).filter(|_| seconds != 0.0)),
    }
}

/// Rounds down. Negative numbers become 0.
fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_read_as_etcd_reads_them() {
        let claims = |user: &str, revision, expires_at, not_before| {
            Some(Claims { user: user.to_owned(), revision, expires_at, not_before })
        };
        for (json, wanted) in [
            (r#"{"username":"u","revision":7,"exp":100}"#, claims("u", 7, Some(100), None)),
            (r#"{"username":"u","revision":7.9}"#, claims("u", 7, None, None)),
            (r#"{"username":"u","revision":1e3,"exp":0,"nbf":5.5}"#, claims("u", 1000, None, Some(5))),
            (r#"{"username":"","revision":-1}"#, claims("", 0, None, None)),
            (r#"{"username":"u"}"#, None),
            (r#"{"revision":7}"#, None),
            (r#"{"username":7,"revision":7}"#, None),
            (r#"{"username":"u","revision":"7"}"#, None),
            (r#"{"username":"u","revision":7,"exp":"100"}"#, None),
            (r#"["username"]"#, None),
            ("", None),
        ] {
            assert_eq!(Claims::of(json.as_bytes()), wanted, "{json}");
        }
    }

    #[test]
    fn a_token_counts_from_its_start_until_before_its_end() {
        let claims = Claims::of(br#"{"username":"u","revision":7,"exp":100,"nbf":50}"#).unwrap();
        for (now, wanted) in [(49, false), (50, true), (99, true), (100, false)] {
            assert_eq!(claims.is_valid_at(now), wanted, "{now}");
        }
    }
}
