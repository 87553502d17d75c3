#!/usr/bin/env bash
# Builds each known bug in and makes sure that the test named for it in mutants.txt fails, and fails as a test.
#
#   crates/sim/mutants.sh              all of them
#   crates/sim/mutants.sh PATTERN      those whose feature matches
#   crates/sim/mutants.sh --share I N  every N-th one, beginning with the I-th: a gate takes another share each day
#
# One line per mutant: caught or MISSED, and the seconds it took. Exits with 1 if any was missed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
logs=${CARGO_TARGET_DIR:-target}/mutants
mkdir -p "$logs"
# What fails on a mutant is no regression to remember.
export PROPTEST_DISABLE_FAILURE_PERSISTENCE=1
# Which seeds show a bug changes with every change of the code. A mutant is missed when none of these shows it.
export STORY_SEEDS=400

share=0 shares=1 pattern=.
case ${1:-} in
    --share) share=$2 shares=$3 ;;
    ?*) pattern=$1 ;;
esac

number=0 caught=0 missed=0
while read -r crate feature package target name; do
    [[ -z $crate || $crate == \#* || ! $feature =~ $pattern ]] && continue
    ((number++ % shares == share % shares)) || continue
    log=$logs/$feature.log begin=$SECONDS
    if [[ $package == "$crate" ]]; then features=$feature; else features=$crate/$feature; fi
    if [[ $target == lib ]]; then where=(--lib); else where=(--test "$target"); fi
    test=(cargo test --quiet --locked --package "$package" --features "$features" "${where[@]}")
    if ! "${test[@]}" --no-run >"$log" 2>&1; then
        verdict="MISSED (does not build, see $log)"
    elif timeout 600 "${test[@]}" -- --exact "$name" >>"$log" 2>&1; then
        verdict="MISSED (the test passes)"
    elif grep -q "^test result: FAILED. 0 passed; 1 failed" "$log"; then
        verdict=caught
    else
        verdict="MISSED (no verdict, see $log)"
    fi
    if [[ $verdict == caught ]]; then caught=$((caught + 1)); else missed=$((missed + 1)); fi
    printf '%-42s %s by %s, %d s\n' "$crate/$feature" "$verdict" "$name" $((SECONDS - begin))
done <crates/sim/mutants.txt

echo "note: $caught mutants caught, $missed missed"
((missed == 0 && caught > 0))
