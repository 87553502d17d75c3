#!/usr/bin/env bash
# Do loadgen's open loop and ghz, an independent generator, say the same of one server, also when it stands still for a second?
#
#   interop/ghz.sh PROGRAM [RATE [SECONDS]]   default 200 puts per second for 20 s; PROGRAM is kv-server or interop/bin/etcd
#   LOADGEN=FILE GHZ=FILE DIR=DIR STRICT=1    other programs, another directory; fail where they differ by more than 5 % and 50 µs
#
# One member, both in turn, and again with the server stopped for one second in the middle. ghz starts each request at its moment and
# waits for none (--async); its percentiles are computed here from all its latencies.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=$1 rate=${2:-200} seconds=${3:-20}
loadgen=${LOADGEN:-target/dist/loadgen} ghz=${GHZ:-interop/bin/ghz}
[[ -x $ghz ]] || GOBIN=$PWD/interop/bin go install github.com/bojand/ghz/cmd/ghz@v0.93.0
dir=$(mktemp -d "${DIR:-target}/ghz.XXXXXX")
client=127.0.0.1:${PORT:-26680} peer=http://127.0.0.1:$((${PORT:-26680} + 1))
total=$((rate * seconds))

"$program" --data-dir "$dir/data" --listen-client-urls "http://$client" --advertise-client-urls "http://$client" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" >"$dir/log" 2>&1 &
server=$!
trap 'kill -KILL $server 2>/dev/null; wait $server 2>/dev/null || true; rm -rf "$dir"' EXIT
for ((i = 0; i < 300; i++)); do
    curl -sf "http://$client/health" >/dev/null && break
    sleep 0.1
done

# p50, p99 and p99.9 in milliseconds.
of_loadgen() {
    "$loadgen" put --endpoints "$client" --open-loop --rate "$rate" --total "$total" --clients $((rate * 2)) --conns 10 \
        --val-size 8 --json "$dir/loadgen.json" >&2
    jq -r '[.. | objects | select(has("p999_ms") and .p999_ms != null)][0] | "\(.p50_ms) \(.p99_ms) \(.p999_ms)"' "$dir/loadgen.json"
}
of_ghz() {
    "$ghz" --insecure --import-paths proto --proto proto/rpc.proto --call etcdserverpb.KV.Put --data '{"key":"Z2h6","value":"dmFsdWUtMDE="}' \
        --async --rps "$rate" --total "$total" --concurrency $((rate * 2)) --connections 10 --format json --output "$dir/ghz.json" "$client"
    jq -r '[.details[].latency / 1e6] | sort | . as $all | [0.5, 0.99, 0.999] | map($all[[(. * ($all | length) | ceil) - 1, 0] | max]) |
        join(" ")' "$dir/ghz.json"
}

printf '| server | generator | p50, ms | p99, ms | p99.9, ms |\n|---|---|--:|--:|--:|\n'
differ=0
for state in running frozen; do
    declare -A found
    for generator in loadgen ghz; do
        if [[ $state == frozen ]]; then
            (sleep $((seconds / 2)) && kill -STOP $server && sleep 1 && kill -CONT $server) &
        fi
        found[$generator]=$(of_$generator 2>>"$dir/notes")
        [[ $state == frozen ]] && wait $!
        awk -v name="$state | $generator" '{printf "| %s | %.3f | %.3f | %.3f |\n", name, $1, $2, $3}' <<<"${found[$generator]}"
    done
    awk '{for (i = 1; i <= 3; i++) {d = $i - $(i + 3); d = d < 0 ? -d : d; if (d > 0.05 && d > 0.05 * $(i + 3)) bad = 1}} END {exit bad}' \
        <<<"${found[loadgen]} ${found[ghz]}" || { echo "$state: they differ by more than 5 % and 50 µs" && differ=1; }
done
[[ -z ${STRICT:-} || $differ == 0 ]]
