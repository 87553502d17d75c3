#!/usr/bin/env bash
# What a request costs the servers, beside a tonic server that answers without doing anything. Neither the machine's speed nor its mood is in these ratios, so
# they may be limits: the gate runs this, and a change that makes a request clearly dearer does not pass.
#
#   benches/beside-echo.sh [ROUNDS]      default 5; wants target/dist/{kv-server,loadgen} and target/dist/examples/echo
#   BIN=DIR DIR=DIR PORT=N               other programs, another place, other ports
#
# Processor time of all servers for one request, from /proc: 100 connections, 1000 callers, 8 B keys, 256 B values. In each round every row once, one after the
# other, servers fresh; medians of the rounds. Fails when a ratio is over its limit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-5} bin=${BIN:-target/dist} base=${PORT:-26700}
dir=$(mktemp -d "${DIR:-target}/beside-echo.XXXXXX")
. benches/members.sh

# Limits are a quarter above what was measured when they were set.
# row      members  requests  limit  what loadgen is told
rows='
echo       0        100000    1      range foo
range-s    1        100000    0.95   range foo --consistency s
range-l    3        100000    2.4    range foo
put        3        60000     5.0    put --key-size 8 --val-size 256 --key-space-size 100000
txn-put    3        60000     5.0    txn-put --key-size 8 --val-size 256 --key-space-size 100000
'

echo_up() {
    "$bin/examples/echo" tonic "$(client 0)" &
    pid=($!)
    until (exec 3<>"/dev/tcp/127.0.0.1/$base") 2>/dev/null; do kill -0 "${pid[0]}"; sleep 0.05; done
}
load() { # requests, endpoints, command…
    local requests=$1 endpoints=$2
    shift 2
    "$bin/loadgen" "$@" --endpoints "$endpoints" --conns 100 --clients 1000 --total "$requests" >"$dir/out" 2>&1 || { tail -5 "$dir/out"; exit 1; }
}

for ((round = 1; round <= rounds; round++)); do
    while read -r row members requests _ command; do
        if ((members == 0)); then echo_up; else up "$members" "$bin/kv-server"; fi
        endpoints=$(clients $((members > 0 ? members : 1)))
        # shellcheck disable=SC2086 # words, on purpose
        {
            load 10000 "$endpoints" $command
            before=$(seconds)
            load "$requests" "$endpoints" $command
        }
        each "$before" "$requests" >>"$dir/$row"
        down
    done < <(awk NF <<<"$rows")
done

echo "| medians of $rounds rounds | server CPU per request, µs | beside the echo | limit |"
echo "|---|--:|--:|--:|"
failed=0
while read -r row _ _ limit _; do
    cost=$(median "$dir/$row")
    ratio=$(awk -v a="$cost" -v b="$(median "$dir/echo")" 'BEGIN {printf "%.2f", a / b}')
    echo "| $row | $cost | $ratio | $limit |"
    awk -v a="$ratio" -v b="$limit" 'BEGIN {exit !(a > b)}' && { echo "$row costs $ratio times what the echo does: over its limit of $limit"; failed=1; }
done < <(awk NF <<<"$rows")
exit $failed
