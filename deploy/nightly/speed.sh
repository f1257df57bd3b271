#!/usr/bin/env bash
# The smoke profile four times, held against an earlier run: 120 calls, enough for a p95 and a p99 over all rows.
#
#   speed.sh RESULTS [BASELINE]
#
# RESULTS   folder of results; this run goes to RESULTS/smoke
# BASELINE  such a folder of an earlier run; without it, or without results in it, the one beside this script, whose
#           machine and command are in its plan.json
# MODEL     what is measured                                                          random:qwen3-0.6b/4
#
# Exit status 1: a call failed, or a regression. An earlier run of other requests, another model or another machine is no
# baseline: this run is the next.
set -euo pipefail

: "${MODEL:=random:qwen3-0.6b/4}"
results=${1:?name a folder for the results} baseline=${2:-}
if [[ ! -f "$baseline/smoke/plan.json" ]]; then
    echo "There is no earlier run in '$baseline'; taking the baseline of the repository."
    baseline=$(dirname "$0")/baseline
elif ! mis-bench validate-artifacts "$baseline/smoke"; then
    echo "The earlier run in '$baseline' is broken; taking the baseline of the repository."
    baseline=$(dirname "$0")/baseline
fi
status=0
mis-bench run --profile smoke --repeat 4 --model "$MODEL" --output "$results/smoke" --baseline "$baseline/smoke" ||
    status=$?
if [[ "$status" == 2 && -f "$results/smoke/summary.json" ]]; then
    echo "It cannot be compared with $baseline/smoke. Nothing was judged; the next run is compared with this one."
    status=0
fi
exit "$status"
