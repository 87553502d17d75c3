#!/usr/bin/env bash
# What it costs to list everything: API servers that read all objects at once, as one answer, in pages, as a stream; with puts meanwhile, next to etcd and to the floor.
#
#   benches/lists.sh                     wants {kv-server,loadgen} in target/dist, interop/bin (interop/build.sh) and python3
#   OBJECTS=100000 VALUE=8192 READERS=5 SYSTEMS="kv-server etcd"
#   ETCD_BIN=DIR BIN=DIR DIR=DIR PORT=N
#
# One member. Each reader lists all objects twice, on a connection of its own. GB/s and CPU count keys and values; memory is the highest resident size above that
# before the list. Puts: 500 a second, open loop, of 256 bytes on other keys. The floor is one thread that copies and sends the same bytes, a MiB at a time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${BIN:-target/dist} etcd=${ETCD_BIN:-interop/bin} base=${PORT:-27300}
objects=${OBJECTS:-100000} value=${VALUE:-8192} readers=${READERS:-5} times=2
dir=$(mktemp -d "${DIR:-target}/lists.XXXXXX")
. benches/members.sh
bytes=$((objects * (value + 16))) all_bytes=$((objects * (value + 16) * readers * times))

beside() { # seconds; ends the shell that calls it
    exec "$bin/loadgen" put --endpoints "$at" --key-size 32 --val-size 256 --key-space-size 1000 --open-loop --rate 500 --duration "$1s" --conns 2 --clients 50 >"$dir/puts" 2>&1
}
resident() { awk -v of="$1:" '$1 == of {print $2 * 1024}' "/proc/${pid[0]}/status"; }
lists() { # name, flags…
    local name=$1 before begin took cost rss
    shift
    echo 5 >"/proc/${pid[0]}/clear_refs" # the highest size begins anew
    rss=$(resident VmRSS)
    beside 600 & local puts=$!
    sleep 1
    before=$(seconds) begin=$(date +%s.%N)
    "$bin/loadgen" range --endpoints "$at" "$@" --conns "$readers" --clients "$readers" --total $((readers * times)) >"$dir/out" 2>&1 || { kill "$puts"; tail -5 "$dir/out" >&2; exit 1; }
    took=$(awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN {print b - a}') cost=$(each "$before" $((all_bytes / 1000000)))
    awk -v name="$name" -v took="$took" -v bytes=$all_bytes -v cost="$cost" -v rss="$rss" -v high="$(resident VmHWM)" \
        'BEGIN {printf "| %s | %.2f | %.2f | %.0f |", name, bytes / took / 1e9, cost / 1e3, (high - rss) / 1e6}'
    kill -INT "$puts" 2>/dev/null || true
    wait "$puts" || true
    echo " $(percentile "$dir/puts" 99) |"
}
# As far as an argument reaches, which is UTF-8: 245 of 256 first bytes.
all=("$(printf '\1')" $'\U10FFFF')

python3 - "$bytes" "$readers" <<'FLOOR'
import os, socket, sys, time
total, readers, part = int(sys.argv[1]), int(sys.argv[2]), 1 << 20
source = memoryview(os.urandom(part) * (total // part))
listener = socket.create_server(("127.0.0.1", 0))
for _ in range(readers):
    if os.fork() == 0:
        reader, into = socket.create_connection(listener.getsockname()), bytearray(part)
        while reader.recv_into(into):
            pass
        os._exit(0)
sockets = [listener.accept()[0] for _ in range(readers)]
begin, cpu = time.time(), time.process_time()
for at in range(0, len(source), part):
    for reader in sockets:
        reader.sendall(bytes(source[at : at + part]))
sent = len(source) * readers / 1e9
print(f"floor: {sent / (time.time() - begin):.2f} GB/s, {(time.process_time() - cpu) / sent:.2f} s of CPU for a GB")
FLOOR
for system in ${SYSTEMS:-kv-server etcd}; do
    program=$bin/kv-server
    [[ $system != etcd ]] || program=$etcd/etcd
    up 1 "$program"
    at=$(client 0)
    "$bin/loadgen" put --endpoints "$at" --total "$objects" --sequential-keys --key-size 16 --val-size "$value" --key-space-size "$objects" --random-values --conns 10 --clients 100 >"$dir/out" 2>&1
    (beside 10)
    printf '\n%s, %s objects of %s bytes, %s readers; puts alone: p99 %s ms\n\n| list | GB/s | CPU, s/GB | memory, MB | puts, p99, ms |\n|---|--:|--:|--:|--:|\n' \
        "$system" "$objects" "$value" "$readers" "$(percentile "$dir/puts" 99)"
    lists 'one answer' "${all[@]}"
    lists 'pages of 10,000' "${all[@]}" --paginate
    lists 'RangeStream' "${all[@]}" --stream
    down
done
