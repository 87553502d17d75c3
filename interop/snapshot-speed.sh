#!/usr/bin/env bash
# How fast a gigabyte leaves a member as a file of etcd and comes in from one, and what clients notice.
#
#   interop/snapshot-speed.sh [ROUNDS]       default 3; wants target/dist/{kv-server,loadgen} and interop/bin
#   BIN=DIR ETCD_BIN=DIR DIR=DIR PORT=N      other programs, another place, another port
#   MEBIBYTES=N RATE=N                       default 1024 of values, and 500 puts of 256 bytes per second
#
# One member with values of 4 KiB that do not repeat, then one of etcd. In each round: p99 of puts at a fixed rate, open
# loop; then the same while `etcdctl snapshot save` runs again and again, into AWAY (default /dev/shm): a client is
# elsewhere, and does not write to the disk of the member. Speed is that of a save without the load, to a file; the
# greatest resident memory during it is sampled every 20 ms. The file is imported by `kvctl import`, and so is one
# that real etcd saved after the same load.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-3} bin=${BIN:-target/dist} etcd=${ETCD_BIN:-interop/bin} port=${PORT:-27350}
mebibytes=${MEBIBYTES:-1024} rate=${RATE:-500}
dir=$(mktemp -d "${DIR:-target}/snapshot-speed.XXXXXX")
pid=
away=$(mktemp -d "${AWAY:-/dev/shm}/snapshot-speed.XXXXXX")
trap '[[ -z $pid ]] || kill -9 "$pid" 2>/dev/null || true; rm -rf "$dir" "$away"' EXIT

start() { # system
    ! curl -s "http://127.0.0.1:$port/health" >/dev/null || { echo "another server listens at port $port"; exit 1; }
    local program=$bin/kv-server url=http://127.0.0.1:$port peer=http://127.0.0.1:$((port + 1))
    [[ $1 == etcd ]] && program=$etcd/etcd
    "$program" --name m0 --data-dir "$dir/$1" --listen-client-urls "$url" --advertise-client-urls "$url" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "m0=$peer" \
        --quota-backend-bytes 8589934592 >>"$dir/$1.log" 2>&1 &
    pid=$!
    until curl -sf "$url/health" 2>/dev/null | grep true >/dev/null; do kill -0 $pid; sleep 0.05; done
}
end() { kill $pid; wait $pid 2>/dev/null || true; }
fill() {
    "$bin/loadgen" put --endpoints "127.0.0.1:$port" --total $((mebibytes * 256)) --val-size 4096 --sequential-keys \
        --key-space-size $((mebibytes * 256)) --random-values --clients 64 --conns 8 >"$dir/load.out" 2>&1 ||
        { tail -5 "$dir/load.out"; exit 1; }
    sleep 10
}
save() { "$etcd/etcdctl" --endpoints "127.0.0.1:$port" --command-timeout 300s snapshot save "$1" >"$dir/save.out" 2>&1 || { cat "$dir/save.out" >&2; return 1; }; }
milliseconds() { echo $(($(date +%s%N) / 1000000)); }
resident() { awk '/VmRSS/ {printf "%.0f", $2 / 1024}' /proc/$pid/status; }
megabytes_per_second() { awk -v b="$(stat -c %s "$1")" -v t="$2" 'BEGIN {printf "%.0f", b / t / 1000}'; }
# p99 in milliseconds of so many seconds of puts.
p99() {
    "$bin/loadgen" put --endpoints "127.0.0.1:$port" --total $((rate * $1)) --rate "$rate" --open-loop --val-size 256 \
        --key-space-size 100000 --clients 64 --conns 8 2>/dev/null |
        awk '/99% in/ && !a {a = $3} END {printf "%.2f", a * 1000}'
}
# Saves a file, and says how fast and how much memory it took.
timed_save() {
    local before began worst=0 now
    before=$(resident)
    began=$(milliseconds)
    save "$dir/$1" &
    while kill -0 $! 2>/dev/null; do
        now=$(resident)
        ((now > worst)) && worst=$now
        sleep 0.02
    done
    wait $!
    echo "$(megabytes_per_second "$dir/$1" $(($(milliseconds) - began))) $((worst - before))"
}
import() {
    local began
    rm -rf "$dir/imported"
    began=$(milliseconds)
    "$bin/kvctl" import --from "$dir/$1" --data-dir "$dir/imported" --name m0 --initial-cluster m0=http://127.0.0.1:1 \
        --initial-advertise-peer-urls http://127.0.0.1:1 >/dev/null 2>&1
    megabytes_per_second "$dir/$1" $(($(milliseconds) - began))
    rm -rf "$dir/imported"
}

# p99 of puts, while saves go on one after the other.
p99_while_saving() {
    local saving stop=$away/stop
    (until [[ -e $stop ]]; do save "$away/other.db"; done) &
    saving=$!
    p99 10
    touch "$stop"
    wait $saving || true
    rm -f "$stop" "$away/other.db"
}

echo "| round | system | save, MB/s | growth of RSS, MiB | put p99, ms | while saving | import, MB/s |"
echo "|---|---|--:|--:|--:|--:|--:|"
for system in kv-server etcd; do
    start $system
    fill
    for ((round = 1; round <= rounds; round++)); do
        read -r speed growth <<<"$(timed_save $system.db)"
        quiet=$(p99 10)
        busy=$(p99_while_saving)
        echo "| $round | $system | $speed | $growth | $quiet | $busy | $(import $system.db) |"
    done
    end
done
