#!/usr/bin/env bash
# Does the dense baseline work at all? As matrix.sh, whose variables it takes, but once: in calls of 32 items, and of all
# that a canonical request has, whose scores must be the same.
set -euo pipefail

export NAME=dense-smoke CHUNK_SIZES=32,500
exec "$(dirname "$0")/matrix.sh" "$@" --sweep-runs 1 --confirm-runs 0
