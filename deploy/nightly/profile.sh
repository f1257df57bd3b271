#!/usr/bin/env bash
# Profiles of the canonical request and of memory, and which stages take another share of the time than in an earlier run.
#
#   profile.sh RESULTS [EARLIER]
#
# RESULTS   folder of results; this run goes to RESULTS/profile and RESULTS/profile-memory
# EARLIER   such a folder of an earlier run
# MODEL     what is profiled                                                          random:qwen3-0.6b/4
# WORKLOAD  what is asked                                                             canonical-2000-500-20
#
# Exit status 1: it cannot be profiled. A share that moved is a warning, on GitHub an annotation: it says where to look,
# while speed.sh says whether anything is slower.
set -euo pipefail

: "${MODEL:=random:qwen3-0.6b/4}" "${WORKLOAD:=canonical-2000-500-20}"
results=${1:?name a folder for the results} earlier=${2:-}
asked=(--model "$MODEL" --workload "$WORKLOAD")
mis-bench profile --scenario kernels "${asked[@]}" --output "$results/profile"
mis-bench profile --scenario memory "${asked[@]}" --output "$results/profile-memory"
if [[ ! -f "$earlier/profile/profile.json" ]]; then
    echo "There is no earlier profile in '$earlier'; the next run is compared with this one."
    exit 0
fi
status=0
mis-bench compare-profiles "$earlier/profile" "$results/profile" || status=$?
case "$status" in
    0) ;;
    1) echo "::warning title=Profile::A stage takes another share of the time than in the last run. See the table in this step's log." ;;
    *) echo "It cannot be compared with $earlier/profile; the next run is compared with this one." ;;
esac
