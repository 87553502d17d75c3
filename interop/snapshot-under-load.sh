#!/usr/bin/env bash
# What clients of a leader feel while it streams a gigabyte to a follower that has lost its store.
#
#   interop/snapshot-under-load.sh [ROUNDS]      default 3; wants target/dist/{kv-server,loadgen}
#   BIN=DIR DIR=DIR PORT=N RATE=N MEBIBYTES=N    other programs, another place, other ports, another load
#
# Three members; values of 256 KiB until there is a gigabyte; then puts of 256 bytes at a fixed rate, open loop, at the leader, so that latency
# counts from the moment a put was meant to be sent. In each round: latency of three members; the third is killed and its store emptied; latency of two; latency
# in windows of five seconds from its start until it has everything. In the end the hashes of all members must be equal.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-3} bin=${BIN:-target/dist} base=${PORT:-26310} rate=${RATE:-500} mebibytes=${MEBIBYTES:-1024}
dir=$(mktemp -d "${DIR:-target}/snapshot.XXXXXX")
declare -a pid=(0 0 0)
trap 'kill -9 "${pid[@]}" 2>/dev/null || true; rm -rf "$dir"' EXIT

client() { echo "127.0.0.1:$((base + 2 * $1))"; }
peer() { echo "http://127.0.0.1:$((base + 2 * $1 + 1))"; }
cluster=m0=$(peer 0),m1=$(peer 1),m2=$(peer 2)

start() {
    : >"$dir/m$1.log"
    "$bin/kv-server" --name "m$1" --data-dir "$dir/m$1" --listen-client-urls "http://$(client "$1")" --advertise-client-urls "http://$(client "$1")" \
        --listen-peer-urls "$(peer "$1")" --initial-advertise-peer-urls "$(peer "$1")" --initial-cluster "$cluster" \
        --quota-backend-bytes 8589934592 --snapshot-catchup-entries 100 >"$dir/m$1.log" 2>&1 &
    pid[$1]=$!
}
ready() { until grep -q "ready to serve" "$dir/m$1.log"; do kill -0 "${pid[$1]}"; sleep 0.1; done; }
metric() { curl -sf "http://$(client "$1")/metrics" | awk -v name="$2" '$1 == name {print $2}'; }
leads() { [[ $(metric "$1" etcd_server_is_leader) == 1 ]]; }

# p50 and p99 in milliseconds of so many puts at the rate.
load() {
    "$bin/loadgen" put --endpoints "$(client "$leader")" --total "$1" --rate "$rate" --open-loop --val-size 256 --key-space-size 100000 \
        --clients 64 --conns 8 2>/dev/null | awk '/50% in/ && !a {a = $3} /99% in/ && !b {b = $3} END {printf "%.1f %.1f\n", a * 1000, b * 1000}'
}

median() { awk -v field="$1" '{print $field}' "$dir/during" | sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
ratio() { awk -v a="$1" -v b="$three99" 'BEGIN {printf "%.2f", a / b}'; }

for member in 0 1 2; do start $member; done
for member in 0 1 2; do ready $member; done
"$bin/loadgen" put --endpoints "$(client 0),$(client 1),$(client 2)" --target-leader --total $((mebibytes * 4)) --val-size 262144 --key-space-size 100000 \
    --sequential-keys --clients 16 --conns 4 >/dev/null 2>&1
sleep 5
for leader in 0 1 2; do leads $leader && break; done
follower=$(((leader + 1) % 3))
echo "p50 and p99 in ms; of the windows while it streams the median and the worst; ratios of p99 to that of three members"
echo "| round | three members | two | while it streams | seconds of it | worst window | ratio | worst |"
echo "|---|---|---|---|---|---|---|---|"
for ((round = 1; round <= rounds; round++)); do
    read -r three50 three99 <<<"$(load $((rate * 15)))"
    kill -9 "${pid[$follower]}"
    wait "${pid[$follower]}" 2>/dev/null || true
    rm -rf "$dir/m$follower/store"
    read -r two50 two99 <<<"$(load $((rate * 15)))"
    start $follower
    SECONDS=0
    : >"$dir/during"
    until grep -q "ready to serve" "$dir/m$follower.log"; do
        kill -0 "${pid[$follower]}"
        load $((rate * 5)) >>"$dir/during"
        took=$SECONDS
    done
    grep -q "installed a snapshot" "$dir/m$follower.log" || { echo "the log was enough: nothing was streamed"; exit 1; }
    during50=$(median 1) during99=$(median 2)
    worst=$(awk '$2 > worst {worst = $2} END {print worst}' "$dir/during")
    echo "| $round | $three50, $three99 | $two50, $two99 | $during50, $during99 | $took | $worst | $(ratio "$during99") | $(ratio "$worst") |"
done
"$bin/loadgen" put --endpoints "$(client 0),$(client 1),$(client 2)" --target-leader --total $((mebibytes * 4)) --val-size 262144 --key-space-size 100000 \
    --sequential-keys --clients 16 --conns 4 >/dev/null 2>&1
sleep 5
for leader in 0 1 2; do leads $leader && break; done
follower=$(((leader + 1) % 3))
echo "p50 and p99 in ms; of the windows while it streams the median and the worst; ratios of p99 to that of three members"
echo "| round | three members | two | while it streams | seconds of it | worst window | ratio | worst |"
echo "|---|---|---|---|---|---|---|---|"
for ((round = 1; round <= rounds; round++)); do
    read -r three50 three99 <<<"$(load $((rate * 15)))"
    kill -9 "${pid[$follower]}"
    wait "${pid[$follower]}" 2>/dev/null || true
    rm -rf "$dir/m$follower/store"
    read -r two50 two99 <<<"$(load $((rate * 15)))"
    start $follower
    SECONDS=0
    : >"$dir/during"
    until grep -q "ready to serve" "$dir/m$follower.log"; do
        kill -0 "${pid[$follower]}"
        load $((rate * 5)) >>"$dir/during"
        took=$SECONDS
    done
    grep -q "installed a snapshot" "$dir/m$follower.log" || { echo "the log was enough: nothing was streamed"; exit 1; }
    during50=$(median 1) during99=$(median 2)
    worst=$(awk '$2 > worst {worst = $2} END {print worst}' "$dir/during")
    echo "| $round | $three50, $three99 | $two50, $two99 | $during50, $during99 | $took | $worst | $(ratio "$during99") | $(ratio "$worst") |"
done
"$bin/loadgen" put --endpoints "$(client 0),$(client 1),$(client 2)" --total 1 --check-hashkv 2>/dev/null | grep -i hash
