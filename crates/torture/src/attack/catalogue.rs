//! All attacks, by name.

use std::future::Future;
use std::pin::Pin;

use super::attacks::ground::Ground;
use super::attacks::{callers, flood, hoard, peers, socket, work};
use super::figures::outcome::{AttackBounds, BOUNDS};
use super::preload::Preload;

type Strike = Pin<Box<dyn Future<Output = ()> + Send>>;

pub struct Attack {
    pub name: &'static str,
    pub preload: Preload,
    /// Minimum number of members, for attacks that impersonate another member.
    pub members_min: u16,
    /// `ulimit -n` of the server.
    pub descriptors_max: Option<u32>,
    pub quota_bytes: Option<u64>,
    pub bounds: AttackBounds,
    pub strike: fn(Ground) -> Strike,
}

const NOTHING: Preload = Preload { keys: 0, value_bytes: 0 };

const fn attack(name: &'static str, strike: fn(Ground) -> Strike) -> Attack {
    let (preload, bounds) = (NOTHING, BOUNDS);
    Attack { name, preload, members_min: 1, descriptors_max: None, quota_bytes: None, bounds, strike }
}

/// Bounds of attacks that fill both budgets: bodies over HTTP/2, and objects through the gateway.
const HOARDS: AttackBounds = AttackBounds { rss_growth: 448 << 20, ..BOUNDS };

pub static ATTACKS: &[Attack] = &[
    attack("rapid-reset", |ground| Box::pin(flood::rapid_reset(ground))),
    attack("continuation-flood", |ground| Box::pin(flood::continuation(ground))),
    attack("empty-data-flood", |ground| Box::pin(flood::empty_data(ground))),
    attack("ping-flood", |ground| Box::pin(flood::ping(ground))),
    attack("settings-flood", |ground| Box::pin(flood::settings(ground))),
    attack("renewal-flood", |ground| Box::pin(flood::renewals(ground))),
    Attack {
        preload: hoard::WINDOWS_PRELOAD,
        ..attack("zero-windows", |ground| Box::pin(hoard::zero_windows(ground)))
    },
    attack("endless-bodies", |ground| Box::pin(hoard::endless_bodies(ground))),
    attack("half-open-streams", |ground| Box::pin(hoard::half_open_streams(ground))),
    Attack {
        preload: hoard::READERS_PRELOAD,
        ..attack("stopped-readers", |ground| Box::pin(hoard::stopped_readers(ground)))
    },
    attack("stalled-prefaces", |ground| Box::pin(socket::stalled_prefaces(ground))),
    attack("slow-heads", |ground| Box::pin(socket::slow_heads(ground))),
    Attack {
        descriptors_max: Some(socket::DESCRIPTORS_MAX),
        ..attack("descriptors", |ground| Box::pin(socket::descriptors(ground)))
    },
    Attack {
        quota_bytes: Some(work::KEYS_QUOTA_BYTES),
        ..attack("maximal-keys", |ground| Box::pin(work::maximal_keys(ground)))
    },
    attack("deep-transactions", |ground| Box::pin(work::deep_transactions(ground))),
    Attack {
        preload: work::TXN_PRELOAD,
        ..attack("wide-transactions", |ground| Box::pin(work::wide_transactions(ground)))
    },
    attack("countless-operations", |ground| Box::pin(work::countless_operations(ground))),
    Attack {
        preload: work::HASH_PRELOAD,
        ..attack("hash-kv-resets", |ground| Box::pin(work::hash_kv(ground)))
    },
    attack("dead-watches", |ground| Box::pin(callers::dead_watches(ground))),
    Attack {
        bounds: HOARDS,
        ..attack("hoards-of-one-address", |ground| Box::pin(callers::of_one_address(ground)))
    },
    Attack {
        bounds: HOARDS,
        ..attack("hoards-of-100-addresses", |ground| Box::pin(callers::of_many_addresses(ground)))
    },
    attack("large-puts", |ground| Box::pin(work::large_puts(ground))),
    attack("deadlines-in-stalls", |ground| Box::pin(work::deadlines_in_stalls(ground))),
    Attack { members_min: 3, ..attack("peer-garbage", |ground| Box::pin(peers::garbage(ground))) },
];
