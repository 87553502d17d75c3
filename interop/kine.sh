#!/usr/bin/env bash
# kv-server, etcd, and kine, which keeps its keys in SQLite, under the load of a Kubernetes cluster: one member each, in turn.
#
#   interop/kine.sh [ROUNDS]      default 3; builds kine into interop/bin (Go and a C compiler, some minutes)
#   SERVER=FILE LOADGEN=FILE KINE=FILE DIR=DIR NODES=50 SECONDS_EACH=6
#
# kine answers the part of etcd's API that Kubernetes uses, and no other: no Put, no YCSB, no suites. Prints Markdown.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-3} version=v0.17.5
server=${SERVER:-target/dist/kv-server} loadgen=${LOADGEN:-target/dist/loadgen} kine=${KINE:-interop/bin/kine}
[[ -x $kine ]] || GOBIN=$PWD/interop/bin go install "github.com/k3s-io/kine@$version"
dir=$(mktemp -d "${DIR:-target}/kine.XXXXXX")
base=${PORT:-26660}
stores=(kv-server etcd "kine $version")
pids=()
stop() {
    for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap stop EXIT

# member NAME PROGRAM PORT
member() {
    local client=http://127.0.0.1:$3 peer=http://127.0.0.1:$(($3 + 1))
    "$2" --data-dir "$dir/$1" --listen-client-urls "$client" --advertise-client-urls "$client" --listen-peer-urls "$peer" \
        --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" >"$dir/$1.log" 2>&1 &
    pids+=($!)
}
member kv-server "$server" "$base"
member etcd interop/bin/etcd $((base + 2))
"$kine" --listen-address "tcp://127.0.0.1:$((base + 4))" --metrics-bind-address 0 \
    --endpoint "sqlite://$dir/state.db?_journal=WAL&_synchronous=FULL" >"$dir/kine.log" 2>&1 &
pids+=($!)
for port in $base $((base + 2)) $((base + 4)); do
    for ((i = 0; i < 300; i++)); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
        sleep 0.1
    done
done

printf '| store | round | requests/s | failed | p50, ms | p99, ms | CPU, µs per request |\n|---|--:|--:|--:|--:|--:|--:|\n'
for ((round = 1; round <= rounds; round++)); do
    for ((store = 0; store < 3; store++)); do
        stat() { awk -v tick="$(getconf CLK_TCK)" '{print int(($14 + $15) * 1e6 / tick)}' "/proc/${pids[store]}/stat"; }
        before=$(stat)
        "$loadgen" kubernetes --nodes "${NODES:-50}" --duration "${SECONDS_EACH:-6}s" --clients 100 --conns 10 --prefix "round$round/" \
            --endpoints "127.0.0.1:$((base + 2 * store))" --json "$dir/run.json" >/dev/null 2>"$dir/errors" ||
            tail -n 3 "$dir/errors" >&2
        jq -r --arg row "${stores[store]} | $round" --argjson cpu $(($(stat) - before)) '. as $run
            | [.percentiles[] | {(.percent | tostring): (.seconds * 1e4 | round / 10)}] | add as $at
            | "| \($row) | \($run.requests_per_second | round) | \($run.failed) | \($at["50"]) | \($at["99"]) | \($cpu / $run.succeeded | round) |"' \
            "$dir/run.json"
    done
done
