#!/usr/bin/env bash
# The load of a Kubernetes cluster on three members, at the rate of its nodes, next to etcd.
#
#   benches/kubernetes.sh                wants {kv-server,loadgen} in target/dist, interop/bin (interop/build.sh) and python3
#   NODES=25000 FOR=300s SYSTEMS="kv-server etcd"
#   ETCD_BIN=DIR BIN=DIR DIR=DIR PORT=N
#
# An open loop, after all objects were made. CPU is that of all members, for an operation with its watch events. Disk at the end,
# with what the log keeps. What the load generator warns of, such as a schedule that it missed, follows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${BIN:-target/dist} etcd=${ETCD_BIN:-interop/bin} base=${PORT:-27400} nodes=${NODES:-25000}
dir=$(mktemp -d "${DIR:-target}/kubernetes.XXXXXX")
. benches/members.sh

for system in ${SYSTEMS:-kv-server etcd}; do
    program=$bin/kv-server
    [[ $system != etcd ]] || program=$etcd/etcd
    up 3 "$program"
    rm -f "$dir/run.json"
    "$bin/loadgen" kubernetes --endpoints "$(clients 3)" --nodes "$nodes" --open-loop --duration "${FOR:-300s}" --clients 500 --conns 50 --json "$dir/run.json" >"$dir/out" 2>&1 || tail -n 5 "$dir/out"
    printf '\n%s, %s nodes; disk of a member, MB: %s\n' "$system" "$nodes" "$(du -s --block-size=1000000 "$dir"/data/* | cut -f1 | paste -sd,)"
    python3 - "$dir/run.json" <<'TABLE'
import json, re, sys
run = json.load(open(sys.argv[1]))
print("\n| operation | done | failed | p50, ms | p99, ms | longest, ms |\n|---|--:|--:|--:|--:|--:|")
for part in run["parts"] + [run | {"title": "Total all Ops"}]:
    if part["succeeded"]:
        of = {each["percent"]: f"{each['seconds'] * 1e3:.1f}" for each in part["percentiles"]}
        name = re.match("Total (.*) Ops", part["title"])[1]
        print(f"| {name} | {part['succeeded']} | {part['failed']} | {of.get(50.0, '')} | {of.get(99.0, '')} | {part['slowest_seconds'] * 1e3:.0f} |")
print()
TABLE
    sed -n '/^Server:/,$p' "$dir/out"
    down
done
