#!/usr/bin/env bash
# How far members grow with cores: processor time of each of their threads for a put, and the rate at which the busiest thread ends.
#
#   benches/serial-stages.sh [CORES…]    default 1 2; wants {kv-server,loadgen} in target/dist and taskset
#   BIN=DIR DIR=DIR PORT=N TOTAL=N MEMBERS=1 CLIENTS=1000
#
# Members have the first so many cores, the load generator the next as many, or the same ones where there are no others. Threads are those of the leader, by
# name; several of one name are added up, and may run on as many cores. `cargo bench -p benches --bench serial_stages` has the stages without sockets and disk.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${BIN:-target/dist} base=${PORT:-27100} total=${TOTAL:-200000} members=${MEMBERS:-1} callers=${CLIENTS:-1000}
dir=$(mktemp -d "${DIR:-target}/serial.XXXXXX")
. benches/members.sh

all=$(nproc) leader=0
# Nanoseconds of each thread of the leader: name, how many, time.
threads() {
    local task
    for task in /proc/"${pid[$leader]}"/task/*; do echo "$(tr ' ' _ <"$task/comm" | sed 's/[-_0-9]*$//') $(cut -d' ' -f1 "$task/schedstat")"; done |
        awk '{n[$1]++; t[$1] += $2} END {for (name in n) print name, n[name], t[name]}' | sort
}
for cores in "${@:-1 2}"; do
    for count in $cores; do
        servers=0-$((count - 1)) load=$servers
        ((2 * count > all)) || load=$count-$((2 * count - 1))
        up "$members" taskset -c "$servers" "$bin/kv-server"
        for ((leader = 0; leader < members; leader++)); do
            curl -sf "http://$(client $leader)/metrics" | grep '^etcd_server_is_leader 1' >/dev/null && break
        done
        ((leader < members)) || leader=0
        put=(taskset -c "$load" "$bin/loadgen" put --endpoints "$(clients "$members")" --conns 100 --clients "$callers" --key-size 8 --val-size 256 --key-space-size 1000000)
        "${put[@]}" --total $((total / 10)) >/dev/null 2>&1
        threads >"$dir/before"
        "${put[@]}" --total "$total" >"$dir/out" 2>&1 || { tail -5 "$dir/out" >&2; exit 1; }
        threads >"$dir/after"
        printf '\n%s core(s) for %s member(s), load on %s: %s puts/s, p99 %s ms\n\n| thread | of the name | µs for a put | one ends at, puts/s |\n|---|--:|--:|--:|\n' \
            "$count" "$members" "$load" "$(rate "$dir/out")" "$(percentile "$dir/out" 99)"
        join "$dir/before" "$dir/after" | awk -v n="$total" '{us = ($5 - $3) / 1000 / n; if (us >= 0.05) printf "| %s | %d | %.2f | %.0f |\n", $1, $4, us, $4 * 1e6 / us}' | sort -t'|' -k4 -rn
        down
    done
done
