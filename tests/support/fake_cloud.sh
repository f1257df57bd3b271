#!/usr/bin/env bash
# Stands for gcloud, ssh and scp. What exists is a file in $CLOUD, KIND/NAME, and holds its state; calls are logged there.
# $FAIL   a pattern of command lines that fail, $FAIL_TIMES of them (all, if it is not set)
# $HALF   if set, a creation that fails has created nevertheless
# $HANG   a pattern of command lines of which the first does nothing, for $HANG_FOR seconds (a minute)
# $STATES states of a queued resource, one after the other
program=${0##*/}
line="$program $*"
echo "${line//$'\n'/;}" >> "$CLOUD/calls"

fails() {
    # shellcheck disable=SC2053 # these are patterns
    [[ -n ${FAIL:-} && $line == $FAIL ]] || return 1
    echo . >> "$CLOUD/failures"
    [ "$(wc -l < "$CLOUD/failures")" -le "${FAIL_TIMES:-1000}" ]
}
hangs() {
    # shellcheck disable=SC2053
    [[ -n ${HANG:-} && $line == $HANG && ! -e $CLOUD/hanging ]] || return 0
    touch "$CLOUD/hanging"
    exec sleep "${HANG_FOR:-60}"
}
refuse() {
    echo "ERROR: (fake) $1" >&2
    exit 1
}

kind=${3:-} verb=${4:-} thing=$CLOUD/${3:-}/${5:-}
[ "$program" = gcloud ] || verb=$program
case "$verb" in
create)
    fails && { [ -z "${HALF:-}" ] || echo READY > "$thing"; } && refuse "no more capacity in the zone"
    echo READY > "$thing"
    if [ "$kind" = queued-resources ]; then
        tr ' ' '\n' <<< "${STATES:-WAITING_FOR_RESOURCES ACTIVE}" > "$thing"
        echo READY > "$CLOUD/tpu-vm/${5%-queue}"
    fi
    hangs
    ;;
describe)
    fails && refuse "UNAUTHENTICATED"
    [ -e "$thing" ] || refuse "NOT_FOUND: Resource '$5' was not found"$'\n'"- '@type': details"
    hangs
    head -n 1 "$thing"
    echo "Updates are available for some components." >&2
    [ "$(wc -l < "$thing")" = 1 ] || sed -i 1d "$thing"
    ;;
delete)
    fails && refuse "the service is currently unavailable"
    hangs
    rm "$thing"
    [ "$kind" != queued-resources ] || rm -f "$CLOUD/tpu-vm/${5%-queue}"
    ;;
ssh | scp)
    fails && refuse "connection refused"
    hangs
    ;;
*) refuse "what is $line?" ;;
esac
