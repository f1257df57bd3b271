#!/usr/bin/env bash
# The dense baseline: the canonical request in calls of 1 to 500 items, asked of a server with dense masks.
#
#   matrix.sh [OPTION]...    measure; the options are those of `mis-bench matrix`
#   matrix.sh --list         name the runs in $RESULTS
#   matrix.sh --collect RUN  copy a run to $COLLECTED and check it
#   matrix.sh --all          copy and check every run
#   matrix.sh --help         print this
#
# MODEL      checkpoint of a server that is started and stopped here: a directory, a name, or random:SHAPE/DIVISOR
# URL        the server; without MODEL one that runs already, which is waited for     http://127.0.0.1:30000
# LOG        log of a server that runs already, to be kept with the run
# WAIT       seconds until the server must be ready                                   1800
# RESULTS    folder of the runs                                                       results
# COLLECTED  folder of copies on this machine                                         collected
# REMOTE     command that runs another one where $RESULTS is                          bash -c
set -euo pipefail

: "${MODEL:=}" "${URL:=http://127.0.0.1:30000}" "${LOG:=}" "${WAIT:=1800}"
: "${RESULTS:=results}" "${COLLECTED:=collected}" "${REMOTE:=bash -c}"
: "${NAME:=dense-matrix}" "${CHUNK_SIZES:=1,2,4,8,16,32,64,128,256,500}"
URL=${URL%/}

there() { # run a command in $RESULTS
    $REMOTE "cd $(printf %q "$RESULTS") && $1"
}

collect() { # copy runs, named by arguments
    mkdir -p "$COLLECTED"
    there "tar -cf - -- $(printf '%q ' "$@")" | tar -xf - -C "$COLLECTED"
    mis-bench validate-artifacts "$COLLECTED" --all
}

serve() { # start a server of a checkpoint, which writes its log to a file
    if [[ ! "$URL" =~ ^http://(127\.0\.0\.1|localhost):[0-9]+$ ]]; then
        echo "A server of MODEL is started on this machine: URL must be http://127.0.0.1:PORT, not $URL." >&2
        exit 1
    fi
    if curl --silent --max-time 10 --output /dev/null "$URL"; then
        echo "Something answers at $URL already; stop it, name another URL, or leave out MODEL." >&2
        exit 1
    fi
    # On a CPU one step with dense masks takes minutes, in which the watchdog must see no fault.
    mis-server serve "$1" --port "${URL##*:}" --mask-impl dense --disable-radix-cache --request-timeout 3600 \
        --watchdog-timeout 3600 >"$2" 2>&1 &
    server=$!
    trap 'kill "$server" 2>/dev/null && wait "$server" || true' EXIT
}

wait_until_ready() {
    local end=$((SECONDS + WAIT))
    while ((SECONDS < end)); do
        if curl --fail --silent --max-time 10 --output /dev/null "$URL/ready"; then return; fi
        if [[ -n "${server:-}" ]] && ! kill -0 "$server" 2>/dev/null; then
            echo "The server has ended. Its log, $run/server.log, ends with:" >&2
            tail -n 5 "$run/server.log" >&2
            exit 1
        fi
        sleep 1
    done
    echo "$URL was not ready within $WAIT s." >&2
    exit 1
}

measure() {
    run="$RESULTS/$NAME-$(date -u +%Y%m%dT%H%M%SZ)"
    model=()
    if [[ -n "$LOG" && ! -r "$LOG" ]]; then
        echo "LOG: $LOG cannot be read." >&2
        exit 1
    fi
    if [[ -n "$MODEL" ]]; then
        folder=$(mis-bench checkpoint "$MODEL")
        model=(--model "$MODEL")
        mkdir -p "$run"
        serve "$folder" "$run/server.log"
    fi
    wait_until_ready
    info=$(curl --fail --silent --show-error "$URL/server_info")
    if [[ "$info" != *'"mask_impl":"dense"'* ]]; then
        echo "$URL has no dense masks; start it with --mask-impl dense --disable-radix-cache." >&2
        exit 1
    fi
    status=0
    # In bfloat16 each layout may be 0.02 from pointwise scores, so two of them may be twice as far apart. With dense
    # masks an item's row is rounded otherwise in a step of another size.
    mis-bench matrix --target "mis=$URL" "${model[@]}" --chunk-sizes "$CHUNK_SIZES" --timeout 3600 --output "$run" \
        --correctness-threshold-max-abs 0.04 --correctness-threshold-mean-abs 0.02 "$@" || status=$?
    if [[ -n "$LOG" ]]; then cp "$LOG" "$run/server.log"; fi
    exit "$status"
}

usage() { # print the comment at the top
    sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"
}

case "${1:-}" in
-h | --help) usage ;;
--list) there "ls -1" ;;
--collect) collect "${2:?name a run; --list has them}" ;;
--all) collect . ;;
*) measure "$@" ;;
esac
