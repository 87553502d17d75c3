#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a while.
#
#   fuzz/run.sh SECONDS [TARGET…]
#
# What libFuzzer finds beyond the small corpus in the tree goes to fuzz/target/corpus, and an input that breaks a law to
# fuzz/artifacts, with the command that replays it. `cargo fuzz run TARGET` does the same where cargo-fuzz is installed.
# The flags are those of cargo-fuzz without a sanitizer: there is no unsafe code here for one to look at.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
seconds=$1
shift
[[ $# -gt 0 ]] || set -- wal_reader block_reader snapshot_stream peer_message client_request apply_command

host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=$PWD/target
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Ccodegen-units=1"
# A target of its own, so that build scripts and macros are built without those flags.
cargo build --locked --release --target "$host" --bins

for target in "$@"; do
    mkdir -p "target/corpus/$target" "artifacts/$target" "corpus/$target"
    echo "--- $target"
    "target/$host/release/$target" -max_total_time="$seconds" -max_len=4096 -rss_limit_mb=1024 -timeout=10 \
        -print_final_stats=1 -artifact_prefix="artifacts/$target/" "target/corpus/$target" "corpus/$target" 2>&1 |
        grep -vE '^#[0-9]+[[:space:]]+(NEW|REDUCE|pulse|RELOAD|INITED|READ)' | tail -30
    echo "note: $target ran ${seconds} s"
done
