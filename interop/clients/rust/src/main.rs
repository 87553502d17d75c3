//! Uses the crate etcd-client as its documentation does, and prints what it answers.
//!
//! ENDPOINTS are host:port. CA, CERT and KEY are files, NAME and PASSWORD those of a user; all of them may be
//! missing. With KILL, a file, the client writes before and after a member is killed: it makes the file, and
//! waits for KILL.done. Nothing that differs between two runs is printed.

use std::env::var;
use std::path::Path;
use std::time::{Duration, Instant};

use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, DeleteOptions, Error, EventType, GetOptions,
    Identity, KeyValue, LeaseTimeToLiveOptions, LockOptions, PutOptions, ResignOptions, SortOrder,
    SortTarget, TlsOptions, Txn, TxnOp, WatchOptions,
};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// No call should come near it, however busy the machine is.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Writes before and after the kill.
const WRITES: usize = 30;

#[tokio::main]
async fn main() -> Outcome {
    let mut client = connect().await?;
    if var("KILL").is_ok() {
        return failover(&mut client).await;
    }
    values(&mut client).await?;
    transactions(&mut client).await?;
    watches(&mut client).await?;
    leases(&mut client).await?;
    locks(&mut client).await?;
    elections(&mut client).await?;
    refusals(&mut client).await
}

async fn connect() -> Outcome<Client> {
    let mut options = ConnectOptions::new().with_timeout(TIMEOUT);
    let mut scheme = "http";
    if let Ok(authority) = var("CA") {
        scheme = "https";
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(std::fs::read(authority)?));
        if let (Ok(certificate), Ok(key)) = (var("CERT"), var("KEY")) {
            tls = tls.identity(Identity::from_pem(std::fs::read(certificate)?, std::fs::read(key)?));
        }
        options = options.with_tls(tls);
    }
    if let (Ok(name), Ok(password)) = (var("NAME"), var("PASSWORD")) {
        options = options.with_user(name, password);
    }
    let endpoints: Vec<String> =
        var("ENDPOINTS")?.split(',').map(|one| format!("{scheme}://{one}")).collect();
    Ok(Client::connect(endpoints, Some(options)).await?)
}

fn pairs(kvs: &[KeyValue]) -> String {
    let all: Vec<String> = kvs
        .iter()
        .map(|kv| {
            format!(
                "{}={} version {}",
                kv.key_str().unwrap_or("?"),
                kv.value_str().unwrap_or("?"),
                kv.version()
            )
        })
        .collect();
    all.join(" ")
}

fn failure<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Ok(_) => "accepted".to_owned(),
        Err(Error::GRpcStatus(status)) => format!("{:?} {}", status.code(), status.message()),
        Err(error) => error.to_string(),
    }
}

async fn values(client: &mut Client) -> Outcome {
    client.put("app/a", "1", None).await?;
    client.put("app/b", "2", None).await?;
    let put = client.put("app/a", "3", Some(PutOptions::new().with_prev_key())).await?;
    println!("put over {}", put.prev_key().map_or("nothing", |kv| kv.value_str().unwrap_or("?")));
    for options in [
        GetOptions::new().with_prefix(),
        GetOptions::new().with_prefix().with_sort(SortTarget::Key, SortOrder::Descend),
        GetOptions::new().with_prefix().with_limit(1),
        GetOptions::new().with_prefix().with_keys_only().with_serializable(),
        GetOptions::new().with_range("app/b").with_count_only(),
    ] {
        let answer = client.get("app/", Some(options)).await?;
        println!("get {} count {} more {}", pairs(answer.kvs()), answer.count(), answer.more());
    }
    let gone = client.delete("app/", Some(DeleteOptions::new().with_prefix().with_prev_key())).await?;
    println!("delete {} {}", gone.deleted(), pairs(gone.prev_kvs()));
    Ok(())
}

async fn transactions(client: &mut Client) -> Outcome {
    for _ in 0..2 {
        let txn = Txn::new()
            .when(vec![Compare::create_revision("app/t", CompareOp::Equal, 0)])
            .and_then(vec![TxnOp::put("app/t", "made", None), TxnOp::get("app/t", None)])
            .or_else(vec![TxnOp::get("app/t", None), TxnOp::delete("app/t", None)]);
        let answer = client.txn(txn).await?;
        println!("transaction {} {}", answer.succeeded(), answer.op_responses().len());
    }
    Ok(())
}

async fn watches(client: &mut Client) -> Outcome {
    let first = client.put("app/w/1", "a", None).await?.header().map_or(0, |header| header.revision());
    client.put("app/w/1", "b", None).await?;
    client.delete("app/w/1", None).await?;
    let options = WatchOptions::new().with_prefix().with_start_revision(first).with_prev_key();
    let mut stream = client.watch("app/w/", Some(options)).await?;
    let mut seen = 0;
    while seen < 3 {
        let answer = stream.message().await?.ok_or("the watch ended")?;
        for event in answer.events() {
            let value = event.kv().map_or("", |kv| kv.value_str().unwrap_or("?"));
            let previous = event.prev_kv().map_or("", |kv| kv.value_str().unwrap_or("?"));
            println!("watch {:?} {value} over {previous}", event.event_type());
            seen += 1;
        }
    }
    stream.cancel(0).await?;
    while let Some(answer) = stream.message().await? {
        if answer.canceled() {
            println!("watch ended");
            break;
        }
    }
    Ok(())
}

async fn leases(client: &mut Client) -> Outcome {
    let lease = client.lease_grant(300, None).await?.id();
    client.put("app/l", "kept", Some(PutOptions::new().with_lease(lease))).await?;
    let left = client.lease_time_to_live(lease, Some(LeaseTimeToLiveOptions::new().with_keys())).await?;
    println!("lease {} keys {}", left.granted_ttl(), left.keys().len());
    let (mut keeper, mut renewals) = client.lease_keep_alive(lease).await?;
    keeper.keep_alive().await?;
    println!("renewed {}", renewals.message().await?.ok_or("no renewal")?.ttl());
    client.lease_revoke(lease).await?;
    println!("revoked {}", client.get("app/l", None).await?.count());
    let brief = client.lease_grant(1, None).await?.id();
    let put = client.put("app/l", "brief", Some(PutOptions::new().with_lease(brief))).await?;
    let revision = put.header().map_or(0, |header| header.revision());
    let mut stream = client.watch("app/l", Some(WatchOptions::new().with_start_revision(revision))).await?;
    loop {
        let answer = stream.message().await?.ok_or("the watch ended")?;
        if answer.events().iter().any(|event| event.event_type() == EventType::Delete) {
            println!("expired");
            return Ok(());
        }
    }
}

async fn locks(client: &mut Client) -> Outcome {
    let first = client.lease_grant(60, None).await?.id();
    let second = client.lease_grant(60, None).await?.id();
    let held = client.lock("app/lock", Some(LockOptions::new().with_lease(first))).await?;
    println!("lock {}", held.key().starts_with(b"app/lock/"));
    let mut other = client.clone();
    let waiting =
        tokio::spawn(
            async move { other.lock("app/lock", Some(LockOptions::new().with_lease(second))).await },
        );
    client.unlock(held.key()).await?;
    client.unlock(waiting.await??.key()).await?;
    println!("second lock after the first");
    Ok(())
}

async fn elections(client: &mut Client) -> Outcome {
    let lease = client.lease_grant(60, None).await?.id();
    let mut won = client.campaign("app/election", "first", lease).await?;
    let leader = client.leader("app/election").await?;
    println!(
        "leader {}",
        pairs(leader.kv().map(std::slice::from_ref).unwrap_or_default()).contains("=first ")
    );
    let key = won.take_leader().ok_or("no leader")?;
    client.resign(Some(ResignOptions::new().with_leader(key))).await?;
    println!("leader {}", failure(client.leader("app/election").await));
    Ok(())
}

async fn refusals(client: &mut Client) -> Outcome {
    let read = client.get("app/none", None).await?;
    let revision = read.header().map_or(0, |header| header.revision());
    if var("NAME").is_ok() {
        println!("of another: {}", failure(client.put("other", "x", None).await));
        println!("of another, read: {}", failure(client.get("other", None).await));
        println!("users: {}", failure(client.user_list().await));
        return Ok(());
    }
    println!("future: {}", failure(client.compact(revision + 1000, None).await));
    println!("compact: {}", failure(client.compact(revision, None).await));
    let old = GetOptions::new().with_revision(1);
    println!("compacted, read: {}", failure(client.get("app/a", Some(old)).await));
    println!("large: {}", failure(client.put("app/large", "x".repeat(1_700_000), None).await));
    for member in client.member_list().await?.members() {
        println!("member {}", member.name());
    }
    Ok(())
}

async fn failover(client: &mut Client) -> Outcome {
    let revision = client.get("app/f", None).await?.header().map_or(0, |header| header.revision());
    let lease = client.lease_grant(60, None).await?.id();
    client.put("app/leased", "x", Some(PutOptions::new().with_lease(lease))).await?;
    let names: Vec<String> = (0..2 * WRITES).map(|n| format!("app/f/{n:02}")).collect();
    let following = tokio::spawn(follow(client.clone(), revision + 1, names.len()));
    for (n, name) in names.iter().enumerate() {
        if n == WRITES {
            kill().await?;
        }
        until_written(client, name).await?;
    }
    println!("watch {}", tokio::time::timeout(TIMEOUT, following).await?? == names);
    // The crate balances calls over all endpoints, also over that of the member that is gone.
    for _ in 0..200 {
        match after(client, lease).await {
            Ok(()) => return Ok(()),
            Err(Error::GRpcStatus(status)) if format!("{:?}", status.code()) == "Unavailable" => {}
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err("the endpoints are unavailable".into())
}

/// What is there after the kill.
async fn after(client: &mut Client, lease: i64) -> Result<(), Error> {
    let options = GetOptions::new().with_prefix().with_count_only();
    let count = client.get("app/f/", Some(options)).await?.count();
    let left = client.lease_time_to_live(lease, Some(LeaseTimeToLiveOptions::new().with_keys())).await?;
    let lock = client.lock("app/lock", Some(LockOptions::new().with_lease(lease))).await?;
    println!("keys {count} lease {} {}", left.ttl() > 0, left.keys().len());
    println!("lock {}", lock.key().starts_with(b"app/lock/"));
    Ok(())
}

/// Follows new keys. The crate ends a watch with its connection: its user begins another at the next
/// revision.
async fn follow(mut client: Client, mut next: i64, wanted: usize) -> Vec<String> {
    let mut names = Vec::new();
    while names.len() < wanted {
        let options = WatchOptions::new().with_prefix().with_start_revision(next);
        let Ok(mut stream) = client.watch("app/f/", Some(options)).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        while let Ok(Some(answer)) = stream.message().await {
            for kv in answer.events().iter().filter_map(|event| event.kv()) {
                next = kv.mod_revision() + 1;
                if kv.version() == 1 {
                    // A put whose answer was lost is made again.
                    names.push(kv.key_str().unwrap_or("?").to_owned());
                }
            }
            if names.len() >= wanted {
                break;
            }
        }
    }
    names
}

async fn until_written(client: &mut Client, key: &str) -> Outcome {
    let began = Instant::now();
    loop {
        let put = tokio::time::timeout(Duration::from_secs(2), client.put(key, "x", None)).await;
        if matches!(put, Ok(Ok(_))) {
            return Ok(());
        }
        if began.elapsed() > TIMEOUT {
            return Err(format!("{key} was not written").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn kill() -> Outcome {
    let file = var("KILL")?;
    std::fs::write(&file, "")?;
    while !Path::new(&format!("{file}.done")).exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
