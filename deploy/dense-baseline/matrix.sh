#!/usr/bin/env bash
# The dense baseline: the canonical request in calls of 1 to 500 items, asked of a server with dense masks.
#
#   matrix.sh [OPTION]...    measure; the options are those of `mis-bench matrix`
#   matrix.sh --list         name the runs in $RESULTS
#   matrix.sh --collect RUN  copy a run to $COLLECTED and check it
#   matrix.sh --all          copy and check every run
#
# URL        the server; it is waited for six minutes            http://127.0.0.1:30000
# RESULTS    folder of the runs                                  results
# COLLECTED  folder of copies on this machine                    collected
# REMOTE     command that runs another one where $RESULTS is     bash -c
set -euo pipefail

: "${URL:=http://127.0.0.1:30000}" "${RESULTS:=results}" "${COLLECTED:=collected}" "${REMOTE:=bash -c}"
: "${NAME:=dense-matrix}" "${CHUNK_SIZES:=1,2,4,8,16,32,64,128,256,500}"

there() { # run a command in $RESULTS
    $REMOTE "cd $(printf %q "$RESULTS") && $1"
}

collect() { # copy runs, named by arguments
    mkdir -p "$COLLECTED"
    there "tar -cf - -- $(printf '%q ' "$@")" | tar -xf - -C "$COLLECTED"
    mis-bench validate-artifacts "$COLLECTED" --all
}

measure() {
    curl --fail --silent --show-error --output /dev/null --retry 180 --retry-delay 2 --retry-all-errors "$URL/ready"
    info=$(curl --fail --silent --show-error "$URL/server_info")
    if [[ "$info" != *'"mask_impl":"dense"'* ]]; then
        echo "$URL has no dense masks; start it with --mask-impl dense --disable-radix-cache." >&2
        exit 1
    fi
    mis-bench matrix --target "mis=$URL" --chunk-sizes "$CHUNK_SIZES" \
        --output "$RESULTS/$NAME-$(date -u +%Y%m%dT%H%M%SZ)" "$@"
}

case "${1:-}" in
--list) there "ls -1" ;;
--collect) collect "${2:?name a run; --list has them}" ;;
--all) collect . ;;
*) measure "$@" ;;
esac
