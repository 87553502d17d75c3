#!/usr/bin/env bash
# Does a cluster keep its guarantees while members are killed, paused and changed, and while it has no quorum?
#
#   interop/verify.sh PROGRAM [MINUTES] [FLAG…]   PROGRAM is target/release/kv-server or interop/bin/etcd; flags are those of `checker verify`
#   CHECKER=FILE LOADGEN=FILE DIR=DIR FAULTS=none  other programs, another directory, a healthy cluster
#   FILL=5000000 CHURN=1000                       next to so many other keys, of which so many are put again in a second
#
# Three members on this machine. Each ten seconds, in turn: one is killed and started again; one is stopped for three seconds; two are
# down for four seconds; a fourth joins as a learner, is promoted and removed. Ends with the status of `checker verify`: 0 without a
# violation. Its output lists leaders and windows without a write.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=$1 minutes=${2:-10}
shift $(($# > 2 ? 2 : $#))
loadgen=${LOADGEN:-target/release/loadgen} checker=${CHECKER:-target/release/checker}
base=${PORT:-26710}
dir=$(mktemp -d "${DIR:-target}/verify.XXXXXX")
endpoints=127.0.0.1:$base,127.0.0.1:$((base + 10)),127.0.0.1:$((base + 20))
members=m1=http://127.0.0.1:$((base + 1)),m2=http://127.0.0.1:$((base + 11)),m3=http://127.0.0.1:$((base + 21))
declare -A pids
changes=0

# start NUMBER [FLAG…]
start() {
    local client=http://127.0.0.1:$((base + 10 * ($1 - 1))) peer=http://127.0.0.1:$((base + 10 * ($1 - 1) + 1))
    "$program" --name "m$1" --data-dir "$dir/m$1" --listen-client-urls "$client" --advertise-client-urls "$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "$members" \
        ${FILL:+--quota-backend-bytes=17179869184} "${@:2}" >>"$dir/m$1.log" 2>&1 &
    pids[$1]=$!
}

stop() {
    for pid in "${pids[@]}" ${churn:-}; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap stop EXIT

kill_member() {
    kill -KILL "${pids[$1]}" 2>/dev/null || true
    wait "${pids[$1]}" 2>/dev/null || true
}

ask() { curl -sf -m 5 "http://127.0.0.1:$base/v3/cluster/member/$1" -d "$2"; }

# The fourth member in the list, if it is there.
fourth() { ask list '{}' | tr '{' '\n' | grep -F "127.0.0.1:$((base + 31))\"" | grep -oE '"ID": ?"[0-9]+"' | tail -n 1; }

# Twenty seconds, and for what a store of many keys takes to arrive.
persist() {
    for ((i = 0; i < 100 + ${FILL:-0} / 2000; i++)); do
        "$@" >/dev/null && return
        sleep 0.2
    done
    echo "in vain: $*"
    return 1
}

change() {
    local peer=http://127.0.0.1:$((base + 31)) id
    # With many keys, the members that were down before take a while to serve again.
    added() { ask add "{\"peerURLs\":[\"$peer\"],\"isLearner\":true}" || fourth; }
    persist added || return 0
    id=$(fourth) || return 0
    start 4 --initial-cluster-state existing --initial-cluster "$members,m4=$peer"
    persist ask promote "{$id}" && changes=$((changes + 1))
    while fourth >/dev/null; do persist ask remove "{$id}" || true; done
    for ((i = 0; i < 50; i++)); do
        kill -0 "${pids[4]}" 2>/dev/null || break
        sleep 0.1
    done
    kill_member 4
    unset 'pids[4]'
    rm -rf "$dir/m4"
}

for n in 1 2 3; do start $n; done
for n in 0 10 20; do
    for ((i = 0; i < 300; i++)); do
        curl -sf "http://127.0.0.1:$((base + n))/health" >/dev/null && break
        sleep 0.1
    done
done

if [[ -n ${FILL:-} ]]; then
    put=(put --endpoints "$endpoints" --key-size 16 --val-size 256 --key-space-size "$FILL" --random-values --conns 20 --clients 400)
    "$loadgen" "${put[@]}" --sequential-keys --total "$FILL" >"$dir/fill" || { tail -n 5 "$dir/fill"; exit 1; }
    "$loadgen" "${put[@]}" --open-loop --rate "${CHURN:-1000}" --duration "$((minutes + 5))m" >"$dir/churn" 2>&1 &
    churn=$!
fi
"$checker" verify --endpoints "$endpoints" --minutes "$minutes" \
    --rate "${RATE:-500}" --clients 12 "$@" &
verify=$!

if [[ ${FAULTS:-all} != none ]]; then
    for ((turn = 0; ; turn++)); do
        for ((i = 0; i < 100; i++)); do
            kill -0 $verify 2>/dev/null || break 2
            sleep 0.1
        done
        n=$((turn / 4 % 3 + 1)) other=$(((turn / 4 + 1) % 3 + 1))
        case $((turn % 4)) in
            0)
                kill_member $n
                start $n
                ;;
            1)
                kill -STOP "${pids[$n]}"
                sleep 3
                kill -CONT "${pids[$n]}"
                ;;
            2)
                kill_member $n
                kill_member $other
                sleep 4
                start $n
                start $other
                ;;
            3) change ;;
        esac
    done
fi
status=0
wait $verify || status=$?
echo "faults: ${turn:-0}, $changes of them members that joined, voted and left"
exit $status
