#!/bin/sh
# Starts three members under load and injects one of five faults, for someone who does not know which: can it
# be found from the status page alone?
#
#   interop/blind-faults.sh DIR [NUMBER]     the fault is chosen at random without a number
#
# 1 a killed follower, 2 a slow disk, 3 one client that floods, 4 a quota that is nearly full, 5 a clock that
# is off. DIR must not exist. The pages are printed; the fault is in DIR/answer. SIGTERM or ^C ends all.
# SERVER and LOADGEN name the programs. Needs strace, libfaketime and an address other than 127.0.0.1.
set -eu
dir=$1
server=${SERVER:-target/debug/kv-server}
loadgen=${LOADGEN:-target/debug/loadgen}
mkdir "$dir"
fault=${2:-$(($(od -An -N2 -tu2 /dev/urandom) % 5 + 1))}
host=$(hostname -I | cut -d' ' -f1)
base=$((20000 + $(od -An -N2 -tu2 /dev/urandom) % 10000))
faketime=$(find /usr/lib -name libfaketime.so.1 -print -quit)
peers=m1=http://127.0.0.1:$((base + 11)),m2=http://127.0.0.1:$((base + 12)),m3=http://127.0.0.1:$((base + 13))
pids=
trap 'kill -9 $pids 2>/dev/null' EXIT
trap 'exit 0' INT TERM

for n in 1 2 3; do
    echo +0 >"$dir/clock$n"
    client=http://127.0.0.1:$((base + n)),http://$host:$((base + n))
    LD_PRELOAD=$faketime FAKETIME_TIMESTAMP_FILE=$dir/clock$n FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_CACHE_DURATION=1 \
        "$server" --name m$n --data-dir "$dir/m$n" --listen-client-urls "$client" --advertise-client-urls "$client" \
        --listen-peer-urls http://127.0.0.1:$((base + 10 + n)) \
        --initial-advertise-peer-urls http://127.0.0.1:$((base + 10 + n)) --initial-cluster "$peers" \
        --listen-metrics-urls http://127.0.0.1:$((base + 20 + n)) --metrics-top 20 \
        --quota-backend-bytes 67108864 >"$dir/log$n" 2>&1 &
    eval "pid$n=$!"
    pids="$pids $!"
done
until curl -sf "http://127.0.0.1:$((base + 21))/readyz" >/dev/null; do sleep 1; done
endpoints=127.0.0.1:$((base + 1)),127.0.0.1:$((base + 2)),127.0.0.1:$((base + 3))
"$loadgen" put --endpoints "$endpoints" --rate 50 --duration 1h --key-space-size 500 --val-size 100 --conns 3 \
    --clients 3 >"$dir/load" 2>&1 &
pids="$pids $!"
for n in 1 2 3; do echo "http://127.0.0.1:$((base + 20 + n))/ui/"; done | tee "$dir/pages"
sleep "${QUIET_S:-40}"

role() { curl -s "http://127.0.0.1:$((base + 20 + $1))/ui/status.json" | grep -o '"role":"[a-z]*"'; }
one=$(($(od -An -N2 -tu2 /dev/urandom) % 3 + 1))
while [ "$fault" = 1 ] && role "$one" | grep leader >/dev/null; do one=$((one % 3 + 1)); done
eval "pid=\$pid$one"
echo "$fault of m$one" >"$dir/answer"
case $fault in
1) kill -9 "$pid" ;;
2)
    strace -qq -f -p "$pid" -e trace=fdatasync,fsync -e inject=fdatasync,fsync:delay_enter=300000 \
        -o /dev/null >/dev/null 2>&1 &
    pids="$pids $!"
    ;;
3)
    "$loadgen" range "" --prefix --endpoints "$host:$((base + one))" --duration 1h --conns 4 --clients 40 \
        >"$dir/fault" 2>&1 &
    pids="$pids $!"
    ;;
4)
    "$loadgen" put --endpoints "127.0.0.1:$((base + one))" --total 900 --rate 30 --key-space-size 900 \
        --sequential-keys --val-size 65536 --random-values >"$dir/fault" 2>&1 &
    pids="$pids $!"
    ;;
5) echo +90 >"$dir/clock$one" ;;
esac
echo "The fault is there."
sleep "${FAULT_S:-3600}"
