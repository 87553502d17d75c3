//! Examples behind `--help`: what one would want to do, and the line that does it.

pub const ROOT: &str = "\
Examples:
  Is the server there, and how fast is one caller?
    loadgen put
  A thousand callers over a hundred connections, to the member that leads, as many keys as requests:
    loadgen put --target-leader --conns=100 --clients=1000 --key-size=8 --sequential-keys --total=100000 \\
        --val-size=256 --key-space-size=100000 --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  How long do requests take at 5,000 per second, stalls of the server included?
    loadgen put --rate=5000 --open-loop --clients=1000 --conns=100 --total=100000
  Two programs side by side, as a page to show to others:
    loadgen compare --a kv-server=target/release/kv-server --b etcd=/usr/local/bin/etcd --html=report.html

Exit status: 0 if all went well; 1 if more calls failed than --max-errors, or the run could not begin or end; 2 for a command line
that makes no sense; 130 if you interrupted it. An interrupted run reports what it measured until then.

`loadgen COMMAND --help` shows the flags and examples of each command.";

pub const PUT: &str = "\
Examples:
  One caller, one request at a time: what a single write costs.
    loadgen put --conns=1 --clients=1 --val-size=256
  What etcd's own pages measure; they write one single key, because --key-space-size is 1 unless given:
    loadgen put --target-leader --conns=100 --clients=1000 --key-size=8 --sequential-keys --total=100000 --val-size=256
  The same with as many keys as requests:
    loadgen put --target-leader --conns=100 --clients=1000 --sequential-keys --total=100000 --val-size=256 \\
        --key-space-size=100000
  At most 500 per second (closed loop: a slow server slows the load) and exactly 500 per second (open loop):
    loadgen put --rate=500 --total=5000
    loadgen put --rate=500 --total=5000 --open-loop --clients=100
  Through TLS, as a user:
    loadgen put --endpoints=https://db:2379 --cacert=ca.pem --user=root
  Figures for a script, and a failure if more than ten calls failed:
    loadgen put --json=- --max-errors=10";

pub const RANGE: &str = "\
Examples:
  Linearizable reads of one key (the default), then serializable ones:
    loadgen range foo --conns=100 --clients=1000 --total=100000
    loadgen range foo --consistency=s --conns=100 --clients=1000 --total=100000
  Keys from a to before c, ten at most, without their values:
    loadgen range a c --limit=10 --keys-only
  How many keys begin with app/, or are there at all:
    loadgen range app/ --prefix --count-only
    loadgen range --prefix --count-only --total=1";

pub const TXN_PUT: &str = "\
Examples:
  Ten keys per transaction, out of a thousand:
    loadgen txn-put --txn-ops=10 --key-space-size=1000 --val-size=256 --total=10000";

pub const SUITE: &str = "\
Examples:
  The rows of etcd's own page against a cluster that runs already, a tenth of the published requests:
    loadgen suite docs-3.2 --name=staging --endpoints=10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379 --scale=0.1 --html=report.html
  Every suite on fresh clusters of one program, with its files on a disk worth measuring:
    loadgen suite all --program=etcd=/usr/local/bin/etcd --data-dir=/var/tmp --json=report.json --html=report.html
  How throughput holds up as clients become many, the log on a RAM disk:
    loadgen suite ibm-pmem --program=kv-server=target/release/kv-server --wal-dir=/dev/shm --html=report.html";

pub const COMPARE: &str = "\
Examples:
  Three members of each, started on this machine, the rows of etcd's own page:
    loadgen compare --a kv-server=target/release/kv-server --b etcd=/usr/local/bin/etcd docs-3.2 --members=3 \\
        --data-dir=/var/tmp --html=report.html --json=report.json
  All that was ever published, a tenth of the requests, half an hour:
    loadgen compare --a kv-server=target/release/kv-server --b etcd=/usr/local/bin/etcd all --scale=0.1 --html=report.html
  Two clusters that run already; what cannot be seen from outside is left out:
    loadgen compare --a kv-server --a-endpoints=10.0.0.1:2379 --b etcd --b-endpoints=10.0.1.1:2379 docs-3.2
  Make the page again later, or tables for a README:
    loadgen report report.json --html=report.html --markdown=report.md";

pub const REPORT: &str = "\
Examples:
  A page for a browser, without network or script; and every figure for a spreadsheet:
    loadgen report report.json --html=report.html --csv=report.csv
  Tables on standard output, if no file is named:
    loadgen report report.json >> README.md";

pub const COMPLETION: &str = "\
Examples:
  bash, for now or for good:
    source <(loadgen completion bash)
    loadgen completion bash > ~/.local/share/bash-completion/completions/loadgen
  zsh, in a directory that $fpath has:
    loadgen completion zsh > ~/.zfunc/_loadgen
  fish:
    loadgen completion fish > ~/.config/fish/completions/loadgen.fish";
