#!/usr/bin/env bash
# What TLS costs the servers: three members, clients and members inside TLS, beside the same in the clear and beside etcd.
#
#   benches/tls-cost.sh [ROUNDS]          default 3; wants target/dist/{kv-server,loadgen}, interop/bin/etcd, openssl and curl
#   REQUESTS=N ETCD=FILE BIN=DIR DIR=DIR PORT=N SYSTEMS="kv-server etcd"
#   FIRST="nice -n -10"     a command before each server and load, for a machine that does other things too
#
# Each round: puts of 256 B of 1000 clients on 100 connections, ranges of a key by the same, and 2000 puts in a second by 100
# clients, open loop, for their 99th percentile. CPU is that of all members, user and system, from /proc, for one request.
# Certificates are of P-256; TLS 1.3, as both negotiate it. What is compared runs in turn; medians of the rounds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-3} etcd=${ETCD:-interop/bin/etcd} bin=${BIN:-target/dist} base=${PORT:-26870} requests=${REQUESTS:-100000}
systems=${SYSTEMS:-kv-server etcd}
read -ra first <<<"${FIRST:-}"
dir=$(mktemp -d "${DIR:-target}/tls-cost.XXXXXX")
. benches/members.sh

declare -a figures=()
note() { # figure, value
    echo "$1: $2" >&2
    [[ -e $dir/$1 ]] || figures+=("$1")
    echo "$2" >>"$dir/$1"
}
generate() {
    local endpoints trust=()
    endpoints=$(clients 3 | sed "s|127|$scheme://127|g")
    [[ $scheme == http ]] || trust=(--cacert "$dir/ca.pem")
    "${first[@]}" "$bin/loadgen" "$@" --endpoints "$endpoints" "${trust[@]}" >"$dir/out" 2>&1 || { tail -5 "$dir/out"; exit 1; }
}
puts=(put --key-size 8 --val-size 256 --sequential-keys --key-space-size 100000)
heavy=(--conns 100 --clients 1000 --total "$requests")

measure() { # system, http or https
    local system=$1 before program=$bin/kv-server
    scheme=http secure=()
    [[ $2 == http ]] || secure
    [[ $system == etcd ]] && program=$etcd
    up 3 "${first[@]}" "$program" "${secure[@]}"
    generate "${puts[@]}" --conns 100 --clients 1000 --total $((requests / 5))
    before=$(seconds)
    generate "${puts[@]}" "${heavy[@]}"
    note "$system, $scheme, put: CPU, µs" "$(each "$before" "$requests")"
    note "$system, $scheme, put: requests per second" "$(rate "$dir/out")"
    before=$(seconds)
    generate range 00000001 "${heavy[@]}"
    note "$system, $scheme, range: CPU, µs" "$(each "$before" "$requests")"
    generate "${puts[@]}" --conns 100 --clients 100 --rate 2000 --open-loop --total 10000
    note "$system, $scheme, 2000 puts in a second: p99, ms" "$(percentile "$dir/out" 99)"
    down
}

for ((round = 1; round <= rounds; round++)); do
    for system in $systems; do
        measure "$system" http
        measure "$system" https
    done
done
echo "| medians of $rounds rounds | |"
echo "|---|--:|"
for figure in "${figures[@]}"; do echo "| $figure | $(median "$dir/$figure") |"; done
