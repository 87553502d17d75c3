//! Examples for `--help`. No line is longer than 80 columns.

use crate::proxy::lie::Lie;

pub const ROOT: &str = "\
Examples:
  Is the server there, and how fast is one caller?
    loadgen put
  Two programs next to each other, as a page to show to others:
    loadgen compare --a kv-server=target/release/kv-server \\
        --b etcd=/usr/local/bin/etcd --html=report.html

loadgen COMMAND --help has the flags of a command, --help-all all flags.";

const MORE: &str = "\
More examples:
  A thousand callers on a hundred connections, to the member that leads:
    loadgen put --target-leader --conns=100 --clients=1000 --total=100000 \\
        --key-space-size=100000 --sequential-keys --val-size=256 \\
        --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  How long do requests take at 5,000/s, stalls of the server included?
    loadgen put --rate=5000 --open-loop --clients=1000 --conns=100

Exit status: 0 all went well; 1 more calls failed than --max-errors, or were
never answered, a limit of --slo was missed, or the run could not begin or end;
2 the command line makes no sense; 3 --find-max-rate is undecided: only the
load generator or its machine kept it from a rate; 130 you interrupted it: what
was measured until then is reported.";

pub fn root_long() -> String {
    format!("{ROOT}\n\n{MORE}")
}

/// Maximum lines of examples in `--help`.
const LINES: usize = 11;

/// Flags of shared groups that `--help` includes for each command that has them.
const FIRST: &str = "\
    endpoints conns clients json user total duration rate open-loop slo html key-size val-size \
    key-space-size sequential-keys consistency prefix workload records nodes streams watchers \
    put-rate minutes lie a b program";

/// Returns as many of the first examples as fit into `--help`.
pub fn brief(text: &str) -> String {
    let examples = text.find("Examples:").map_or("", |at| &text[at..]);
    let lines: Vec<&str> = examples.lines().collect();
    let is_start = |at: &usize| lines.get(*at).is_none_or(|line| !line.starts_with("   "));
    let end = (0..=lines.len().min(LINES)).rev().find(is_start).unwrap_or_default();
    let more = if end < lines.len() { "\n  and more: --help-all" } else { "" };
    format!("{}{more}", lines[..end].join("\n"))
}

/// Command-specific flags that only `--help-all` includes.
const LAST: &str = "title csv markdown media wal-dir dry-run row-seconds round-seconds prefix resume";

/// Reports whether only `--help-all` includes a flag.
pub fn is_rare(arg: &clap::Arg) -> bool {
    let is_of = |names: &str| arg.get_long().is_some_and(|name| names.split(' ').any(|it| it == name));
    !arg.is_positional() && if arg.get_help_heading().is_some() { !is_of(FIRST) } else { is_of(LAST) }
}

pub const PUT: &str = "\
Examples:
  One caller, one request at a time: what a single write costs.
    loadgen put --val-size=256
  What etcd's own pages measure. It writes one single key, because
  --key-space-size is 1 unless given:
    loadgen put --target-leader --conns=100 --clients=1000 --total=100000 \\
        --key-size=8 --sequential-keys --val-size=256
  The same with as many keys as requests:
    loadgen put --target-leader --conns=100 --clients=1000 --total=100000 \\
        --key-size=8 --sequential-keys --val-size=256 --key-space-size=100000
  At most 500/s: a closed loop, in which a slow server slows the load.
  Then exactly 500/s: an open loop, in which it does not.
    loadgen put --rate=500 --total=5000
    loadgen put --rate=500 --total=5000 --open-loop --clients=100
  How latency grows with the rate, and the highest rate with p99 in 10 ms:
    loadgen put --rates=1000,2000,4000,8000 --clients=1000 --html=rates.html
    loadgen put --find-max-rate --slo=p99=10ms --clients=1000 --conns=100
  Inside TLS, as a user whose password is asked for:
    loadgen put --endpoints=https://db:2379 --cacert=ca.pem --user=root
  Half a minute after a warm-up, as a check that fails beyond its limits:
    loadgen put --duration=30s --warm-up=5s --slo=p99=10ms,errors=0
  Figures for a script; a failure if more than ten calls failed:
    loadgen put --json=- --max-errors=10";

pub const RANGE: &str = "\
Examples:
  Linearizable reads of one key (the default), then serializable ones:
    loadgen range foo --conns=100 --clients=1000 --total=100000
    loadgen range foo --consistency=s --conns=100 --clients=1000
  Keys from a to before c, ten at most, without their values:
    loadgen range a c --limit=10 --keys-only
  How many keys begin with app/:
    loadgen range app/ --prefix --count-only";

pub const TXN_PUT: &str = "\
Examples:
  Ten keys per transaction, out of a thousand:
    loadgen txn-put --txn-ops=10 --key-space-size=1000 --val-size=256";

pub const TXN_MIXED: &str = "\
Each transaction holds one range over all keys, or one put. The reports of
ranges and puts stand apart.

Examples:
  Two ranges for each put, of a thousand keys, ten in each answer:
    loadgen txn-mixed --rw-ratio=2 --key-space-size=1000 --limit=10";

pub const STM: &str = "\
A transaction reads each of its keys, then commits its writes on condition
that what it read is unchanged; else it is tried again. Its latency includes
all attempts and the lock, but not the time that --rate makes it wait. All
calls of a transaction go to one member.

Examples:
  A hundred callers that write one key of ten:
    loadgen stm --clients=100 --conns=10 --keys=10 --txn-wr-percent=100
  Snapshots of five keys, two of which are written, each inside a lock:
    loadgen stm --keys=50 --keys-per-txn=5 --isolation=ss \\
        --stm-locker=lock-rpc --clients=10";

pub const YCSB: &str = "\
First the records are loaded, then the workload runs. Each kind of operation
has a report. Zipfian unless said otherwise:
  a  half reads, half updates         d  95 % reads of the latest, 5 % inserts
  b  95 % reads, 5 % updates          e  95 % short scans, 5 % inserts
  c  reads                            f  half reads, half read-modify-writes
A record is one key with a value of 1000 bytes. A read-modify-write is tried
again until nothing has changed the record between its read and its write.

Examples:
  Half a minute of workload b on a hundred thousand records:
    loadgen ycsb --workload=b --records=100000 --duration=30s \\
        --clients=100 --conns=10
  The same records with another mix, read by one member alone:
    loadgen ycsb --records=100000 --skip-load --mix=read=9,rmw=1 \\
        --distribution=hotspot --consistency=s --clients=100 --conns=10
  Values from 100 bytes to 4 KiB, or a few large ones among many small ones:
    loadgen ycsb --val-size=100..4096 --total=20000 --clients=20
    loadgen ycsb --val-size=256=95,65536=5 --total=20000 --clients=20";

pub const KUBERNETES: &str = "\
First the objects are created: a lease and a node for each node, pods, and a
slice of endpoints for 100 pods. Then each node renews its lease every 10 s and
reports its status every 5 minutes, and a bit more often. For each pod that is
replaced: a creation, a deletion, 4 updates, a slice that is updated, 8 events
with a lease of an hour, and 2 reads. Every five minutes all pods are listed in
pages of 500, and once more as a stream, and each API server tries to compact,
as kube-apiserver does, what is older than its last attempt: the history of the
whole store. Every ten minutes an API server starts: it lists and watches every
resource. All API servers watch every resource meanwhile. Writes are
transactions on the revision that is known. The keys stay.

--open-loop without --rate sends at the cluster's rate: 18,933 operations per
second for 100,000 nodes. At another rate its time is faster or slower.

Examples:
  As fast as the servers answer, for half a minute:
    loadgen kubernetes --nodes=100 --duration=30s --clients=100 --conns=10
  A cluster of 25,000 nodes, even if the servers are slower:
    loadgen kubernetes --nodes=25000 --open-loop --duration=10m \\
        --clients=500 --conns=50";

pub const LEASE_KEEPALIVE: &str = "\
Each caller is granted a lease of 100 s. A request opens a stream, sends one
renewal, reads the answer and ends the stream.

Examples:
  A thousand callers on a hundred connections:
    loadgen lease-keepalive --clients=1000 --conns=100 --total=100000";

pub const WATCH: &str = "\
First all watchers are created, one after the other on each stream. Then
--clients callers write the watched keys in turn. Each put must reach each
watcher of its key once and in order: an event that has not arrived when
nothing more comes for --dial-timeout is a failure. Latency counts from the
put to the event. Streams have separate connections, as many as --conns.

Examples:
  A hundred streams of a hundred watchers of one key, 20 puts per second:
    loadgen watch --streams=100 --watch-per-stream=100 --put-rate=20 \\
        --put-total=400 --conns=10 --clients=10
  Half a minute, as a check that fails when events come late or are lost:
    loadgen watch --duration=30s --put-rate=20 --slo=p99=50ms,errors=0
  A thousand keys, each of which one watcher watches:
    loadgen watch --watched-key-total=1000 --key-space-size=1000 \\
        --sequential-keys --put-total=10000";

pub const WATCH_LATENCY: &str = "\
Three reports: puts; events, from the moment at which the latency of their
put counts (with --open-loop the intended one); and events from the answer of
their put, which is what etcd's benchmark 3.7 prints: 0 if the event came
before the answer. Failures are those of the watch command.

Examples:
  A hundred watchers, 500 puts per second, even if the server is slower:
    loadgen watch-latency --put-rate=500 --open-loop --put-total=10000 \\
        --clients=50 --conns=10";

pub const WATCH_GET: &str = "\
The key watchkey is written --events times. Then all watchers begin at the
first of these revisions, while --clients callers read another key. The run
ends when every watcher has received every event.

Examples:
  Ten thousand watchers on ten streams:
    loadgen watch-get --watchers=10000 --streams=10";

pub const VERIFY: &str = "\
Clients put, delete, swap and read a few keys through every member, and a
watcher follows them at every member. While they do, revisions are checked:
  - what is acknowledged is linearizable, in real time;
  - each read, also a serializable one, returns the state at its revision;
  - an acknowledged write is what watchers receive, once;
  - watchers receive all revisions in order, each whole and once, and go on
    where they were when their stream is opened again;
  - no lease expires before its time; its keys are deleted at one revision;
  - members have equal hashes at equal revisions.
A call that fails may have been executed: watchers show whether it was. Two
clients per member at least, or --clients. The keys are deleted at the end.

Exit status: 0 no contradiction; 1 a contradiction, which is printed with its
operations, or operations or watchers that could not be checked.

Examples:
  Ten minutes while a script kills and pauses members:
    loadgen verify --minutes=10 --rate=2000 --clients=12 \\
        --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379 --html=page.html
  Does it find anything at all? A proxy in front of the first member lies:
    loadgen verify --lie=stale-read
  For hours at a high rate, without filling the disk:
    loadgen verify --minutes=240 --rate=10000 --clients=100 --keys=1000 \\
        --compact-interval=1m";

/// Lists the lies, one per line.
pub fn proxy() -> String {
    let lies = Lie::ALL.map(|lie| format!("  {:<16} {}\n", lie.name(), lie.about())).concat();
    format!(
        "\
A client of the proxy sees a cluster with a fault. --lie is one or more of
{lies}All other calls pass unchanged. The proxy listens without TLS; how it reaches
the members is said by the usual flags.

Examples:
  A member whose watchers miss an event now and then:
    loadgen proxy --lie=drop-event --every=100 --listen=127.0.0.1:12379 \\
        --endpoints=127.0.0.1:2379"
    )
}

pub const SUITE: &str = "\
Examples:
  The rows of etcd's own page against a cluster that runs already, with a
  tenth of the published requests:
    loadgen suite docs-3.2 --name=staging --scale=0.1 --html=report.html \\
        --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  Every suite on fresh clusters of one program, files on a real disk:
    loadgen suite all --program=etcd=/usr/local/bin/etcd \\
        --data-dir=/var/tmp --json=report.json --html=report.html
  How throughput holds up as callers become many, the log on a RAM disk:
    loadgen suite ibm-pmem --program=etcd=/usr/local/bin/etcd \\
        --wal-dir=/dev/shm --html=report.html";

pub const COMPARE: &str = "\
Examples:
  Fresh clusters of both on this machine, the rows of etcd's own page:
    loadgen compare docs-3.2 --data-dir=/var/tmp --html=report.html \\
        --a kv-server=target/release/kv-server --b etcd=/usr/local/bin/etcd
  All that was ever published, with a tenth of the requests:
    loadgen compare all --scale=0.1 --json=report.json --html=report.html \\
        --a kv-server=target/release/kv-server --b etcd=/usr/local/bin/etcd
  Clusters that run already; what cannot be seen from outside is left out:
    loadgen compare docs-3.2 --a kv-server --a-endpoints=10.0.0.1:2379 \\
        --b etcd --b-endpoints=10.0.1.1:2379
  Make the page again later, or tables for a README:
    loadgen report report.json --html=report.html --markdown=report.md";

pub const REPORT: &str = "\
Examples:
  A page for a browser, without network or script; every figure as CSV:
    loadgen report report.json --html=report.html --csv=report.csv
  Tables on standard output, if no file is named:
    loadgen report report.json >> README.md";

pub const AGENT: &str = "\
An agent sends load for a command with --agents on another machine. It executes
each command that sends one load to --endpoints, and nothing else; files that a
command names are read here, and none is written. The first agent loads the
records of ycsb, and all use them; each agent has a separate cluster of
kubernetes, separate keys that are watched, and separate leases. An agent that
dies or is silent for ten seconds is missing in the result, which says so. Each
program that can connect can send load, so listen where only controllers are.

Examples:
  On two machines:
    loadgen agent --listen=10.0.0.7:7379
  Then, from a third one, twice 50,000 puts as one result:
    loadgen put --agents=10.0.0.7:7379,10.0.0.8:7379 --total=50000 \\
        --clients=500 --conns=50 --endpoints=10.0.0.1:2379
  Or half a minute of workload a by both, on the same records:
    loadgen ycsb --agents=10.0.0.7:7379,10.0.0.8:7379 --workload=a \\
        --duration=30s --clients=100 --conns=10 --endpoints=10.0.0.1:2379";

pub const COMPLETION: &str = "\
Examples:
  bash, for now or for good:
    source <(loadgen completion bash)
    loadgen completion bash \\
        > ~/.local/share/bash-completion/completions/loadgen
  zsh, in a directory that $fpath names:
    loadgen completion zsh > ~/.zfunc/_loadgen
  fish:
    loadgen completion fish > ~/.config/fish/completions/loadgen.fish";

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::*;
    use bench_report::suite;

    /// Extracts the command lines of `loadgen`, with continuation lines joined.
    fn commands(text: &str) -> Vec<String> {
        let joined = text.replace("\\\n", " ");
        let lines = joined.lines().filter(|line| line.starts_with("    loadgen "));
        lines.map(|line| line.split(" >").next().unwrap_or(line).trim().to_owned()).collect()
    }

    #[test]
    fn every_example_is_a_valid_command_line() {
        let mut count = 0;
        let single = [
            PUT,
            RANGE,
            TXN_PUT,
            TXN_MIXED,
            STM,
            YCSB,
            KUBERNETES,
            VERIFY,
            &proxy(),
            LEASE_KEEPALIVE,
            WATCH,
            WATCH_LATENCY,
            WATCH_GET,
        ];
        for text in single.into_iter().chain([ROOT, MORE, SUITE, COMPARE, REPORT, AGENT, COMPLETION]) {
            assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
            for line in commands(text) {
                let parsed = Cli::read(line.split_whitespace().map(Into::into).collect());
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                count += 1;
            }
        }
        assert!(count > 20, "{count} examples");
    }

    /// Compares each command's `--help` and `--help-all` with the recorded text.
    #[test]
    fn help_fits_a_terminal_and_is_as_kept() {
        let mut root = Cli::described();
        root.build();
        let commands = root.get_subcommands().map(|command| vec![command.get_name().to_owned()]);
        let mut all = String::new();
        for command in std::iter::once(vec![]).chain(commands.filter(|names| names[0] != "help")) {
            for flag in ["--help", "--help-all"] {
                let words =
                    std::iter::once("loadgen").chain(command.iter().map(String::as_str)).chain([flag]);
                let program = Cli::described().term_width(100);
                let text = program.try_get_matches_from(words.clone()).unwrap_err().to_string();
                let lines = text.lines().count();
                assert!(flag == "--help-all" || lines <= 50, "{command:?}: {lines} lines\n{text}");
                // Global flags are the same for all commands: once is enough.
                if flag == "--help" || command.first().is_none_or(|name| name == "put") {
                    all += &format!("$ {}\n{text}\n", words.collect::<Vec<_>>().join(" "));
                }
            }
        }
        let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cli/flags/help.txt");
        if std::env::var_os("UPDATE_SCRIPTS").is_some() {
            std::fs::write(kept, &all).unwrap();
        }
        assert_eq!(all, std::fs::read_to_string(kept).unwrap(), "UPDATE_SCRIPTS=1 writes it");
    }

    #[test]
    fn a_wrong_command_line_says_what_is_wrong() {
        for (line, said) in [
            // Suggests the nearest flag or command.
            ("put --valsize=3", "'--val-size'"),
            ("put --client 3", "'--clients'"),
            ("verify --minute=3", "'--minutes'"),
            ("wacth", "'watch'"),
            // Identical output files would overwrite each other.
            ("put --json=r --html=./r", "--json and --html name the same file"),
            ("--json - put --csv -", "--json and --csv name the same file"),
            ("report x --html=r --markdown=r", "--html and --markdown name the same file"),
            ("watch --hdr=r --csv=r", "--csv and --hdr name the same file"),
        ] {
            let words = std::iter::once("loadgen").chain(line.split(' '));
            let refused = Cli::read(words.map(Into::into).collect()).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
    }

    #[test]
    fn the_command_of_every_row_is_a_valid_command_line() {
        let names = ["all", "core", "coordination"].map(str::to_owned);
        for row in suite::find(&names).unwrap().iter().flat_map(|suite| &suite.rows) {
            let line = row.scaled(0.1, None).command();
            let parsed = Cli::read(line.split_whitespace().map(Into::into).collect());
            assert!(parsed.is_ok(), "{}: {line}: {}", row.id, parsed.unwrap_err());
        }
    }
}
