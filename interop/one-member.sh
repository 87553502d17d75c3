#!/usr/bin/env bash
# One member full of keys, beside etcd: what it costs to fill, to keep, and to start again.
#
#   interop/one-member.sh [KEYS] [ROUNDS]   default 1000000 keys of 8 bytes with values of 256, and 5 rounds of starts
#   ETCD_BIN=DIR BIN=DIR DIR=DIR PORT=N     other programs than interop/bin and target/dist, another place, other ports
#
# Both are filled by loadgen, kv-server first; then they are started in turn, after a SIGTERM and after a kill -9. Ready is when /health says so,
# asked every few milliseconds. Bytes written are the kernel's count of what the process caused to be written to disk, so DIR must not be in memory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
keys=${1:-1000000} rounds=${2:-5}
etcd=${ETCD_BIN:-interop/bin}/etcd
bin=${BIN:-target/dist}
dir=$(mktemp -d "${DIR:-target}/one-member.XXXXXX")
port=${PORT:-26790}
pid=0
trap '[[ $pid == 0 ]] || kill -9 "$pid" 2>/dev/null || true; rm -rf "$dir"' EXIT

start() { # system
    local program=$bin/kv-server url=http://127.0.0.1:$port peer=http://127.0.0.1:$((port + 1))
    [[ $1 == etcd ]] && program=$etcd
    "$program" --name m0 --data-dir "$dir/$1" --listen-client-urls "$url" --advertise-client-urls "$url" --listen-peer-urls "$peer" \
        --initial-advertise-peer-urls "$peer" --initial-cluster "m0=$peer" --quota-backend-bytes 8589934592 >>"$dir/$1.log" 2>&1 &
    pid=$!
    until curl -sf "$url/health" 2>/dev/null | grep true >/dev/null; do
        kill -0 $pid || { tail -3 "$dir/$1.log"; exit 1; }
        sleep 0.002
    done
}

end() { kill "-$1" $pid; wait $pid 2>/dev/null || true; }
milliseconds() { echo $(($(date +%s%N) / 1000000)); }
resident() { awk '/VmRSS/ {printf "%.0f", $2 / 1024}' /proc/$pid/status; }
peak() { awk '/VmHWM/ {printf "%.0f", $2 / 1024}' /proc/$pid/status; }
written() { awk '/^write_bytes/ {print $2}' /proc/$pid/io; }
seconds() { awk -v hz="$(getconf CLK_TCK)" '{print ($14 + $15) / hz}' /proc/$pid/stat; }
median() { sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

declare -A figure
for system in kv-server etcd; do
    start $system
    "$bin/loadgen" put --endpoints "127.0.0.1:$port" --total "$keys" --key-size 8 --val-size 256 --sequential-keys \
        --key-space-size "$keys" --clients 100 --conns 10 >"$dir/load.out" 2>&1 || { tail -5 "$dir/load.out"; exit 1; }
    figure[$system.rate]=$(awk '/Requests\/sec/ {printf "%.0f", $2}' "$dir/load.out")
    figure[$system.cpu]=$(awk -v s="$(seconds)" -v n="$keys" 'BEGIN {printf "%.1f", s * 1e6 / n}')
    # At rest: what is written behind the load is written, and a minute of nothing has passed.
    sleep 60
    figure[$system.written]=$(awk -v b="$(written)" -v n="$keys" 'BEGIN {printf "%.0f", b / n}')
    figure[$system.rest]=$(resident)
    figure[$system.peak]=$(peak)
    figure[$system.disk]=$(du -sm "$dir/$system" | cut -f1)
    end TERM
done
for signal in TERM KILL; do
    for ((round = 1; round <= rounds; round++)); do
        for system in kv-server etcd; do
            [[ $signal == KILL ]] && { start $system; end KILL; }
            before=$(milliseconds)
            start $system
            echo $(($(milliseconds) - before)) >>"$dir/$system.$signal"
            resident >>"$dir/$system.started"
            echo >>"$dir/$system.started"
            end TERM
        done
    done
done
for system in kv-server etcd; do
    for signal in TERM KILL; do figure[$system.$signal]=$(median <"$dir/$system.$signal"); done
    figure[$system.started]=$(median <"$dir/$system.started")
done

row() { # what, figure
    awk -v what="$1" -v a="${figure[kv-server.$2]}" -v b="${figure[etcd.$2]}" 'BEGIN {printf "| %s | %s | %s | %.2f |\n", what, a, b, a / b}'
}
echo "| $keys keys, one member | kv-server | etcd | ratio |"
echo "|---|---|---|---|"
row "puts per second while it is filled" rate
row "server CPU per put, µs" cpu
row "bytes written to disk per put" written
row "on disk, MiB" disk
row "RSS at rest, MiB" rest
row "RSS at the peak, MiB" peak
row "from exec to ready after SIGTERM, ms" TERM
row "from exec to ready after kill -9, ms" KILL
row "RSS once ready, MiB" started
