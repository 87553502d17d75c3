#!/usr/bin/env bash
# kv-server, etcd, and kine, which keeps its keys in SQLite, under the load of a Kubernetes cluster: one fresh member each, in turn.
#
#   interop/kine.sh [ROUNDS]      default 3; builds kine into interop/bin (Go and a C compiler, some minutes)
#   SERVER=FILE LOADGEN=FILE KINE=FILE DIR=DIR PORT=N NODES=50 SECONDS_EACH=6
#
# kine answers the part of etcd's API that Kubernetes uses, and no other: no Put, no YCSB, no suites. Prints Markdown.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-3} version=v0.17.5 base=${PORT:-26660}
server=${SERVER:-target/dist/kv-server} loadgen=${LOADGEN:-target/dist/loadgen} kine=${KINE:-interop/bin/kine}
[[ -x $kine ]] || GOBIN=$PWD/interop/bin go install "github.com/k3s-io/kine@$version"
dir=$(mktemp -d "${DIR:-target}/kine.XXXXXX")
. benches/members.sh

up_kine() {
    rm -f "$dir"/state.db*
    "$kine" --listen-address "tcp://$(client 0)" --metrics-bind-address 0 \
        --endpoint "sqlite://$dir/state.db?_journal=WAL&_synchronous=FULL" >"$dir/kine.log" 2>&1 &
    pid=($!)
    until (exec 3<>"/dev/tcp/127.0.0.1/$base") 2>/dev/null; do
        kill -0 "${pid[0]}" || { tail -3 "$dir/kine.log"; exit 1; }
        sleep 0.1
    done
}

printf '| store | round | requests/s | failed | p50, ms | p99, ms | CPU, µs per request |\n|---|--:|--:|--:|--:|--:|--:|\n'
for ((round = 1; round <= rounds; round++)); do
    for store in kv-server etcd "kine $version"; do
        case $store in
            kv-server) up 1 "$server" ;;
            etcd) up 1 interop/bin/etcd ;;
            *) up_kine ;;
        esac
        rm -f "$dir/run.json"
        before=$(seconds)
        "$loadgen" kubernetes --nodes "${NODES:-50}" --duration "${SECONDS_EACH:-6}s" --clients 100 --conns 10 --endpoints "$(client 0)" \
            --json "$dir/run.json" >/dev/null 2>"$dir/errors" || tail -n 3 "$dir/errors" >&2
        jq -r --arg row "$store | $round" --arg cpu "$(each "$before" "$(jq .succeeded "$dir/run.json")")" '. as $run
            | [.percentiles[] | {(.percent | tostring): (.seconds * 1e4 | round / 10)}] | add as $at
            | "| \($row) | \($run.requests_per_second | round) | \($run.failed) | \($at["50"]) | \($at["99"]) | \($cpu) |"' "$dir/run.json"
        down
    done
done
