//! Golden scripts of the core, in `tests/scripts` of the crate. `testkit::golden` describes the files.
//!
//! The first comment line of a script is its summary. Each line is a command; it prints a line per effect,
//! see `show`. An election timeout is ten ticks, and a follower campaigns after fifteen. Syncs and applies
//! succeed immediately unless a script holds them. Messages stay on the wire until a script delivers or
//! drops them. Members are identified by their ids:
//!
//! | command | meaning |
//! |---|---|
//! | `members 1 2 3 OPTIONS` | empty logs; the options are below |
//! | `tick 1 2 *10` | ten ticks of member 1, then of member 2 |
//! | `campaign 1` | ticks of member 1 until it campaigns |
//! | `elect 1` | ten ticks of the other members, `campaign 1`, `deliver`: without output; then `status 1` |
//! | `deliver` | delivers messages until the wire is empty |
//! | `deliver 1>2 KIND` | delivers the current messages on this link; without `KIND` all of them |
//! | `drop 1>2 KIND` | drops them |
//! | `duplicate 1>2 KIND` | delivers them and leaves them on the wire |
//! | `reverse 1>2 KIND` | reverses their order |
//! | `isolate 1 2`, `heal` | messages from and to these members are dropped |
//! | `propose 1 a b` | batches with a single command each; `a*1000` is a command of 1000 bytes |
//! | `change 1 +4`, `~4`, `-4` | adds voter 4, adds learner 4, removes 4; with the option `changing` |
//! | `join 4 1` | member 4 starts without a store, and is given the membership of 1 |
//! | `fill 1 20` | proposes and delivers 20 commands of 1000 bytes, without output |
//! | `disk 1 hold`, `sync`, `go` | jobs wait; the waiting ones are synced; syncs succeed immediately again |
//! | `machine 1 hold`, `apply`, `go` | the same for committed entries |
//! | `read 1 NAME` | starts a ReadIndex round |
//! | `checkpoint 1` | the store is durable up to its applied index |
//! | `stream 1>2`, `stream 1>2 fails` | an offered snapshot arrives, or its stream breaks |
//! | `unreachable 1 2` | reports to member 1 that messages to 2 were lost |
//! | `reseed 1` | the machine's state of member 1 must be replaced |
//! | `transfer 1 2` | requests a leadership transfer from 1 to 2 |
//! | `restart 1`, `lost`, `empty` | a power loss: with its store, without it, without store and log |
//! | `inquire 1 2 3` | member 1, with an empty log, receives the replies of members 2 and 3 |
//! | `forge 2>1 KIND FIELDS` | a message that the core of 2 did not send, see `forged` |
//! | `progress 1 2` | progress of member 2 according to leader 1 |
//! | `status 1`, `log 1`, `wire` | state of a member, contents of its log, messages in flight |
//! | `quiet COMMAND` | no output |
//!
//! Options of `members`: `unconfirmed`, `changing`, `strict` (refuses `+13`), `hands-over`, `apply=BYTES`,
//! `catch-up=ENTRIES`.

mod cluster; // members, their disks and machines, the messages between them
mod commands; // words, batches, membership changes
mod forged; // hand-written messages
mod show; // a line per effect

use std::path::Path;

use cluster::ScriptCluster;

#[test]
fn scripts_give_their_output() {
    testkit::golden::run_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts"), || {
        let mut cluster = ScriptCluster::default();
        move |line| {
            let (is_quiet, line) = line.strip_prefix("quiet ").map_or((false, line), |rest| (true, rest));
            println!("{line}"); // Shown if the test fails: the commands up to a panic.
            cluster.command(line);
            let printed = cluster.printed();
            if is_quiet { String::new() } else { printed }
        }
    });
}
