#!/usr/bin/env bash
# Does a cluster keep its guarantees while its members are killed and paused?
#
#   interop/verify.sh PROGRAM [MINUTES] [FLAG…]   PROGRAM is target/release/kv-server or interop/bin/etcd; flags are those of `loadgen verify`
#   LOADGEN=FILE DIR=DIR FAULTS=none              another load generator, another directory, a healthy cluster
#
# Three members on this machine. Each ten seconds one of them, in turn, is killed and started again, or stopped for three seconds. Ends
# with the status of `loadgen verify`: 0 if nothing contradicts. A page with rates, leaders and windows without a write is kept in DIR.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=$1 minutes=${2:-10}
shift $(($# > 2 ? 2 : $#))
loadgen=${LOADGEN:-target/release/loadgen}
base=${PORT:-26710}
page=${DIR:-target}/verify-$(basename "$program").html
dir=$(mktemp -d "${DIR:-target}/verify.XXXXXX")
members=m1=http://127.0.0.1:$((base + 1)),m2=http://127.0.0.1:$((base + 11)),m3=http://127.0.0.1:$((base + 21))
declare -A pids

start() {
    local client=http://127.0.0.1:$((base + 10 * ($1 - 1))) peer=http://127.0.0.1:$((base + 10 * ($1 - 1) + 1))
    "$program" --name "m$1" --data-dir "$dir/m$1" --listen-client-urls "$client" --advertise-client-urls "$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "$members" \
        >>"$dir/m$1.log" 2>&1 &
    pids[$1]=$!
}

stop() {
    for pid in "${pids[@]}" ${faults:-}; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap stop EXIT

for n in 1 2 3; do start $n; done
for n in 0 10 20; do
    for ((i = 0; i < 300; i++)); do
        curl -sf "http://127.0.0.1:$((base + n))/health" >/dev/null && break
        sleep 0.1
    done
done

"$loadgen" verify --endpoints "127.0.0.1:$base,127.0.0.1:$((base + 10)),127.0.0.1:$((base + 20))" --minutes "$minutes" \
    --rate "${RATE:-500}" --clients 12 --html "$page" "$@" &
verify=$!

if [[ ${FAULTS:-all} != none ]]; then
    for ((turn = 0; ; turn++)); do
        for ((i = 0; i < 100; i++)); do
            kill -0 $verify 2>/dev/null || break 2
            sleep 0.1
        done
        n=$((turn % 3 + 1))
        if ((turn / 3 % 2 == 0)); then
            kill -KILL "${pids[$n]}"
            wait "${pids[$n]}" 2>/dev/null || true
            start $n
        else
            kill -STOP "${pids[$n]}"
            sleep 3
            kill -CONT "${pids[$n]}"
        fi
    done
fi
status=0
wait $verify || status=$?
echo "page: $page"
exit $status
