#!/usr/bin/env bash
# Archives a member to a bucket of a real S3 server, and restores from there.
#
#   interop/archive-s3.sh        wants kv-server and kvctl in target/debug, interop/bin/etcdctl, python3 with venv, and PyPI
#   BIN=DIR DIR=DIR              another place of the programs, another place for files
#   VENV=DIR                     a Python environment that is kept; moto is installed into it if it is missing
#
# moto's server on loopback is the bucket. The archiver is killed once and goes on. HashKV of the restored member must be
# that of the first one at the same revision.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${BIN:-target/debug}
dir=$(mktemp -d "${DIR:-target}/archive-s3.XXXXXX")
port=$((21000 + $$ % 1000 * 8))
declare -a pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null || true; rm -rf "$dir"' EXIT

venv=${VENV:-$dir/venv} moto=5.2.5
if ! "$venv/bin/pip" show moto 2>/dev/null | grep -x "Version: $moto" >/dev/null; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "moto[server]==$moto"
fi
"$venv/bin/moto_server" -H 127.0.0.1 -p "$port" >"$dir/moto.log" 2>&1 &
pids+=($!)
export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_REGION=us-east-1
until curl -sf -X PUT "$AWS_ENDPOINT_URL/backups" >/dev/null; do sleep 0.1; done

# member NAME PORT: starts the member in $dir/NAME.
member() {
    local client=http://127.0.0.1:$2 peer=http://127.0.0.1:$(($2 + 1))
    "$bin/kv-server" --data-dir "$dir/$1" --listen-client-urls "$client" --advertise-client-urls "$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" >"$dir/$1.log" 2>&1 &
    pids+=($!)
    until grep -qs "ready to serve" "$dir/$1.log"; do kill -0 $!; sleep 0.1; done
}
archive() {
    "$bin/kvctl" archive --endpoints "127.0.0.1:$1" --to s3://backups/kv/a --segment-every 200ms >>"$dir/archive.log" 2>&1 &
    archiver=$!
    pids+=("$archiver")
}
ctl() { interop/bin/etcdctl --endpoints "127.0.0.1:$1" "${@:2}"; }
hash_at() { ctl "$1" endpoint hashkv --rev "$2" | awk -F', ' '{print $2}'; }
# How many segments the bucket has.
segments() { curl -sf "$AWS_ENDPOINT_URL/backups?list-type=2&prefix=kv/a/log/" | grep -o '<Key>' | wc -l; }
written() { until (($(segments) > $1)); do kill -0 "$archiver"; sleep 0.1; done; }

first=$((port + 2)) second=$((port + 4))
member first "$first"
for i in $(seq 20); do ctl "$first" put "k$i" 1 >/dev/null; done
archive "$first"
until grep -qs "archiving" "$dir/archive.log"; do kill -0 "$archiver"; sleep 0.1; done
for i in $(seq 10); do ctl "$first" put "k$i" 2 >/dev/null; done
written 0
kill -9 "$archiver"
for i in $(seq 10); do ctl "$first" del "k$i" >/dev/null; done
had=$(segments)
archive "$first"
written "$had"
kill "$archiver"
wait "$archiver"
for revision in 25 31 36; do
    "$bin/kvctl" restore --from s3://backups/kv/a --revision $revision --data-dir "$dir/second" \
        --initial-advertise-peer-urls "http://127.0.0.1:$((second + 1))" --initial-cluster "default=http://127.0.0.1:$((second + 1))"
    member second "$second"
    theirs=$(hash_at "$first" $revision) ours=$(hash_at "$second" $revision)
    [[ -n $ours && $theirs == "$ours" ]] || { echo "revision $revision: HashKV $theirs in the first member, $ours restored"; exit 1; }
    kill "${pids[-1]}" && wait "${pids[-1]}" || true
    rm -rf "$dir/second"
done
echo "archived to a bucket and restored at 3 revisions: HashKV as in the first member"
