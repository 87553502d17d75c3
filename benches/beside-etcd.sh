#!/usr/bin/env bash
# Three members beside three of etcd, for what `loadgen compare` has no row for: transactions, etcd's own load generator, a steady load,
# a compaction under it, idle connections, a slow disk.
#
#   benches/beside-etcd.sh [ROUNDS]      default 5; wants interop/bin (interop/build.sh) and target/dist/{kv-server,loadgen}
#   ROWS="open slow"                     only these rows, of: txn-put txn-mixed benchmark open compact idle slow
#   ETCD_BIN=DIR BIN=DIR DIR=DIR PORT=N  other programs, another place, other ports
#
# Fresh clusters of both in turn, kv-server first; medians of the rounds. CPU is that of all three servers, for one request or one second, from
# /proc. The disk of `slow` is slowed by strace, which holds up every sync for a sixth of a second.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-5} etcd=${ETCD_BIN:-interop/bin} bin=${BIN:-target/dist} base=${PORT:-26500}
rows=${ROWS:-txn-put txn-mixed benchmark open compact idle slow}
dir=$(mktemp -d "${DIR:-target}/beside-etcd.XXXXXX")
. benches/members.sh
all=$(clients 3)

# One figure of a round. Figures are shown in the order in which they first came.
declare -a figures=()
note() { # figure, system, value
    [[ -e $dir/$1.kv-server ]] || figures+=("$1")
    echo "$3" >>"$dir/$1.$2"
}
# Runs a load of so many requests and notes what it and the servers say.
load() { # row, system, requests, command…
    local row=$1 system=$2 requests=$3 before
    shift 3
    before=$(seconds)
    "$@" >"$dir/out" 2>&1 || { tail -5 "$dir/out"; exit 1; }
    note "$row: server CPU per request, µs" "$system" "$(each "$before" "$requests")"
    note "$row: requests per second" "$system" "$(rate "$dir/out")"
    local percent
    for percent in 50 99 99.9; do
        note "$row: p$percent, ms" "$system" "$(percentile "$dir/out" "$percent")"
    done
}
generator() { "$bin/loadgen" "$@"; }
heavy=(--conns 100 --clients 1000)
distinct=(--key-size 8 --val-size 256 --key-space-size 100000)
# Half of what etcd takes here, the same for both.
steady=(put --endpoints "$all" --open-loop --rate "${RATE:-5000}" "${distinct[@]}" "${heavy[@]}")

row_txn-put() { load txn-put "$1" 50000 generator txn-put --endpoints "$all" --total 50000 "${distinct[@]}" "${heavy[@]}"; }
row_txn-mixed() {
    load 'txn-mixed by benchmark' "$1" 20000 "$etcd/benchmark" --endpoints "$all" "${heavy[@]}" txn-mixed --total 20000 --key-size 8 --val-size 256 \
        --key-space-size 100000 --rw-ratio 1
}
row_benchmark() {
    load 'put by benchmark' "$1" 50000 "$etcd/benchmark" --endpoints "$all" "${heavy[@]}" put --total 50000 --sequential-keys "${distinct[@]}"
}
row_open() { load 'put, steady' "$1" 75000 generator "${steady[@]}" --total 75000; }
# A million revisions of a hundred thousand keys, compacted while the steady load runs.
row_compact() {
    generator put --endpoints "$all" --total 1000000 --sequential-keys "${distinct[@]}" "${heavy[@]}" >/dev/null 2>&1
    load 'put, steady, a million revisions' "$1" 75000 generator "${steady[@]}" --total 75000
    local revision
    revision=$(curl -sf "http://$(client 0)/metrics" | awk '$1 == "etcd_debugging_mvcc_current_revision" {printf "%.0f", $2}')
    (sleep 1 && "$etcd/etcdctl" --endpoints "$(client 0)" compaction "$revision" >/dev/null) &
    load 'put, steady, while they are compacted' "$1" 75000 generator "${steady[@]}" --total 75000
    wait $!
}
# A thousand connections that ask for nothing.
row_idle() {
    generator range foo --endpoints "$all" --conns 334 --clients 334 --rate 1 --total 30 >/dev/null 2>&1 &
    local idle=$! before
    sleep 5
    before=$(seconds)
    sleep 20
    note 'idle, 1,000 connections: server CPU, ms per second' "$1" "$(awk -v a="$before" -v b="$(seconds)" 'BEGIN {printf "%.1f", (b - a) * 50}')"
    kill $idle
    wait $idle 2>/dev/null || true
}
row_slow() {
    load 'put, six syncs per second' "$1" 10000 generator put --endpoints "$all" --total 10000 --sequential-keys "${distinct[@]}" "${heavy[@]}"
}
# With -D the tracer is a grandchild, and the server has the process number that it would have without.
syncs=fsync,fdatasync,sync_file_range
slow_disk=(strace -D -qq -f --seccomp-bpf -o /dev/null -e "trace=$syncs" -e "inject=$syncs:delay_enter=166ms")

for ((round = 1; round <= rounds; round++)); do
    for row in $rows; do
        for system in kv-server etcd; do
            program=$bin/kv-server
            [[ $system == etcd ]] && program=$etcd/etcd
            if [[ $row == slow ]]; then up 3 "${slow_disk[@]}" "$program"; else up 3 "$program"; fi
            "row_$row" $system
            down
        done
    done
done
echo "| medians of $rounds rounds | kv-server | etcd | ratio |"
echo "|---|--:|--:|--:|"
for figure in "${figures[@]}"; do
    ours=$(median "$dir/$figure.kv-server") theirs=$(median "$dir/$figure.etcd")
    echo "| $figure | $ours | $theirs | $(awk -v a="$ours" -v b="$theirs" 'BEGIN {if (b > 0) printf "%.2f", a / b}') |"
done
