#!/usr/bin/env bash
# What a store costs by its size: memory of a key and of a record of its history, reads and writes, a watch that catches up, compaction, a start after kill -9.
#
#   benches/size.sh [KEYS…]              default 1000000 5000000 10000000; wants {kv-server,loadgen} in target/dist
#   BIN=DIR DIR=DIR PORT=N KEY=16 VALUE=256 REQUESTS=20000 MEMBERS=1
#
# Members filled anew for each row. CPU is that of all of them, for one request; memory, disk and the start are those of the first one. "history" is one more
# record of every key. A watch that catches up is one from the first revision on, read until its last event. The compaction is to the newest revision: its CPU,
# the longest put meanwhile (1,000 a second, open loop), and the disk a minute after it, by live data. The start is until /health says true, and until a
# linearizable read is answered.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${BIN:-target/dist} base=${PORT:-27200} key=${KEY:-16} value=${VALUE:-256} requests=${REQUESTS:-20000} members=${MEMBERS:-1}
dir=$(mktemp -d "${DIR:-target}/size.XXXXXX")
. benches/members.sh

at=$(client 0) all=$(clients "$members")
cluster=$(for ((m = 0; m < members; m++)); do echo "m$m=$(peer $m)"; done | paste -sd,)
member() { # which
    "$bin/kv-server" --name "m$1" --data-dir "$dir/data/m$1" --quota-backend-bytes 68719476736 --listen-client-urls "http://$(client "$1")" \
        --advertise-client-urls "http://$(client "$1")" --listen-peer-urls "$(peer "$1")" --initial-advertise-peer-urls "$(peer "$1")" \
        --initial-cluster "$cluster" >>"$dir/m$1.log" 2>&1 &
    pid[$1]=$!
}
memory() { awk '/^RssAnon/ {print $2 * 1024}' "/proc/${pid[0]}/status"; }
disk() { du -sb "$dir/data/m0" | cut -f1; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN {printf "%.2f", b - a}'; }
json() { curl -sf "http://$at/v3/$1" -d "$2"; }
revision() { json kv/range '{"key":"AA=="}' | grep -o '"revision":"[0-9]*"' | grep -o '[0-9]*'; }
load() { "$bin/loadgen" "$@" --endpoints "$all" >"$dir/out" 2>&1 || { tail -n 5 "$dir/out" >&2; exit 1; }; }
# "CPU µs, p50 ms, p99 ms" of a load of so many requests.
cost() { # requests, command…
    local requests=$1 before
    shift
    load "$@" --total $((requests / 10 + 1))
    before=$(seconds)
    load "$@" --total "$requests"
    echo "$(each "$before" "$requests") | $(percentile "$dir/out" 50) | $(percentile "$dir/out" 99)"
}
settled() { # until the member has been idle for a second
    local before
    for ((i = 0; i < 300; i++)); do
        before=$(seconds)
        sleep 1
        awk -v a="$before" -v b="$(seconds)" 'BEGIN {exit !(b - a < 0.05)}' && return
    done
}

for keys in "${@:-1000000 5000000 10000000}"; do
    for count in $keys; do
        rm -rf "$dir/data"; mkdir "$dir/data"
        for ((m = 0; m < members; m++)); do member $m; done
        until curl -sf "http://$at/health" | grep true >/dev/null; do sleep 0.05; done
        put=(put --key-size "$key" --val-size "$value" --key-space-size "$count" --random-values --conns 20 --clients 400)
        settled; empty=$(memory)
        load "${put[@]}" --sequential-keys --total "$count"
        settled; filled=$(memory)
        live=$(disk)
        load "${put[@]}" --sequential-keys --total "$count"
        settled; history=$(memory)
        printf '\n%s keys of %s B, values of %s B: %s B of memory for a key, %s B for a record of history; disk %s MB with one record each, %s MB with two\n\n' "$count" "$key" "$value" \
            $(((filled - empty) / count)) $(((history - filled) / count)) $((live / 1000000)) $(($(disk) / 1000000))
        printf '| call | CPU, µs | p50, ms | p99, ms |\n|---|--:|--:|--:|\n'
        few=(--conns 1 --clients 4)
        echo "| put | $(cost "$requests" put --key-size "$key" --val-size "$value" --key-space-size "$count" "${few[@]}") |"
        # As far as an argument reaches, which is UTF-8: 245 of 256 first bytes.
        whole=("$(printf '\1')" $'\U10FFFF')
        echo "| first of a range | $(cost "$requests" range "${whole[@]}" --limit 1 "${few[@]}") |"
        echo "| page of 500 | $(cost $((requests / 20)) range "${whole[@]}" --limit 500 "${few[@]}") |"
        echo "| count | $(cost $((requests / 20)) range "${whole[@]}" --count-only "${few[@]}") |"
        begin=$(now) before=$(seconds)
        # Everything from revision 2 on; the last event ends it.
        last=$(revision)
        exec 3< <(exec curl -sN "http://$at/v3/watch" -d '{"create_request":{"key":"AA==","range_end":"AA==","start_revision":"2"}}')
        reader=$!
        grep -q "\"mod_revision\":\"$last\"" <&3
        kill "$reader"; exec 3<&-
        printf '\nA watch from the beginning: %s s, %s µs of CPU for an event (as JSON).\n' "$(since "$begin")" "$(each "$before" $((last - 1)))"
        "$bin/loadgen" put --endpoints "$all" --key-size "$key" --val-size "$value" --key-space-size "$count" --open-loop --rate 1000 --duration 60s --conns 4 --clients 100 >"$dir/beside" 2>&1 &
        beside=$!
        sleep 2
        begin=$(now) before=$(seconds)
        json kv/compaction "{\"revision\":\"$last\",\"physical\":true}" >/dev/null
        printf 'A compaction of %s records: %s s, with puts meanwhile %s s of CPU;' "$count" "$(since "$begin")" "$(awk -v a="$before" -v b="$(seconds)" 'BEGIN {printf "%.1f", b - a}')"
        wait $beside || { tail -n 5 "$dir/beside" >&2; exit 1; }
        printf ' the longest put of a minute %s ms, p99 %s ms; disk %s of live data.\n' "$(awk '$1 == "max" && !done {printf "%.1f", $3 * 1000; done = 1}' "$dir/beside")" \
            "$(percentile "$dir/beside" 99)" "$(awk -v a="$(disk)" -v b="$live" 'BEGIN {printf "%.2f", a / b}')"
        kill -9 "${pid[0]}"; wait "${pid[0]}" 2>/dev/null || true
        begin=$(now)
        member 0
        until json kv/range '{"key":"AA==","serializable":true}' >/dev/null 2>&1; do sleep 0.02; done
        printf 'A start after kill -9: %s s until a serializable read,' "$(since "$begin")"
        until curl -sf "http://$at/health" | grep true >/dev/null; do sleep 0.02; done
        printf ' %s s until healthy.\n' "$(since "$begin")"
        down
    done
done
