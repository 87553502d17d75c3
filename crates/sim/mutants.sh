#!/usr/bin/env bash
# Gives a test process each known bug in turn, and makes sure that the test named for it in mutants.txt fails, and fails as a test.
#
#   crates/sim/mutants.sh              all of them
#   crates/sim/mutants.sh PATTERN      those whose name matches
#   crates/sim/mutants.sh --share I N  every N-th one, beginning with the I-th
#
# The bugs are in each build of the workspace's tests, so `cargo test --workspace` has built all that this runs. As many run at once as
# there are processors. One line per mutant: caught or MISSED, and the seconds it took. Exits with 1 if any was missed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
logs=${CARGO_TARGET_DIR:-$root/target}/mutants
programs=$logs/programs.txt
# What fails on a mutant is no regression to remember.
export PROPTEST_DISABLE_FAILURE_PERSISTENCE=1
# Which seeds show a bug changes with every change of the code. A mutant is missed when none of these shows it.
export STORY_SEEDS=400

try() {
    local mutant=$1 package=$2 target=$3 name=$4 log=$logs/$1.log begin=$SECONDS program verdict
    program=$(awk -v key="$package/$target" '$1 == key {print $2}' "$programs")
    cd "$root/crates/$package" || return
    KV_MUTANT=$mutant timeout 600 "${program:-no-such-program}" --include-ignored --exact "$name" >"$log" 2>&1
    case $? in
        0) verdict="MISSED (the test passes)" ;;
        101) verdict=caught ;;
        *) verdict="MISSED (no verdict)" ;;
    esac
    grep -q "^test result: FAILED. 0 passed; 1 failed" "$log" || verdict="${verdict/caught/MISSED (no verdict)}, see $log"
    printf '%-26s %s by %s, %d s\n' "$mutant" "$verdict" "$name" $((SECONDS - begin))
}
if [[ ${1:-} == --try ]]; then
    try "${@:2}"
    exit
fi

share=0 shares=1 pattern=.
case ${1:-} in
    --share) share=$2 shares=$3 ;;
    ?*) pattern=${1#mutant-} ;;
esac
number=0 chosen=()
while read -r mutant package target name; do
    [[ -z $mutant || $mutant == \#* || ! $mutant =~ $pattern ]] && continue
    ((number++ % shares == share % shares)) && chosen+=("$mutant $package $target $name")
done <crates/sim/mutants.txt
((${#chosen[@]} > 0)) || { echo "no mutant is called so"; exit 1; }

# "package/target program" of each. Cargo prints the root of each target beside its program.
mkdir -p "$logs"
targets=$(printf '%s\n' "${chosen[@]}" | awk '{print $3 == "lib" ? "--lib" : "--test=" $3}' | sort -u)
# shellcheck disable=SC2086 # one argument a word
cargo test --locked --workspace --no-run $targets >"$logs/build.log" 2>&1 ||
    { tail -n 40 "$logs/build.log"; echo "the mutants do not build"; exit 1; }
sed -nE 's/^ *Executable (.*) \((.*)\)$/\1 \2/p' "$logs/build.log" | while read -r line; do
    program=$(realpath "${line##* }") source=${line% *}
    crate=$(basename "${program%-*}" | tr _ -)
    case $source in
        *src/lib.rs) echo "$crate/lib $program" ;;
        tests/main.rs) echo "$crate/$crate $program" ;;
        tests/runs.rs) echo "sim/runs $program" ;;
    esac
done >"$programs"

printf '%s\n' "${chosen[@]}" | xargs -P "$(nproc)" -L 1 "$root/crates/sim/mutants.sh" --try | tee "$logs/verdicts.txt"
caught=$(grep -c ' caught by ' "$logs/verdicts.txt")
echo "note: $caught mutants caught, $((${#chosen[@]} - caught)) missed"
((caught == ${#chosen[@]}))
