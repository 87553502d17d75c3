//! Examples for `--help`. No line is longer than 80 columns.

pub const ROOT: &str = "\
Examples:
  Is the server there, and how fast is one caller?
    loadgen put
  A thousand callers on a hundred connections, to the member that leads:
    loadgen put --target-leader --conns=100 --clients=1000 --total=100000 \\
        --key-space-size=100000 --sequential-keys --val-size=256 \\
        --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  How long do requests take at 5,000/s, stalls of the server included?
    loadgen put --rate=5000 --open-loop --clients=1000 --conns=100
  Two programs side by side, as a page to show to others:
    loadgen compare --a kv-server=target/release/kv-server \\
        --b etcd=/usr/local/bin/etcd --html=report.html

Exit status: 0 all went well; 1 more calls failed than --max-errors, or the
run could not begin or end; 2 the command line makes no sense; 130 you
interrupted it: what was measured until then is reported.

loadgen COMMAND --help shows the flags and examples of each command.";

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

    /// The command lines of `loadgen`, with continuation lines joined.
    fn commands(text: &str) -> Vec<String> {
        let joined = text.replace("\\\n", " ");
        let lines = joined.lines().filter(|line| line.starts_with("    loadgen "));
        lines.map(|line| line.split(" >").next().unwrap_or(line).trim().to_owned()).collect()
    }

    #[test]
    fn every_example_is_a_valid_command_line() {
        let mut count = 0;
        for text in [ROOT, PUT, RANGE, TXN_PUT, SUITE, COMPARE, REPORT, COMPLETION] {
            assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
            for line in commands(text) {
                let parsed = Cli::read(line.split_whitespace().map(Into::into).collect());
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                count += 1;
            }
        }
        assert!(count > 20, "{count} examples");
    }
}
