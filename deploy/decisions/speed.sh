#!/usr/bin/env bash
# Decisions a second of our server with and without its cache, and of `transformers serve`, on one checkpoint.
#
#   speed.sh [OPTION]...   measure; the options are those of `mis-bench decisions speed`
#
# MODEL    checkpoint: a directory, a name, or random:SHAPE/DIVISOR
# DTYPE    of the weights                                                    bfloat16
# DEVICE   of transformers; ours take an accelerator where there is one      auto
# PEERS    what is measured beside our server: uncached, transformers        uncached transformers
# FLAGS    more options of both our servers, --context-length for instance
# PORT     of our server; the others have the two behind it                  30000
# WAIT     seconds until a server must be ready                              1800
set -euo pipefail

: "${MODEL:?name a checkpoint}" "${DTYPE:=bfloat16}" "${DEVICE:=auto}" "${PEERS=uncached transformers}"
: "${FLAGS:=}" "${PORT:=30000}" "${WAIT:=1800}"

logs=$(mktemp -d)
servers=()
stop() {
    local status=$?
    for server in "${servers[@]}"; do kill "$server" 2>/dev/null && wait "$server" || true; done
    if ((status)); then echo "Logs of the servers: $logs" >&2; else rm -rf "$logs"; fi
}
trap stop EXIT

answers() { curl --silent --max-time 10 --output /dev/null "$@"; }

start() { # NAME URL COMMAND...: start a server and wait until it is ready
    local name=$1 ready=$2 end=$((SECONDS + WAIT))
    shift 2
    if answers "$ready"; then
        echo "Something answers at $ready already; stop it, or name another PORT." >&2
        exit 1
    fi
    "$@" >"$logs/$name" 2>&1 &
    servers+=($!)
    until answers --fail "$ready" && kill -0 "${servers[-1]}"; do
        if ((SECONDS > end)) || ! kill -0 "${servers[-1]}" 2>/dev/null; then
            echo "The server $name is not ready. Its log ends with:" >&2
            tail -n 5 "$logs/$name" >&2
            exit 1
        fi
        sleep 1
    done
}

model=$(mis-bench checkpoint "$MODEL")
# The prompt of transformers, so that all read the same.
read -ra ours <<<"--dtype $DTYPE --decision-prompt transformers --request-timeout 3600 $FLAGS"
targets=(--target "ours=mis=http://127.0.0.1:$PORT")
start ours "http://127.0.0.1:$PORT/ready" mis-server serve "$model" --port "$PORT" "${ours[@]}"
for peer in $PEERS; do
    case $peer in
    uncached)
        url=http://127.0.0.1:$((PORT + 1))
        start "$peer" "$url/ready" mis-server serve "$model" --port $((PORT + 1)) "${ours[@]}" --disable-radix-cache
        targets+=(--target "$peer=mis=$url")
        ;;
    transformers)
        url=http://127.0.0.1:$((PORT + 2))
        start "$peer" "$url/health" \
            transformers serve "$model" --host 127.0.0.1 --port $((PORT + 2)) --dtype "$DTYPE" --device "$DEVICE"
        targets+=(--target "$peer=systemone=$url,stateless=true,model=$model")
        ;;
    *)
        echo "PEERS: $peer is neither uncached nor transformers." >&2
        exit 2
        ;;
    esac
done
mis-bench decisions speed "${targets[@]}" --model "$model" --timeout 3600 "$@"
