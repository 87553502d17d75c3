#!/usr/bin/env bash
# YCSB A to F and the load of a Kubernetes cluster, on three members of kv-server and of etcd in turn.
#
#   interop/ycsb.sh [ROUNDS]                     default 3; wants interop/bin (interop/build.sh) and both programs in target/dist
#   ETCD_BIN=DIR SERVER=FILE LOADGEN=FILE DIR=DIR SECONDS_EACH=6 WORKLOADS='a b c d e f kubernetes'
#
# Prints, as Markdown, the medians of both and their ratio: requests per second, p50, p99, and processor time of all members per request.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-3}
seconds=${SECONDS_EACH:-6}
loadgen=${LOADGEN:-target/dist/loadgen}
dir=$(mktemp -d "${DIR:-target}/ycsb.XXXXXX")
base=${PORT:-26810}
pids=()

stop() {
    for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap stop EXIT

# Three members of a program, whose ports begin at $3.
start() {
    local members=m1=http://127.0.0.1:$(($3 + 1)),m2=http://127.0.0.1:$(($3 + 3)),m3=http://127.0.0.1:$(($3 + 5))
    for n in 1 2 3; do
        local client=http://127.0.0.1:$(($3 + 2 * n - 2)) peer=http://127.0.0.1:$(($3 + 2 * n - 1))
        "$2" --name m$n --data-dir "$dir/$1-$n" --listen-client-urls "$client" --advertise-client-urls "$client" \
            --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "$members" \
            >"$dir/$1-$n.log" 2>&1 &
        pids+=($!)
    done
    for n in 0 2 4; do
        for ((i = 0; i < 300; i++)); do
            curl -sf "http://127.0.0.1:$(($3 + n))/health" >/dev/null && break
            sleep 0.1
        done
    done
}

declare -A at=([kv-server]=$base [etcd]=$((base + 10)))
start kv-server "${SERVER:-target/dist/kv-server}" "${at[kv-server]}"
start etcd "${ETCD_BIN:-interop/bin}/etcd" "${at[etcd]}"

for workload in ${WORKLOADS:-a b c d e f kubernetes}; do
    for ((round = 1; round <= rounds; round++)); do
        for system in kv-server etcd; do
            port=${at[$system]}
            load=(ycsb --workload="$workload" --records=10000 --prefix="ycsb/$workload$round/")
            [[ $workload == kubernetes ]] && load=(kubernetes --nodes=50)
            "$loadgen" "${load[@]}" --duration="${seconds}s" --clients=100 --conns=10 --json="$dir/$workload-$system-$round.json" \
                --endpoints="127.0.0.1:$port,127.0.0.1:$((port + 2)),127.0.0.1:$((port + 4))" >/dev/null 2>"$dir/errors" ||
                { cat "$dir/errors"; echo "$workload on $system, round $round: failed"; }
        done
    done
done

python3 - "$dir" "$rounds" "${WORKLOADS:-a b c d e f kubernetes}" <<'PYTHON'
import json, statistics, sys
directory, rounds, workloads = sys.argv[1], int(sys.argv[2]), sys.argv[3].split()
def figures(workload, system):
    runs = []
    for n in range(1, rounds + 1):
        try:
            run = json.load(open(f"{directory}/{workload}-{system}-{n}.json"))
        except (OSError, ValueError):
            continue
        at = {it["percent"]: it["seconds"] * 1e3 for it in run["percentiles"]}
        cpu = sum(it["cpu_seconds"] for it in run["server"]["processes"]) if run["server"] else float("nan")
        runs.append((run["requests_per_second"], at.get(50.0, 0), at.get(99.0, 0), cpu * 1e6 / run["succeeded"]))
    return [statistics.median(column) for column in zip(*runs)]
print("| workload | requests/s: kv-server, etcd, ratio | p50 ms | p99 ms | server CPU/request µs |")
print("|---|--:|--:|--:|--:|")
for workload in workloads:
    ours, theirs = figures(workload, "kv-server"), figures(workload, "etcd")
    if ours and theirs:
        cells = [f"{a:,.{d}f}, {b:,.{d}f}, {a / b if b else 0:.2f}" for a, b, d in zip(ours, theirs, (0, 2, 2, 0))]
        print(f"| {workload} | " + " | ".join(cells) + " |")
PYTHON
