#!/usr/bin/env bash
# How the cost of a request grows: with callers, with the size of values, with keys in the store, with members.
#
#   benches/growth.sh [TABLE…]      of: callers values keys members; wants target/dist/{kv-server,loadgen}
#   BIN=DIR DIR=DIR PORT=N KEYS="1000 10000000"
#
# One line per point, from fresh members: puts and linearizable ranges, processor time of all members for one request, requests per second, p99. One machine
# carries members and load, so rates and p99 are the machine's as well; processor time is the servers' own. Behind each table the same processor times as a
# plot, in the notation that Markdown viewers draw.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${BIN:-target/dist} base=${PORT:-26800}
dir=$(mktemp -d "${DIR:-target}/growth.XXXXXX")
. benches/members.sh

# Notes "µs | per second | p99" of a load.
point() { # members, requests, command…
    local requests=$2 endpoints before
    endpoints=$(clients "$1")
    shift 2
    before=$(seconds)
    "$bin/loadgen" "$@" --endpoints "$endpoints" --total "$requests" >"$dir/out" 2>&1 || { tail -5 "$dir/out" >&2; exit 1; }
    printf '%s | %s | %s |' "$(each "$before" "$requests")" "$(rate "$dir/out")" "$(percentile "$dir/out" 99)"
}
# A line: puts and ranges under the same load.
line() { # what it is of, members, puts, ranges, options of puts; then, behind --, options of both
    local name=$1 members=$2 puts=$3 ranges=$4
    local -a writing=()
    shift 4
    while [[ $1 != -- ]]; do writing+=("$1"); shift; done
    shift
    local put range
    put=$(point "$members" "$puts" put "${writing[@]}" "$@")
    range=$(point "$members" "$ranges" range key --consistency l "$@")
    echo "| $name | $put $range"
    names+=("$name") put_costs+=("${put%% |*}") range_costs+=("${range%% |*}")
}
declare -a names=() put_costs=() range_costs=()
plot() { # what grows; the points are those since the last plot
    local IFS=,
    printf '\n```mermaid\nxychart-beta\n    title "µs per request: puts above, linearizable ranges below"\n    x-axis "%s" [%s]\n    y-axis "µs"\n    line [%s]\n    line [%s]\n```\n' \
        "$1" "${names[*]}" "${put_costs[*]}" "${range_costs[*]}"
    names=() put_costs=() range_costs=()
}
head() { # what grows
    printf '\n| %s | put, µs | per second | p99, ms | range, µs | per second | p99, ms |\n|---|--:|--:|--:|--:|--:|--:|\n' "$1"
}
fresh() { up "$1" "$bin/kv-server"; }
heavy=(--conns 100 --clients 1000)
usual=(--key-size 8 --val-size 256 --key-space-size 100000)

tables=("$@")
((${#tables[@]} > 0)) || tables=(callers values keys members)
for table in "${tables[@]}"; do
    case $table in
    callers)
        head 'callers, on a connection per ten'
        for callers in 1 10 100 1000 10000; do
            fresh 3
            requests=$((callers < 100 ? 5000 * callers : 100000))
            line "$callers" 3 "$requests" "$requests" "${usual[@]}" -- --conns $(((callers + 9) / 10)) --clients "$callers"
            down
        done
        plot callers
        ;;
    values)
        head 'bytes of a value, 100 callers on 10 connections'
        for bytes in 16 256 4096 65536; do
            fresh 3
            requests=$((bytes > 60000 ? 3000 : 50000))
            line "$bytes" 3 "$requests" 50000 --key-size 8 --val-size "$bytes" --random-values --key-space-size 100000 -- --conns 10 --clients 100
            down
        done
        plot 'bytes of a value'
        ;;
    keys)
        head 'keys in the store, 1000 callers on 100 connections'
        for keys in ${KEYS:-1000 10000 100000 1000000}; do
            fresh 3
            "$bin/loadgen" put --endpoints "$(clients 3)" --total "$keys" --sequential-keys --key-size 8 --val-size 256 --key-space-size "$keys" "${heavy[@]}" >/dev/null 2>&1
            line "$keys" 3 100000 100000 --key-size 8 --val-size 256 --key-space-size "$keys" -- "${heavy[@]}"
            down
        done
        plot keys
        ;;
    members)
        head 'members, 1000 callers on 100 connections'
        for members in 1 3 5; do
            fresh "$members"
            line "$members" "$members" 100000 100000 "${usual[@]}" -- "${heavy[@]}"
            down
        done
        plot members
        ;;
    *) echo "there is no table $table"; exit 1 ;;
    esac
done
