#!/usr/bin/env bash
# The first hour on a TPU, see usage below. It runs where bash 4.4, git and coreutils are (Google's Cloud Shell has them),
# and gcloud, or ssh and scp for a machine that is there already.
#
# The commands and flags are those of `gcloud compute tpus tpu-vm|queued-resources create|describe|ssh|scp|delete --help`
# (Google Cloud SDK 528), states those of https://cloud.google.com/tpu/docs/queued-resources, and the runtime version
# that of https://cloud.google.com/tpu/docs/runtimes.
set -euo pipefail

usage() {
    cat << END
usage: first-hour.sh [OPTION]...          create a TPU VM, work on it, delete it
       first-hour.sh --address [USER@]HOST [OPTION]...   work on a machine that is there; nothing is deleted

Installs this commit, runs the TPU's tests, validates the model, measures the canonical request, and holds a profile
against the estimate. What it created is deleted at the end, also after a failure, Ctrl-C or kill.

  --zone ZONE               where to create it                          $zone
  --project PROJECT         whose it is                                 gcloud's own setting
  --name NAME               of the VM, and of the folder on it          $name
  --accelerator-type TYPE   v6e-1, or v5litepod-1                       $accelerator
  --runtime-version NAME    of the VM's software                        v2-alpha-tpuv6e, v2-alpha-tpuv5-lite
  --on-demand               not a spot VM: dearer, and not taken away
  --queue                   wait in the queue for capacity, instead of failing without
  --model MODEL             a name, or random:qwen3-0.6b                $model
  --shape SHAPE             its published shape, for the estimate       $shape
  --limit MINUTES           for everything but taking home and deleting $limit
  --poll SECONDS            between two looks                           $poll
  --output FOLDER           for logs, results and the summary           $output
END
}

stamp=$(date -u +%Y%m%d-%H%M%S)
address='' project='' runtime='' queue='' spot=--spot
zone=us-east5-b name=mis-first-hour-$stamp-$$ accelerator=v6e-1
model=Qwen/Qwen3-0.6B shape=qwen3-0.6b limit=120 poll=15 output=first-hour-$stamp

say() { echo "first-hour: $*" >&2; }
die() { say "$*"; exit 2; }

while [ $# -gt 0 ]; do
    option=$1
    case "$option" in
    --on-demand) spot='' && shift && continue ;;
    --queue) queue=yes && shift && continue ;;
    --help) usage && exit ;;
    esac
    [ $# -gt 1 ] || die "$option is unknown, or has no value; see --help."
    case "$option" in
    --address) address=$2 ;;
    --zone) zone=$2 ;;
    --project) project=$2 ;;
    --name) name=$2 ;;
    --accelerator-type) accelerator=$2 ;;
    --runtime-version) runtime=$2 ;;
    --model) model=$2 ;;
    --shape) shape=$2 ;;
    --limit) limit=$2 ;;
    --poll) poll=$2 ;;
    --output) output=$2 ;;
    *) die "there is no option $option; see --help." ;;
    esac
    shift 2
done
case "$accelerator" in
v6e-1) topology=v6e:1x1 && : "${runtime:=v2-alpha-tpuv6e}" ;;
v5litepod-1) topology=v5e:1x1 && : "${runtime:=v2-alpha-tpuv5-lite}" ;;
*) die "--accelerator-type is v6e-1 or v5litepod-1, not $accelerator." ;;
esac
[[ $name =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] || die "--name has small letters, digits and hyphens, not $name."
[[ $limit =~ ^[0-9]+$ ]] || die "--limit is a whole number of minutes, not $limit."
programs=(git timeout gcloud)
[ -z "$address" ] || programs=(git timeout ssh scp)
for program in "${programs[@]}"; do
    command -v "$program" > /dev/null || die "$program is not on PATH."
done
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && git rev-parse --show-toplevel) || die "this is no clone of the repository."
mkdir -p "$output"
[ -z "$(ls -A "$output")" ] || die "$output is not empty."
output=$(cd "$output" && pwd)
: > "$output/summary.txt"

there=("--zone=$zone")
[ -z "$project" ] || there+=("--project=$project")
machine=${address:-$name}
batch=(-oBatchMode=yes -oConnectTimeout=15 -oServerAliveInterval=30 -oStrictHostKeyChecking=accept-new)

deadline=$((SECONDS + 60 * limit)) child='' current='' failed=()
created=() # what has to be deleted, from before it is asked for: KIND/NAME
reached='' cut=''

# Children run in the background, as bash attends to signals only while it waits; and under `timeout`, which passes
# the end on to their children, too.
attend() { # COMMAND...: run it within what is left of the time, output to $log
    local status=0 left=$((deadline - SECONDS))
    [ "$left" -gt 0 ] || { echo "The $limit minutes are over." >> "$log" && return 124; }
    timeout --kill-after=10 "$left" "$@" >> "$log" 2>&1 < /dev/null &
    child=$!
    wait "$child" || status=$?
    child=''
    return "$status"
}

pause() { # between two looks
    sleep "$poll" &
    child=$!
    wait "$child" || true
    child=''
}

step() { # NAME COMMAND...: run it, note in the summary what came of it, and return its status
    local status=0 verdict=passed began=$SECONDS
    current=$1 log=$output/$1.log
    : > "$log"
    shift
    say "$current ..."
    "$@" || status=$?
    if [ "$status" != 0 ]; then
        verdict="FAILED ($status)" && failed+=("$current")
        say "$current FAILED ($status): $({ grep ERROR "$log" || cat "$log"; } | tail -n 1)"
    fi
    echo "$current: $verdict, $((SECONDS - began)) s" >> "$output/summary.txt"
    return "$status"
}

on_machine() { # COMMAND: run it there, in the clone and its environment if there is one
    local command="cd $name 2> /dev/null && . venv/bin/activate; $1"
    if [ -n "$address" ]; then
        attend ssh "${batch[@]}" "$address" "$command"
    else
        attend gcloud compute tpus tpu-vm ssh "$name" "${there[@]}" --quiet "${batch[@]/#/--ssh-flag=}" --command="$command"
    fi
}

copy() { # FROM TO: of which one begins with "$machine:"
    if [ -n "$address" ]; then
        attend scp "${batch[@]}" -r "$1" "$2"
    else
        attend gcloud compute tpus tpu-vm scp "$1" "$2" "${there[@]}" --quiet --recurse "${batch[@]/#/--scp-flag=}"
    fi
}

look() { # KIND NAME: put its state, or GONE, into $state; fail if gcloud cannot tell
    local log=$output/state.log format=state
    [ "$1" = tpu-vm ] || format=state.state
    : > "$log"
    if attend gcloud compute tpus "$1" describe "$2" "${there[@]}" --format="value($format)"; then
        state=$(grep -xE '[A-Z_]+' "$log" | tail -n 1) # among notices
    else
        grep -q NOT_FOUND "$log" && state=GONE
    fi
}

is_free() { # KIND NAME: or else it would be deleted, which is somebody else's
    look "$1" "$2" || { cat "$output/state.log" >> "$log" && return 1; }
    [ "$state" = GONE ] || { echo "There is a $1 $2 already; it stays as it is." >> "$log" && return 1; }
}

create() {
    local kind=tpu-vm id=$name flags=("--version=$runtime")
    [ -z "$queue" ] || { kind=queued-resources id=$name-queue && flags=("--runtime-version=$runtime" "--node-id=$name"); }
    is_free tpu-vm "$name" && is_free "$kind" "$id" || return
    created=("$kind/$id")
    [ -z "$queue" ] || created+=("tpu-vm/$name") # which goes with its request, or else alone
    cut=yes
    attend gcloud compute tpus "$kind" create "$id" "${there[@]}" --accelerator-type="$accelerator" "${flags[@]}" \
        --quiet ${spot:+"$spot"} || return
    cut=''
}

await_turn() {
    while look queued-resources "$name-queue"; do
        case "$state" in
        ACTIVE) return ;;
        FAILED | SUSPENDING | SUSPENDED | DELETING | GONE) echo "The request is $state." >> "$log" && return 1 ;;
        esac
        pause
    done
    return 1
}

reach() {
    until on_machine true; do
        [ "$SECONDS" -lt "$deadline" ] || return 124
        pause
    done
    reached=yes
}

send() {
    git -C "$root" diff --quiet HEAD || say "changes that are not committed stay here."
    attend git -C "$root" bundle create "$output/mis.bundle" HEAD && copy "$output/mis.bundle" "$machine:$name.bundle"
}

install() { # the VM's own Python may be older than what is needed
    on_machine "set -e
        git clone --quiet $name.bundle $name
        cd $name
        mkdir results
        python3 -m pip install --quiet --user uv
        python3 -m uv venv --quiet --seed --python 3.12 venv
        . venv/bin/activate
        pip install --quiet 'nox[uv]' ./packages/mis-kernels './packages/mis-core[tpu]' ./packages/mis-testing './packages/mis-bench[tpu,random,pytorch]'
        python -c \"import jax; print(jax.devices()); assert jax.default_backend() == 'tpu', 'no TPU'\""
}

remove() { # KIND NAME: delete it until it is gone
    local kind=$1 id=$2 flags=(--quiet) attempt
    [ "$kind" = tpu-vm ] || flags+=(--force) # with its VM
    for attempt in 1 2 3 4 5; do
        if look "$kind" "$id" && [ "$state" = GONE ]; then return 0; fi
        attend gcloud compute tpus "$kind" delete "$id" "${there[@]}" "${flags[@]}" || say "attempt $attempt to delete $id failed."
        [ "$attempt" = 1 ] || pause
    done
    if look "$kind" "$id" && [ "$state" = GONE ]; then return 0; fi
    say "NOT DELETED, and it costs until it is: gcloud compute tpus $kind delete $id ${there[*]} ${flags[*]}"
    return 1
}

finish() {
    local status=$? kept=0 last=$current each
    trap - EXIT
    trap '[ -z "$child" ] || kill "$child"' INT TERM HUP # Ctrl-C now ends what is taken home, and nothing else
    set +e
    [ "$status" -lt 128 ] || echo "$last: INTERRUPTED" >> "$output/summary.txt"
    deadline=$((SECONDS + 600))
    [ -z "$reached" ] || step fetch copy "$machine:$name/results" "$output" || [ "$status" != 0 ] || status=1
    trap '' INT TERM HUP # and it must not keep a VM
    deadline=$((SECONDS + 3600))
    [ -z "$cut" ] || pause # a request that was cut off may still arrive
    for each in "${created[@]}"; do
        step "delete-${each%%/*}" remove "${each%%/*}" "${each#*/}" || kept=1
    done
    cat "$output/summary.txt" >&2
    local verdict="passed" deleted="nothing was created"
    [ ${#created[@]} = 0 ] || deleted="what was created is deleted"
    [ "$status" = 0 ] || verdict="FAILED in ${failed[*]:-$last}"
    [ "$status" -lt 128 ] || verdict="INTERRUPTED in $last"
    [ "$kept" = 0 ] || { status=3 && deleted="SOMETHING WAS NOT DELETED, see above"; }
    say "$verdict; $deleted; all output is in $output"
    exit "$status"
}

stop() { # STATUS
    trap '' INT TERM HUP
    [ -z "$child" ] || { kill "$child" && wait "$child"; } 2> /dev/null || true
    exit "$1"
}

trap finish EXIT
trap '' PIPE # whoever reads this may be gone
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 143' TERM

# Without one of these there is nothing to do.
if [ -z "$address" ]; then
    step create create || exit 1
    [ -z "$queue" ] || step queue await_turn || exit 1
fi
step reach reach || exit 1
step copy send || exit 1
step install install || exit 1

# Of these each is worth having without the others. Only one process can have the chip, so they come one by one.
step tests on_machine "nox -s tests_tpu" || true
step validate on_machine "mis-bench validate --model $model --output results/validation" || true
step canonical on_machine "mis-bench run --workload canonical-2000-500-20 --model $model --output results/canonical" || true
step profile on_machine "mis-bench profile --scenario kernels --model $model --output results/profile" || true
step estimate on_machine "JAX_PLATFORMS=cpu mis-bench estimate --topology $topology --model-shape $shape --requests 1 --json > results/estimate.json" || true
step against-estimate on_machine "python deploy/tpu/against_estimate.py results/profile/profile.json results/estimate.json" || true
step artifacts on_machine "mis-bench validate-artifacts results --all" || true
[ ${#failed[@]} = 0 ] || exit 1
