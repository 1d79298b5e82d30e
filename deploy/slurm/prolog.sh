#!/bin/bash
# Slurm's Prolog: on the first node of a job with `#SBATCH --comment=kair` it starts the job's coordinator, as the job's
# user. Whatever fails, the status is 0: a Prolog that fails drains the node.

# shellcheck source=kair.conf
. "${BASH_SOURCE%/*}/kair.conf" || exit 0
[[ ${SLURM_JOB_COMMENT:-} =~ (^|[ ,;])kair($|[ ,;]) ]] || exit 0
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
[[ $first == "$SLURMD_NODENAME" ]] || exit 0

job=slurm-$SLURM_JOB_ID # as `kair capture run` names it by itself
umask 077
mkdir -p "$STATE" || exit 0
options=(--job "$job" --listen "$LISTEN")
[[ -z $METRICS ]] || options+=(--metrics "$METRICS")
[[ -z $STORE ]] || export KAIR_STORE=$STORE
[[ -z $ALERT_WEBHOOK ]] || export KAIR_ALERT_WEBHOOK=$ALERT_WEBHOOK
HOME=$(getent passwd "$SLURM_JOB_UID" | cut -d: -f6)
export HOME PATH
as_user=()
if [[ $(id -u) != "$SLURM_JOB_UID" ]]; then
    as_user=(setpriv --reuid "$SLURM_JOB_UID" --regid "$(id -g "$SLURM_JOB_UID")" --init-groups)
fi
cd / || exit 0
# In a session of its own, which it has before this script ends: slurmd kills what a Prolog leaves in its process group.
# shellcheck disable=SC2016
setsid --fork bash -c 'echo $$; exec "${@:2}" </dev/null >"$1" 2>&1' kair "$STATE/$job.log" \
    "${as_user[@]}" "$KAIR" coordinator "${options[@]}" | {
    read -r process
    echo "$process" >"$STATE/$job.pid"
}
exit 0
