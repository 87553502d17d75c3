#!/usr/bin/env bash
# What users, the audit log and the JSON gateway cost the server.
#
#   benches/auth-cost.sh [ROUNDS]          default 5; wants target/dist/{kv-server,loadgen}, interop/bin/etcd and curl
#   ROWS="users audit"                     only these rows, of: users audit passwords gateway
#   REQUESTS=N ETCD=FILE BIN=DIR DIR=DIR PORT=N   requests of a load (default 50000), other programs, another place, other ports
#   FIRST="nice -n -10"                    a command before each server and load, for a machine that does other things too
#
#   users      put and range at 1000 clients, without auth, and by a user of 10 roles with 100 ranges each
#   audit      put at 1000 clients, without an audit log, and with one at the level of requests
#   passwords  put of 100 healthy clients, alone, and beside 100 clients that send 10 wrong passwords in a second each
#   gateway    put and range over HTTP/1, 64 clients, by `loadgen compare`
#
# One member. CPU is the server's, user and system, from /proc, for one request. What is compared runs in turn; medians of the rounds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-5} etcd=${ETCD:-interop/bin/etcd} bin=${BIN:-target/dist} base=${PORT:-26850} requests=${REQUESTS:-50000}
rows=${ROWS:-users audit passwords gateway}
read -ra first <<<"${FIRST:-}"
dir=$(mktemp -d "${DIR:-target}/auth-cost.XXXXXX")
. benches/members.sh

declare -a figures=()
note() { # figure, value
    [[ -e $dir/$1 ]] || figures+=("$1")
    echo "$2" >>"$dir/$1"
}
server() { # system, flags…
    local program=$bin/kv-server
    [[ $1 == etcd ]] && program=$etcd
    shift
    up 1 "${first[@]}" "$program" "$@"
}
generate() { "${first[@]}" "$bin/loadgen" "$@" --endpoints "$(client 0)" >"$dir/out" 2>&1 || { tail -5 "$dir/out"; exit 1; }; }
heavy=(--conns 100 --clients 1000 --total "$requests")
puts=(put --key-size 8 --val-size 256 --sequential-keys --key-space-size 100000)
# Runs a load and notes the processor time of each request.
cost() { # figure, command…
    local figure=$1 before
    shift
    before=$(seconds)
    generate "$@"
    note "$figure: server CPU per request, µs" "$(each "$before" "$requests")"
}

post() { curl -sSf -o /dev/null -H "authorization: ${3:-}" -d "$2" "http://$(client 0)/v3/auth/$1"; }
# Of two bytes and what follows, in hexadecimal, as base64.
base64_of() { local text; text=$(sed 's/../\\x&/g' <<<"$1"); printf "$text" | base64; }
# 1000 ranges that do not adjoin. A key of the load is foo, or below 7f, or begins with an even byte from 80 on and has no third byte ff.
ranges() {
    local first second
    echo 00 6601
    echo 666f6f 7f
    for ((first = 128; first < 256; first += 2)); do
        for ((second = 0; second < 15; second++)); do
            printf '%02x%02x %02x%02xff\n' $first $((17 * second)) $first $((second < 14 ? 17 * second + 16 : 255))
        done
    done
    for ((second = 0; second < 38; second++)); do printf '81%02x 81%02x80\n' $second $second; done
}

# Root, and a user `u` of 10 roles with 100 ranges each. Written once, for curl, as one request after another.
users() {
    local role=0 count=0 key end
    if [[ ! -e $dir/users ]]; then
        {
            user_json() { echo "$1 {\"name\":\"$2\",\"password\":\"s3cret\"}"; }
            user_json user/add root
            user_json user/add u
            echo 'user/grant {"user":"root","role":"root"}'
            while read -r key end; do
                if ((count++ % 100 == 0)); then
                    role=$((role + 1))
                    echo "role/add {\"name\":\"r$role\"}"
                    echo "user/grant {\"user\":\"u\",\"role\":\"r$role\"}"
                fi
                echo "role/grant {\"name\":\"r$role\",\"perm\":{\"permType\":\"READWRITE\",\"key\":\"$(base64_of "$key")\",\"range_end\":\"$(base64_of "$end")\"}}"
            done < <(ranges)
        } >"$dir/users"
    fi
    while read -r path json; do
        printf 'url = "http://%s/v3/auth/%s"\ndata = "%s"\noutput = /dev/null\nfail\nnext\n' "$(client 0)" "$path" "${json//\"/\\\"}"
    done <"$dir/users" | sed '$d' >"$dir/requests"
    curl -sS -K "$dir/requests"
}
token() { curl -sSf -d '{"name":"root","password":"s3cret"}' "http://$(client 0)/v3/auth/authenticate" | sed 's/.*"token":"\([^"]*\)".*/\1/'; }

row_users() {
    # What a password costs is not a request's.
    server kv-server --bcrypt-cost=4
    users
    local round
    generate "${puts[@]}" "${heavy[@]}"
    for ((round = 1; round <= rounds; round++)); do
        # Each load stands beside its counterpart, and each comes first as often as the other.
        cost 'put, without auth' "${puts[@]}" "${heavy[@]}"
        post enable '{}'
        cost 'put, with auth' "${puts[@]}" "${heavy[@]}" --user u:s3cret
        cost 'range, with auth' range foo "${heavy[@]}" --user u:s3cret
        post disable '{}' "$(token)"
        cost 'range, without auth' range foo "${heavy[@]}"
    done
    down
}

row_audit() {
    local round
    for ((round = 1; round <= rounds; round++)); do
        server kv-server
        generate "${puts[@]}" "${heavy[@]}"
        cost 'put, without audit log' "${puts[@]}" "${heavy[@]}"
        down
        rm -f "$dir/audit"
        server kv-server "--audit-log=$dir/audit" --audit-log-level=requests
        generate "${puts[@]}" "${heavy[@]}"
        cost 'put, audit log of requests' "${puts[@]}" "${heavy[@]}"
        note 'put, audit log of requests: lines lost, %' "$(curl -sf "http://$(client 0)/metrics" |
            awk '$1 ~ /^kv_server_audit_log_lost/ {l = $2} $1 ~ /^kv_server_audit_log_lines/ {w = $2} END {printf "%.1f", 100 * l / (l + w)}')"
        down
    done
}

row_passwords() {
    local round system number
    local healthy=("${puts[@]}" --conns 100 --clients 100 --rate 500 --open-loop --total 5000 --user u:s3cret)
    for ((round = 1; round <= rounds; round++)); do
        for system in kv-server etcd; do
            server $system
            users
            post enable '{}'
            generate "${healthy[@]}"
            note "$system, put alone: p99, ms" "$(percentile "$dir/out" 99)"
            # The load has its token before the guessing begins.
            local guessing=()
            generate "${healthy[@]}" &
            local load=$!
            sleep 2
            for ((number = 0; number < 100; number++)); do
                curl -s -o /dev/null --max-time 60 --rate 36000/h -d '{"name":"u","password":"wrong"}' \
                    "http://$(client 0)/v3/auth/authenticate?[1-600]" &
                guessing+=($!)
            done
            wait $load
            note "$system, put beside wrong passwords: p99, ms" "$(percentile "$dir/out" 99)"
            kill "${guessing[@]}" 2>/dev/null || true
            wait "${guessing[@]}" 2>/dev/null || true
            down
        done
    done
}

# Prints its own table.
row_gateway() {
    "${first[@]}" "$bin/loadgen" compare v2.2-rc --rows http-read-256-64-leader,http-write-256-64-leader --members 1 --rounds "$rounds" \
        --scale "$(awk -v n="$requests" 'BEGIN {print n / 640}')" --a "kv-server=$bin/kv-server" --b "etcd=$etcd" --data-dir "$dir" \
        --json "$dir/gateway.json" --markdown "$dir/gateway.md" >&2
    cat "$dir/gateway.md"
}

for row in $rows; do "row_$row"; done
((${#figures[@]} > 0)) || exit 0
echo "| medians of $rounds rounds | |"
echo "|---|--:|"
for figure in "${figures[@]}"; do echo "| $figure | $(median "$dir/$figure") |"; done
