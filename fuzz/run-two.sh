#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a while.
#
#   fuzz/run.sh SECONDS [TARGET…]       for that long, from another seed each time
#   fuzz/run.sh --seed N [TARGET…]      a fixed number of inputs: the same ones for the same seed and commit
#
# What libFuzzer finds beyond the small corpus in the tree goes to fuzz/target/corpus, and an input that breaks a law to
# fuzz/artifacts, with the command that replays it. `cargo fuzz run TARGET` does the same where cargo-fuzz is installed.
# The flags are those of cargo-fuzz without a sanitizer: there is no unsafe code here for one to look at.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
case $1 in
    --seed)
        seed=$2 limits=(-runs=200000 -max_total_time=120) found=target/corpus-of-seed
        rm -rf "$found"
        shift 2
        ;;
    *)
        seed=0 limits=(-max_total_time="$1") found=target/corpus
        shift
        ;;
esac
[[ $# -gt 0 ]] || set -- wal_reader block_reader snapshot_stream peer_message client_request apply_command http2_connection \
    http2_beside_h2 bbolt_reader gateway_json watch_requests

host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=$PWD/target
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Ccodegen-units=1"
# A target of its own, so that build scripts and macros are built without those flags.
cargo build --locked --release --target "$host" --bin http2_connection --bin http2_beside_h2

for target in "$@"; do
    mkdir -p "$found/$target" "artifacts/$target" "corpus/$target"
    echo "--- $target"
    "target/$host/release/$target" "${limits[@]}" -seed="$seed" -max_len=4096 -rss_limit_mb=1024 -timeout=10 \
        -print_final_stats=1 -artifact_prefix="artifacts/$target/" "$found/$target" "corpus/$target" 2>&1 |
        grep -vE '^#[0-9]+[[:space:]]+(NEW|REDUCE|pulse|RELOAD|INITED|READ)' | tail -30
done
