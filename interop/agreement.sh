#!/usr/bin/env bash
# Do loadgen and etcd's own benchmark say the same of the same etcd?
#
#   interop/agreement.sh [ROUNDS]      default 7; wants interop/bin (interop/build.sh) and target/release/loadgen
#   ETCD_BIN=DIR LOADGEN=FILE DIR=DIR  other programs, another directory for etcd's files
#
# One member of etcd, both clients in turn, medians with the least and the most. Where the machine has room to spare (one caller, or a
# fixed rate) the figures must agree: the medians may lie no further apart than the rounds of both do. Under full load on one machine they
# cannot: the client that costs less leaves more to the server. That row is shown and not judged.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-7}
bin=${ETCD_BIN:-interop/bin}
loadgen=${LOADGEN:-target/release/loadgen}
dir=$(mktemp -d "${DIR:-target}/agreement.XXXXXX")
client=${PORT:-26690} peer=$((${PORT:-26690} + 1))
endpoint=127.0.0.1:$client

"$bin/etcd" --data-dir "$dir/data" --listen-client-urls "http://$endpoint" --advertise-client-urls "http://$endpoint" \
    --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
    --initial-cluster "default=http://127.0.0.1:$peer" >"$dir/log" 2>&1 &
etcd=$!
trap 'kill $etcd 2>/dev/null; wait $etcd 2>/dev/null || true; rm -rf "$dir"' EXIT
for ((i = 0; i < 100; i++)); do
    curl -sf "http://$endpoint/health" >/dev/null && break
    sleep 0.1
done

# name, judged or shown, arguments of both
loads=(
    "put-1|judged|put --conns=1 --clients=1 --total=2000 --key-size=8 --val-size=256 --sequential-keys --key-space-size=2000"
    "put-rate-1000|judged|put --conns=10 --clients=100 --rate=1000 --total=5000 --key-size=8 --val-size=256 --sequential-keys --key-space-size=5000"
    "range-l-1|judged|range foo --consistency=l --conns=1 --clients=1 --total=4000"
    "range-s-rate-2000|judged|range foo --consistency=s --conns=10 --clients=100 --rate=2000 --total=10000"
    "put-1000|shown|put --conns=100 --clients=1000 --total=20000 --key-size=8 --val-size=256 --sequential-keys --key-space-size=20000"
)

# Requests per second, mean, p50 and p99 in milliseconds, from a report of either client.
figures() {
    awk '/Requests\/sec:/ {rate = $2} /Average:/ {mean = $2 * 1000} /^  50% in/ {p50 = $3 * 1000} /^  99% in/ {p99 = $3 * 1000}
        END {print rate, mean, p50, p99}'
}

for load in "${loads[@]}"; do
    IFS='|' read -r name judged arguments <<<"$load"
    : >"$dir/$name.benchmark"
    : >"$dir/$name.loadgen"
    for ((round = 0; round <= rounds; round++)); do
        for tool in benchmark loadgen; do
            program=$bin/benchmark
            [[ $tool == loadgen ]] && program=$loadgen
            # shellcheck disable=SC2086
            "$program" --endpoints="$endpoint" --precise $arguments 2>/dev/null >"$dir/out"
            # Round 0 warms up.
            [[ $round -gt 0 ]] && figures <"$dir/out" >>"$dir/$name.$tool"
        done
    done
done

failed=0
printf '%-18s %-13s %34s %34s   %s\n' load figure 'benchmark (least … most)' 'loadgen (least … most)' verdict
for load in "${loads[@]}"; do
    IFS='|' read -r name judged _ <<<"$load"
    column=0
    for figure in requests/s mean-ms p50-ms p99-ms; do
        column=$((column + 1))
        paste -d' ' <(cut -d' ' -f$column "$dir/$name.benchmark" | sort -g) <(cut -d' ' -f$column "$dir/$name.loadgen" | sort -g) |
            awk -v name="$name" -v figure="$figure" -v judged="$judged" '
                {a[NR] = $1; b[NR] = $2}
                END {
                    middle = int((NR + 1) / 2)
                    gap = a[middle] > b[middle] ? a[middle] - b[middle] : b[middle] - a[middle]
                    noise = (a[NR] - a[1]) > (b[NR] - b[1]) ? a[NR] - a[1] : b[NR] - b[1]
                    verdict = judged == "shown" ? "not judged" : (gap <= noise ? "agree" : "DIFFER")
                    printf "%-18s %-13s %14.3f (%.3f … %.3f) %14.3f (%.3f … %.3f)   %s\n",
                        name, figure, a[middle], a[1], a[NR], b[middle], b[1], b[NR], verdict
                    exit verdict == "DIFFER"
                }' || failed=1
    done
done
exit $failed
