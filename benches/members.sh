# Members on loopback, for the measurements beside this file, which set `bin` (where kv-server is), `base` (a port) and `dir` (scratch) and read this.
# Nothing here outlives the script: members are killed and `dir` is removed when it ends, however it ends.
# shellcheck shell=bash
declare -a pid=()
trap '((${#pid[@]} == 0)) || kill -9 "${pid[@]}" 2>/dev/null || true; rm -rf "$dir"' EXIT

# `https` where members talk inside TLS; `secure` has their flags then, and `identity` what curl shows to a member that asks for a certificate.
scheme=${scheme:-http}
declare -a secure=() identity=()
# Certificates of P-256, of one authority, for members and clients: ca.pem, member.pem and member.key in `dir`.
certificates() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca -keyout "$dir/ca.key" -out "$dir/ca.pem"
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=member -keyout "$dir/member.key" -out "$dir/member.csr"
    openssl x509 -req -in "$dir/member.csr" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -CAcreateserial -days 2 -out "$dir/member.pem" \
        -extfile <(printf 'extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=IP:127.0.0.1,DNS:localhost\n')
} 2>/dev/null
secure() {
    [[ -e $dir/member.pem ]] || certificates
    scheme=https
    secure=("--cert-file=$dir/member.pem" "--key-file=$dir/member.key" "--peer-cert-file=$dir/member.pem" "--peer-key-file=$dir/member.key"
        "--peer-trusted-ca-file=$dir/ca.pem" --peer-client-cert-auth)
}
client() { echo "127.0.0.1:$((base + 2 * $1))"; }
peer() { echo "$scheme://127.0.0.1:$((base + 2 * $1 + 1))"; }
# Where so many members serve, comma separated.
clients() { local member; for ((member = 0; member < $1; member++)); do client $member; done | paste -sd,; }

# Starts fresh members and returns when all of them serve.
up() { # how many, and the command to start each with
    local count=$1 member cluster=
    shift
    rm -rf "$dir/data" && mkdir "$dir/data"
    pid=()
    for ((member = 0; member < count; member++)); do cluster+=,m$member=$(peer $member); done
    for ((member = 0; member < count; member++)); do
        "$@" --name "m$member" --data-dir "$dir/data/m$member" --listen-client-urls "$scheme://$(client $member)" \
            --advertise-client-urls "$scheme://$(client $member)" --listen-peer-urls "$(peer $member)" --initial-advertise-peer-urls "$(peer $member)" \
            --initial-cluster "${cluster#,}" --quota-backend-bytes 8589934592 >"$dir/m$member.log" 2>&1 &
        pid+=($!)
    done
    for ((member = 0; member < count; member++)); do
        until curl -skf "${identity[@]}" "$scheme://$(client $member)/health" 2>/dev/null | grep true >/dev/null; do
            kill -0 "${pid[$member]}" || { tail -3 "$dir/m$member.log"; exit 1; }
            sleep 0.1
        done
    done
}
down() { kill "${pid[@]}"; wait "${pid[@]}" 2>/dev/null || true; pid=(); }

# Processor seconds of all members so far.
seconds() {
    local member
    for member in "${pid[@]}"; do cat "/proc/$member/stat"; done | awk -v hz="$(getconf CLK_TCK)" '{s += ($14 + $15) / hz} END {print s}'
}
# Microseconds for each of so many requests since `seconds` said what is given.
each() { awk -v a="$1" -v b="$(seconds)" -v n="$2" 'BEGIN {printf "%.1f\n", (b - a) * 1e6 / n}'; } # before, requests
# What a load generator's report says: a percentile in milliseconds, and requests per second.
percentile() { awk -v of="$2%" '$1 == of && !done {printf "%.2f", $3 * 1000; done = 1}' "$1"; } # report, percent
rate() { awk '/Requests\/sec/ && !done {printf "%.0f", $2; done = 1}' "$1"; }
# Of a file with a number per line.
median() { sort -g "$1" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
