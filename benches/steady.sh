#!/usr/bin/env bash
# What a put costs three members at the rates that clusters have, next to etcd and to the floor (benches/src/bin/floor.rs), and what idle members cost.
#
#   benches/steady.sh [ROUNDS]           default 5; wants interop/bin (interop/build.sh) and, in target/dist, kv-server, loadgen and
#                                        floor (`cargo build --profile dist -p benches --bin floor`)
#   RATES="100 1000 0 idle"              only these, of: 100 1000 5000 20000, 0 (one client that waits), idle
#   SYSTEMS="kv-server etcd floor"       only these; kv-server+tls and etcd+tls are inside mutual TLS, +user are used by a user of one role
#   ETCD_BIN=DIR BIN=DIR DIR=DIR PORT=N SECONDS_EACH=N
#
# Fresh members of all in turn, an open loop of 200 clients on 20 connections to all members, values of 256 bytes; medians of the rounds. Everything
# but p50 and p99 is of all three members, for one put (idle: for one second). System calls, syncs and switches are counted by perf, if it is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-5} etcd=${ETCD_BIN:-interop/bin} bin=${BIN:-target/dist} base=${PORT:-26900} each=${SECONDS_EACH:-8}
dir=$(mktemp -d "${DIR:-target}/steady.XXXXXX")
. benches/members.sh
events=raw_syscalls:sys_enter,syscalls:sys_enter_fdatasync,syscalls:sys_enter_fsync,context-switches

start() { # system
    local member program=$bin/kv-server
    scheme=http secure=() identity=() credentials=() all=$(clients 3)
    [[ $1 != etcd* ]] || program=$etcd/etcd
    case $1 in
    *+tls)
        secure
        identity=(--cert "$dir/member.pem" --key "$dir/member.key")
        up 3 "$program" "${secure[@]}" "--trusted-ca-file=$dir/ca.pem" --client-cert-auth
        all=${all//127.0/https://127.0} credentials=(--cacert "$dir/ca.pem" "${identity[@]}")
        ;;
    *+user)
        up 3 "$program"
        while read -r call json; do
            curl -sSf -o /dev/null "http://$(client 0)/v3/auth/$call" -d "$json"
        done <<USERS
user/add {"name":"root","password":"s3cret"}
user/grant {"user":"root","role":"root"}
role/add {"name":"all"}
role/grant {"name":"all","perm":{"permType":"READWRITE","key":"AA==","range_end":"AA=="}}
user/add {"name":"u","password":"s3cret"}
user/grant {"user":"u","role":"all"}
enable {}
USERS
        credentials=(--user "u:s3cret")
        ;;
    kv-server | etcd) up 3 "$program" ;;
    floor)
        pid=()
        for member in 0 1 2; do
            "$bin/floor" serve $member "$dir/floor.$member" "$all" &
            pid+=($!)
        done
        sleep 0.5
        ;;
    esac
}
load() { # system, rate, seconds
    local generator=("$bin/loadgen" put --endpoints "$all" "${credentials[@]}" --duration "${3}s" --key-size 8 --val-size 256 --key-space-size 100000)
    case $1.$2 in
    *.idle) sleep "$3" ;;
    floor.0) "$bin/floor" drive 0 "$3" 1 "$all" ;;
    floor.*) "$bin/floor" drive "$2" "$3" 20 "$all" ;;
    *.0) "${generator[@]}" ;;
    *) "${generator[@]}" --open-loop --rate "$2" --conns 20 --clients 200 ;;
    esac >"$dir/out" 2>&1 || { tail -5 "$dir/out"; exit 1; }
}
# Processor nanoseconds of all threads: /proc/PID/stat counts in hundredths of a second.
nanoseconds() { for member in "${pid[@]}"; do cat /proc/"$member"/task/*/schedstat; done | awk '{s += $1} END {printf "%.0f", s}'; }
measure() { # system, rate
    local before counting='' puts member
    load "$1" "$2" 2
    if perf stat -e "$events" true >/dev/null 2>&1; then
        perf stat -x, -o "$dir/counts" -e "$events" -p "$(IFS=,; echo "${pid[*]}")" 2>/dev/null &
        counting=$!
    fi
    before=$(nanoseconds)
    load "$1" "$2" "$each"
    [[ -z $counting ]] || { kill -INT $counting; wait $counting || true; }
    puts=$each
    [[ $2 == idle ]] || puts=$(awk -v r="$(rate "$dir/out")" -v s="$each" 'BEGIN {print r * s}')
    awk -v a="$before" -v b="$(nanoseconds)" -v n="$puts" 'BEGIN {printf "%.1f\n", (b - a) / 1000 / n}' >>"$dir/$2.$1.cpu"
    if [[ $2 != idle ]]; then
        for member in 50 99; do percentile "$dir/out" $member >>"$dir/$2.$1.p$member"; echo >>"$dir/$2.$1.p$member"; done
    fi
    [[ -z $counting ]] || awk -F, -v n="$puts" -v to="$dir/$2.$1." \
        '/sys_enter,|sys_enter:|raw_syscalls/ {print $1 / n >to "calls"} /sync/ {s += $1 / n} /context/ {print $1 / n >to "switches"} END {print s >to "syncs"}' \
        <(sed 's/^ *//' "$dir/counts" | grep -v '^#')
}

systems=${SYSTEMS:-kv-server etcd floor} rates=${RATES:-100 1000 5000 20000 0 idle}
for ((round = 1; round <= rounds; round++)); do
    for rate in $rates; do
        for system in $systems; do
            start "$system"
            measure "$system" "$rate"
            down
        done
    done
done
echo "| puts a second | system | CPU, µs | p50, ms | p99, ms | system calls | switches | syncs |"
echo "|---|---|--:|--:|--:|--:|--:|--:|"
for rate in $rates; do
    for system in $systems; do
        printf '| %s | %s |' "$rate" "$system"
        for figure in cpu p50 p99 calls switches syncs; do
            printf ' %s |' "$([[ -s $dir/$rate.$system.$figure ]] && median "$dir/$rate.$system.$figure" || echo –)"
        done
        echo
    done
done
