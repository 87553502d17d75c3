//! Examples for `--help`. No line is longer than 80 columns.

pub const ROOT: &str = "\
Examples:
  Ten seconds of puts with one client:
    loadgen put --duration=10s
  Two programs compared, as an HTML page:
    loadgen compare --a kv-server=target/release/kv-server \\
        --b etcd=/usr/local/bin/etcd --html=report.html

loadgen COMMAND --help prints the common flags, --help-all all flags.";

const MORE: &str = "\
More examples:
  A thousand clients on a hundred connections, to the leader:
    loadgen put --target-leader --conns=100 --clients=1000 --total=100000 \\
        --key-space-size=100000 --sequential-keys --val-size=256 \\
        --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  Latency at 5,000/s, including server stalls:
    loadgen put --rate=5000 --open-loop --clients=1000 --conns=100

Exit status: 0 success; 1 more calls failed or got no reply than --max-errors
allows, a limit of --slo was missed, or the run could not start or complete;
2 invalid command line; 3 --find-max-rate is undecided: only the load generator
or its machine limited the rate; 130 interrupted, with a partial report.";

pub fn root_long() -> String {
    format!("{ROOT}\n\n{MORE}")
}

/// Maximum lines of examples in `--help`.
const LINES: usize = 11;

/// Flags of shared groups that `--help` includes for each command that has them.
const FIRST: &str = "\
    endpoints conns clients json user total duration rate open-loop slo html key-size val-size \
    key-space-size sequential-keys consistency prefix workload records nodes streams watchers \
    put-rate a b program";

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
  One client, one request at a time:
    loadgen put --val-size=256 --duration=10s
  The load of etcd's documentation. It writes a single key, because
  --key-space-size defaults to 1:
    loadgen put --target-leader --conns=100 --clients=1000 --total=100000 \\
        --key-size=8 --sequential-keys --val-size=256
  The same with distinct keys:
    loadgen put --target-leader --conns=100 --clients=1000 --total=100000 \\
        --key-size=8 --sequential-keys --val-size=256 --key-space-size=100000
  At most 500/s, closed loop: a slow server slows the load. Then exactly
  500/s, open loop.
    loadgen put --rate=500 --total=5000
    loadgen put --rate=500 --total=5000 --open-loop --clients=100
  Latency by rate, and the highest rate with a p99 of 10 ms:
    loadgen put --rates=1000,2000,4000,8000 --clients=1000 --html=rates.html
    loadgen put --find-max-rate --slo=p99=10ms --clients=1000 --conns=100
  With TLS and a user; prompts for the password:
    loadgen put --endpoints=https://db:2379 --cacert=ca.pem --user=root
  Half a minute after a warm-up; fails if a limit is missed:
    loadgen put --duration=30s --warm-up=5s --slo=p99=10ms,errors=0
  JSON for a script; fails if more than ten calls failed:
    loadgen put --json=- --max-errors=10";

pub const RANGE: &str = "\
Examples:
  Linearizable reads of one key (the default), then serializable ones:
    loadgen range foo --conns=100 --clients=1000 --total=100000
    loadgen range foo --consistency=s --conns=100 --clients=1000
  Keys from a to before c, at most ten, without values:
    loadgen range a c --limit=10 --keys-only
  Number of keys with the prefix app/:
    loadgen range app/ --prefix --count-only";

pub const TXN_PUT: &str = "\
Examples:
  Ten of a thousand keys per transaction:
    loadgen txn-put --txn-ops=10 --key-space-size=1000 --val-size=256";

pub const TXN_MIXED: &str = "\
Each transaction contains one range over all keys, or one put. Ranges and puts
have separate reports.

Examples:
  Two ranges per put, a thousand keys, ten keys per response:
    loadgen txn-mixed --rw-ratio=2 --key-space-size=1000 --limit=10";

pub const STM: &str = "\
A transaction reads its keys, then commits its writes if the keys that it read
are unchanged; otherwise it is retried. Latency includes all attempts and the
lock, but not the delay of --rate. All calls of a transaction use one member.

Examples:
  A hundred clients that write one of ten keys:
    loadgen stm --clients=100 --conns=10 --keys=10 --txn-wr-percent=100
  Snapshots of five keys with two writes, inside a lock:
    loadgen stm --keys=50 --keys-per-txn=5 --isolation=ss \\
        --stm-locker=lock-rpc --clients=10";

pub const YCSB: &str = "\
Loads the records, then runs the workload. Each kind of operation has a report.
The distribution is zipfian unless noted otherwise:
  a  half reads, half updates         d  95 % reads of the latest, 5 % inserts
  b  95 % reads, 5 % updates          e  95 % short scans, 5 % inserts
  c  reads                            f  half reads, half read-modify-writes
A record is a key with a value of 1000 bytes. A read-modify-write is retried
until no other write intervenes.

Examples:
  Half a minute of workload b on a hundred thousand records:
    loadgen ycsb --workload=b --records=100000 --duration=30s \\
        --clients=100 --conns=10
  The same records with another mix and serializable reads:
    loadgen ycsb --records=100000 --skip-load --mix=read=9,rmw=1 \\
        --distribution=hotspot --consistency=s --clients=100 --conns=10
  Values from 100 bytes to 4 KiB, or a few large values:
    loadgen ycsb --val-size=100..4096 --total=20000 --clients=20
    loadgen ycsb --val-size=256=95,65536=5 --total=20000 --clients=20";

pub const KUBERNETES: &str = "\
Creates the objects: a lease and a node per node, pods, and an endpoint slice
per 100 pods. Then each node renews its lease every 10 s and reports its status
every 5 minutes. Each replaced pod causes a creation, a deletion, 4 updates, a
slice update, 8 events with a lease of an hour, and 2 reads. Every five minutes
all pods are listed in pages of 500 and as a stream, and each API server tries
to compact the store up to its previous attempt, like kube-apiserver. Every ten
minutes an API server starts: it lists and watches every resource. All API
servers watch every resource. Writes are conditional transactions. The keys are
not deleted.

--open-loop without --rate sends at the cluster's rate: 18,933 operations per
second for 100,000 nodes. Another rate scales the intervals.

Examples:
  Half a minute without a rate limit:
    loadgen kubernetes --nodes=100 --duration=30s --clients=100 --conns=10
  The rate of 25,000 nodes, even if the servers are slower:
    loadgen kubernetes --nodes=25000 --open-loop --duration=10m \\
        --clients=500 --conns=50";

pub const LEASE_KEEPALIVE: &str = "\
Each client has a lease of 100 s. A request opens a stream, sends one renewal,
reads the response and closes the stream.

Examples:
  A thousand clients on a hundred connections:
    loadgen lease-keepalive --clients=1000 --conns=100 --total=100000";

pub const WATCH: &str = "\
Creates all watchers, sequentially on each stream. Then --clients clients write
the watched keys round-robin. Each watcher must receive each put of its key
once and in order: an event that is missing --dial-timeout after the last one
is a failure, and counts in the latencies. Latency counts from the put to the
event. Streams have separate connections, as many as --conns.

Examples:
  A hundred streams of a hundred watchers of one key, 20 puts per second:
    loadgen watch --streams=100 --watch-per-stream=100 --put-rate=20 \\
        --put-total=400 --conns=10 --clients=10
  Half a minute; fails if events are late or lost:
    loadgen watch --duration=30s --put-rate=20 --slo=p99=50ms,errors=0
  A thousand keys with a watcher each:
    loadgen watch --watched-key-total=1000 --key-space-size=1000 \\
        --sequential-keys --put-total=10000";

pub const WATCH_LATENCY: &str = "\
Prints three reports: puts; events, from the time from which the latency of
their put counts (with --open-loop the intended one); and events from the
response to their put, like etcd's benchmark 3.7: 0 if the event arrived first.
A missing event is a failure, and counts in the latencies.

Examples:
  A hundred watchers, 500 puts per second, open loop:
    loadgen watch-latency --put-rate=500 --open-loop --put-total=10000 \\
        --clients=50 --conns=10";

pub const WATCH_GET: &str = "\
Writes a key --events times. Then all watchers start at the first of these
revisions, while --clients clients read another key. The run ends when every
watcher has received every event.

Examples:
  Ten thousand watchers on ten streams:
    loadgen watch-get --watchers=10000 --streams=10";

pub const WATCH_HISTORY: &str = "\
Writes --total puts of one key. Then all watchers start at the first of these
revisions; the run ends when every watcher has received every event.

Examples:
  A hundred thousand events for one watcher:
    loadgen watch-history --total=100000 --val-size=256";

pub const SUITE: &str = "\
Examples:
  Etcd's documentation on an existing cluster, with a tenth of the requests:
    loadgen suite docs-3.2 --name=staging --scale=0.1 --html=report.html \\
        --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  Every suite on clusters of one program, files on a real disk:
    loadgen suite all --program=etcd=/usr/local/bin/etcd \\
        --data-dir=/var/tmp --json=report.json --html=report.html
  Throughput by number of clients, WAL on a RAM disk:
    loadgen suite ibm-pmem --program=etcd=/usr/local/bin/etcd \\
        --wal-dir=/dev/shm --html=report.html";

pub const COMPARE: &str = "\
Examples:
  Clusters of both programs on this machine, etcd's documentation:
    loadgen compare docs-3.2 --data-dir=/var/tmp --html=report.html \\
        --a kv-server=target/release/kv-server --b etcd=/usr/local/bin/etcd
  All suites with a tenth of the requests:
    loadgen compare all --scale=0.1 --json=report.json --html=report.html \\
        --a kv-server=target/release/kv-server --b etcd=/usr/local/bin/etcd
  Existing clusters:
    loadgen compare docs-3.2 --a kv-server --a-endpoints=10.0.0.1:2379 \\
        --b etcd --b-endpoints=10.0.1.1:2379
  Render the result again:
    loadgen report report.json --html=report.html --markdown=report.md";

pub const REPORT: &str = "\
Examples:
  A self-contained HTML page, and all measurements as CSV:
    loadgen report report.json --html=report.html --csv=report.csv
  Markdown tables on standard output:
    loadgen report report.json >> README.md";

pub const COMPLETION: &str = "\
Examples:
  bash, for this shell or permanently:
    source <(loadgen completion bash)
    loadgen completion bash \\
        > ~/.local/share/bash-completion/completions/loadgen
  zsh, in a directory of $fpath:
    loadgen completion zsh > ~/.zfunc/_loadgen
  fish:
    loadgen completion fish > ~/.config/fish/completions/loadgen.fish";

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::*;

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
            LEASE_KEEPALIVE,
            WATCH,
            WATCH_LATENCY,
            WATCH_GET,
            WATCH_HISTORY,
        ];
        for text in single.into_iter().chain([ROOT, MORE, SUITE, COMPARE, REPORT, COMPLETION]) {
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
}
