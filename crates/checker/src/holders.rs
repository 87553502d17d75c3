//! Checks locks and elections: one holder at a time, and the holder owns the oldest key.
//!
//! A client holds from the arrival of the response until it sends the release, or until the lease
//! of its key may expire. Its key was created after those of all previous holders, so the revision
//! is a fencing token.
//!
//! Must not depend on connections or clocks.

use crate::leases::BrokenRule;
use crate::operation::Revision;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// Maximum clock drift between two machines: one part in a thousand.
const DRIFT_DIVISOR: u32 = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Index of the endpoint that granted it.
    pub member: usize,
    /// Time at which the key's lease was requested, and its TTL.
    pub leased: Duration,
    pub ttl: Duration,
    pub at: Duration,
    pub key: String,
}

#[derive(Clone, Debug)]
pub enum HolderInput {
    Held(Hold),
    /// Oldest key according to a linearizable read that was sent while the client of `key` was the
    /// holder.
    Oldest {
        key: String,
        at: Duration,
        oldest: Option<(String, Revision)>,
    },
    /// The client is about to release this key.
    Releasing(String),
    /// A linearizable read found the key after its release was acknowledged.
    Exists {
        key: String,
        at: Duration,
    },
}

/// State of every lock and election, by name.
#[derive(Debug, Default)]
pub struct Holders {
    held: HashMap<String, Hold>,
    /// Key and create revision of the last holder.
    created: HashMap<String, (String, Revision)>,
    pub count: u64,
}

impl Holders {
    pub fn take(&mut self, name: String, input: HolderInput) -> Result<(), BrokenRule> {
        match input {
            // The response arrived after the lease may have expired, so another client may hold.
            HolderInput::Held(hold) if hold.at >= hold.until() => {}
            HolderInput::Held(hold) => {
                let overlaps = |other: &&Hold| hold.at < other.until() && other.at < hold.until();
                if let Some(other) = self.held.get(&name).filter(overlaps) {
                    let evidence = vec![other.to_string(), hold.to_string()];
                    return Err(("two clients held one lock or won one election at a time", evidence));
                }
                self.count += 1;
                self.held.insert(name, hold);
            }
            HolderInput::Exists { key, at } => {
                let evidence = format!("{:.6} s: {key} exists", at.as_secs_f64());
                return Err((
                    "the key of a holder exists after its release was acknowledged",
                    vec![evidence],
                ));
            }
            HolderInput::Oldest { key, at, oldest } => return self.oldest(name, &key, at, oldest),
            HolderInput::Releasing(key) => {
                if self.held.get(&name).is_some_and(|hold| hold.key == key) {
                    self.held.remove(&name);
                }
            }
        }
        Ok(())
    }

    fn oldest(
        &mut self,
        name: String,
        key: &str,
        at: Duration,
        oldest: Option<(String, Revision)>,
    ) -> Result<(), BrokenRule> {
        let Some(hold) = self.held.get(&name).filter(|hold| hold.key == key && at < hold.until()) else {
            return Ok(());
        };
        let Some((_, created)) = oldest.as_ref().filter(|(oldest, _)| oldest == key) else {
            let shown = oldest.map_or("none".into(), |(key, created)| format!("{key}, created at {created}"));
            let shown = format!("{:.6} s: the oldest key is {shown}", at.as_secs_f64());
            return Err(("a holder's key is not the oldest one", vec![hold.to_string(), shown]));
        };
        let known = (key.to_owned(), *created);
        match self.created.get(&name) {
            Some(last) if *last != known && last.1 >= *created => {
                let last = format!("{} held before, created at {}", last.0, last.1);
                let evidence = vec![last, hold.to_string(), format!("created at {created}")];
                Err(("a holder's key is older than that of the holder before", evidence))
            }
            _ => {
                self.created.insert(name, known);
                Ok(())
            }
        }
    }
}

impl Hold {
    /// Returns the earliest time at which the lease may expire.
    fn until(&self) -> Duration {
        self.leased + self.ttl - self.ttl / DRIFT_DIVISOR
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, at, key, .. } = self;
        let (at, until) = (at.as_secs_f64(), self.until().as_secs_f64());
        write!(formatter, "member {member}, {at:.6} s: {key} holds, until {until:.6} s unless released")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Leased at 0 s for 10 s.
    fn held(key: &str, at: u64) -> HolderInput {
        let (member, leased, ttl) = (0, Duration::ZERO, seconds(10));
        HolderInput::Held(Hold { member, leased, ttl, at: seconds(at), key: key.into() })
    }

    fn oldest(key: &str, at: u64, oldest: Option<(&str, Revision)>) -> HolderInput {
        let oldest = oldest.map(|(key, created)| (key.to_owned(), created));
        HolderInput::Oldest { key: key.into(), at: seconds(at), oldest }
    }

    #[test]
    fn one_client_holds_at_a_time_and_its_key_is_the_oldest() {
        let releasing = |key: &str| HolderInput::Releasing(key.into());
        let two = Some("two clients held one lock or won one election at a time");
        let not_oldest = Some("a holder's key is not the oldest one");
        let cases = [
            (vec![held("a", 1), releasing("a"), held("b", 2)], None),
            (vec![held("a", 1), held("b", 10), oldest("a", 9, Some(("a", 5)))], None),
            (vec![held("a", 1), held("b", 9)], two),
            (vec![held("a", 1), releasing("b"), held("b", 2)], two),
            (vec![held("a", 1), oldest("a", 2, Some(("a", 5))), oldest("a", 3, Some(("a", 5)))], None),
            (vec![held("a", 1), oldest("a", 2, Some(("b", 5)))], not_oldest),
            (vec![held("a", 1), oldest("a", 2, None)], not_oldest),
            (vec![held("a", 1), oldest("a", 10, None)], None),
            (vec![held("a", 1), releasing("a"), oldest("a", 2, None)], None),
            (
                vec![
                    held("a", 1),
                    oldest("a", 1, Some(("a", 5))),
                    releasing("a"),
                    held("b", 2),
                    oldest("b", 2, Some(("b", 5))),
                ],
                Some("a holder's key is older than that of the holder before"),
            ),
            (
                vec![held("a", 1), releasing("a"), HolderInput::Exists { key: "a".into(), at: seconds(2) }],
                Some("the key of a holder exists after its release was acknowledged"),
            ),
        ];
        for (inputs, expected) in cases {
            let mut holders = Holders::default();
            let shown = format!("{inputs:?}");
            let found = inputs.into_iter().find_map(|input| holders.take("lock".into(), input).err());
            assert_eq!(found.as_ref().map(|found| found.0), expected, "{shown}");
        }
        let mut holders = Holders::default();
        holders.take("one".into(), held("a", 1)).unwrap();
        holders.take("another".into(), held("b", 1)).unwrap();
        assert_eq!(holders.count, 2);
    }
}
