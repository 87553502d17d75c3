//! Many keys that a cluster has before an experiment begins, so that it is made at the size of a large one.
//!
//! * They sort after all keys of the clients that write, which leave them as they are.
//! * Each value follows from the number of its key, so nothing has to be remembered.

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use super::claim::{Effect, MemberKeys};
use super::client::{FILLING, MemberClient};
use crate::failure::{Attempt, ExperimentError, Result};

/// Does not compress.
const VALUE_BYTES: usize = 256;
/// A transaction may have 128 operations.
const KEYS_PER_TXN: u64 = 100;
const CLIENTS: u64 = 8;
/// Keys whose values are compared in one check.
const SAMPLE: u64 = 100;
/// What a member that takes so many keys is started with: the default quota is smaller.
pub const QUOTA: &str = "--quota-backend-bytes=68719476736";

/// The keys with the numbers below `keys`, all written by `revision`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filling {
    keys: u64,
    revision: i64,
}

impl Filling {
    /// Puts so many keys.
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

    /// What the clients that come after it begin with.
    pub fn baseline(&self) -> MemberKeys {
        MemberKeys { revision: self.revision, ..MemberKeys::default() }
    }

    /// All keys are counted, some are compared.
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
