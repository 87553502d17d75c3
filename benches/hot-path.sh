#!/usr/bin/env bash
# What a call of the hot path costs, beside etcd and beside the floor: processor time, rate, p50, p99 and system calls, by etcd's own load generator.
#
#   benches/hot-path.sh [ROUNDS]         default 5; wants interop/bin (interop/build.sh), target/dist/kv-server, and
#                                        `cargo build --profile dist -p http2 --example http2_echo`
#   ROWS="range-s put-all"               only these rows, of: range-s range-l put-all put-leader one floor calls threads
#   ETCD_BIN=DIR BIN=DIR ECHO=PROGRAM DIR=DIR PORT=N TOTAL=N
#
# Fresh clusters of three of both in turn, kv-server first; medians of the rounds. `floor` is a program of one thread that takes frames apart by
# hand and answers each with the same bytes, and `http2` this project's HTTP/2 with nothing behind it: one process or three, no cluster. `calls` counts
# system calls of the first member under strace, and `threads` processor time of each thread of it for a put. These two are taken once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-5} etcd=${ETCD_BIN:-interop/bin} bin=${BIN:-target/dist} base=${PORT:-26700} total=${TOTAL:-60000}
echo=${ECHO:-target/dist/examples/http2_echo} rows=${ROWS:-range-s range-l put-all put-leader one floor}
dir=$(mktemp -d "${DIR:-target}/hot-path.XXXXXX")
. benches/members.sh
all=$(clients 3)

declare -a figures=()
note() { # figure, system, value
    [[ " ${figures[*]} " == *" ${1// /_} "* ]] || figures+=("${1// /_}")
    echo "$3" >>"$dir/${1// /_}.$2"
}
load() { # row, system, requests, endpoints, command…
    local row=$1 system=$2 requests=$3 endpoints=$4 before
    shift 4
    before=$(seconds)
    "$etcd/benchmark" --endpoints "$endpoints" "$@" --total "$requests" >"$dir/out" 2>&1 || { tail -5 "$dir/out"; exit 1; }
    note "$row: CPU µs" "$system" "$(each "$before" "$requests")"
    note "$row: per second" "$system" "$(rate "$dir/out")"
    note "$row: p50 ms" "$system" "$(percentile "$dir/out" 50)"
    note "$row: p99 ms" "$system" "$(percentile "$dir/out" 99)"
}
heavy=(--conns 100 --clients 1000)
put=(put --key-size 8 --val-size 256 --key-space-size 100000)
leader() {
    local status id leads
    for endpoint in ${all//,/ }; do
        status=$("$etcd/etcdctl" --endpoints "$endpoint" endpoint status -w fields)
        id=$(awk '$1 == "\"MemberID\"" {print $3}' <<<"$status") leads=$(awk '$1 == "\"Leader\"" {print $3}' <<<"$status")
        [[ $id == "$leads" ]] && echo "$endpoint" && return
    done
    exit 1
}
row_range-s() { load 'range, serializable' "$1" "$total" "$all" "${heavy[@]}" range foo --consistency=s; }
row_range-l() { load 'range, linearizable' "$1" "$total" "$all" "${heavy[@]}" range foo --consistency=l; }
row_put-all() { load 'put to all' "$1" "$((total / 2))" "$all" "${heavy[@]}" "${put[@]}"; }
row_put-leader() { load 'put to the leader' "$1" "$((total / 2))" "$(leader)" "${heavy[@]}" "${put[@]}"; }
row_one() {
    load 'one client, put' "$1" 2000 "$all" "${put[@]}"
    load 'one client, range, serializable' "$1" 10000 "$all" range foo --consistency=s
}
# The same load on one process, and spread over three as over three members. /proc/PID/stat counts in hundredths of a
# second.
row_floor() {
    local mode count member
    for mode in floor http2; do
        for count in 1 3; do
            pid=()
            for ((member = 0; member < count; member++)); do
                "$echo" "$mode" "$(client $member)" &
                pid+=($!)
            done
            sleep 0.3
            load 'range, serializable' "$mode, $count" "$total" "$(clients $count)" "${heavy[@]}" range foo --consistency=s
            down
        done
    done
    # One member, to compare with one process.
    up 1 "$bin/kv-server"
    load 'range, serializable' 'kv-server, one' "$total" "$(client 0)" "${heavy[@]}" range foo --consistency=s
    down
}
# System calls for each request of one member, ten callers on a connection.
calls() {
    up 1 "$bin/kv-server"
    local tracer kind
    for kind in 's' 'l'; do
        strace -f -c -o "$dir/calls" -p "${pid[0]}" 2>/dev/null &
        tracer=$!
        sleep 1
        "$etcd/benchmark" --endpoints "$(client 0)" "${heavy[@]}" range foo --consistency=$kind --total 20000 >/dev/null 2>&1
        kill -INT $tracer
        wait $tracer || true
        echo "system calls of a range --consistency=$kind:" "$(awk '$4 ~ /^[0-9]+$/ && $4 > 200 {printf "%s %.3f, ", $NF, $4 / 20000}' "$dir/calls")"
    done
    down
}
# Processor time of each thread, by name, for a put to one member.
threads() {
    up 1 "$bin/kv-server"
    load 'warm' warm "$total" "$(client 0)" "${heavy[@]}" put --key-size 8 --val-size 256 --key-space-size 1000000
    local before
    times() { for task in "/proc/${pid[0]}/task"/*; do echo "$(tr ' ' _ <"$task/comm")" "$(cut -d' ' -f1 "$task/schedstat")"; done; }
    times >"$dir/before"
    "$etcd/benchmark" --endpoints "$(client 0)" "${heavy[@]}" put --key-size 8 --val-size 256 --key-space-size 1000000 --total "$((2 * total))" \
        >/dev/null 2>&1
    times >"$dir/after"
    awk -v n="$((2 * total))" 'FNR == NR {s[$1] -= $2; next} {s[$1] += $2} END {for (t in s) if (s[t] > n * 20) printf "%s %.2f µs for a put\n", t, s[t] / n / 1000}' \
        "$dir/before" "$dir/after" | sort -k2 -rn
    down
}

for ((round = 1; round <= rounds; round++)); do
    for system in kv-server etcd; do
        members=
        for row in $rows; do
            case $row in floor | calls | threads) continue ;; esac
            [[ -n $members ]] || up 3 "$([[ $system == etcd ]] && echo "$etcd/etcd" || echo "$bin/kv-server")"
            members=3
            "row_$row" $system
        done
        [[ -z $members ]] || down
    done
    if [[ " $rows " == *' floor '* ]]; then row_floor; fi
done
if [[ " $rows " == *' calls '* ]]; then calls; fi
if [[ " $rows " == *' threads '* ]]; then threads; fi
echo "| medians of $rounds rounds | kv-server | etcd | ratio | floor: one, three | http2: one, three | one member |"
echo "|---|--:|--:|--:|--:|--:|--:|"
for figure in "${figures[@]}"; do
    for system in kv-server etcd 'floor, 1' 'floor, 3' 'http2, 1' 'http2, 3' 'kv-server, one'; do
        if [[ -e $dir/$figure.$system ]]; then median "$dir/$figure.$system"; else echo -; fi
    done | paste -s | awk -F'\t' -v figure="${figure//_/ }" '{r = $2 + 0 > 0 && $1 + 0 > 0 ? sprintf("%.2f", $1 / $2) : "-"; printf "| %s | %s | %s | %s | %s, %s | %s, %s | %s |\n", figure, $1, $2, r, $3, $4, $5, $6, $7}'
done
