//! Many keys that a cluster holds before an experiment starts, to run it on a large data set.
//!
//! * They sort after all keys of the writing clients, which do not touch them.
//! * Each value is derived from the number of its key, so no record of it is needed.

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use super::claim::{Effect, MemberKeys};
use super::client::{FILLING, MemberClient};
use crate::failure::{Attempt, ExperimentError, Result};

/// Values do not compress.
const VALUE_BYTES: usize = 256;
/// Below the limit of 128 operations per transaction.
const KEYS_PER_TXN: u64 = 100;
const CLIENTS: u64 = 8;
/// Number of keys that one check compares.
const SAMPLE: u64 = 100;
/// Flag of a member with a filling, which exceeds the default quota.
pub const QUOTA: &str = "--quota-backend-bytes=68719476736";

/// The keys with numbers below `keys`, all written by `revision`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filling {
    keys: u64,
    revision: i64,
}

impl Filling {
    /// Puts `keys` keys.
    pub async fn make(client: &MemberClient, keys: u64) -> Result<Filling> {
        let mut writers = JoinSet::new();
        for first in 0..CLIENTS.min(keys) {
            let mut client = client.clone();
            writers.spawn(async move {
                let mut revision = 0;
                let begins = (first * KEYS_PER_TXN..keys).step_by((CLIENTS * KEYS_PER_TXN) as usize);
                for begin in begins {
                    let numbers = begin..keys.min(begin + KEYS_PER_TXN);
                    let puts = numbers.map(|number| (key(number), value(number))).collect();
                    revision = client.make(&Effect::Txn { puts }).await?;
                }
                Ok::<i64, ExperimentError>(revision)
            });
        }
        let mut revision = 0;
        while let Some(writer) = writers.join_next().await {
            revision = revision.max(writer.or_say("fill the store")??);
        }
        Ok(Filling { keys, revision })
    }

    /// Returns the initial baseline of the clients that start after it.
    pub fn baseline(&self) -> MemberKeys {
        MemberKeys { revision: self.revision, ..MemberKeys::default() }
    }

    /// Counts all keys and compares a sample of them.
    pub async fn check(&self, client: &mut MemberClient, chance: &mut SmallRng) -> Result<Vec<String>> {
        let mut violations = Vec::new();
        if self.keys == 0 {
            return Ok(violations);
        }
        let count = client.count_of_filling().await?;
        if count != self.keys {
            violations.push(format!("{count} of {} keys that were there before", self.keys));
        }
        for _ in 0..SAMPLE {
            let number = chance.random_range(0..self.keys);
            let found = client.now(&key(number)).await?;
            let is_same = found.as_ref().is_some_and(|found| {
                found.value == value(number) && found.version == 1 && found.modified <= self.revision
            });
            if !is_same {
                let found = found.map(|found| (found.modified, found.version, found.value.len()));
                violations.push(format!("key {number} that was there before: found there {found:?}"));
            }
        }
        Ok(violations)
    }
}

fn key(number: u64) -> Bytes {
    Bytes::from(format!("{}{number:012}", char::from(FILLING)))
}

fn value(number: u64) -> Bytes {
    let mut value = vec![0; VALUE_BYTES];
    SmallRng::seed_from_u64(number).fill(&mut value[..]);
    Bytes::from(value)
}
