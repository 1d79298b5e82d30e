#!/bin/bash
# Slurm's Epilog: ends the coordinator that prolog.sh started on this node, which commits what was delivered first.
# Whatever fails, the status is 0: an Epilog that fails drains the node.

# shellcheck source=kair.conf
. "${BASH_SOURCE%/*}/kair.conf" || exit 0
job=slurm-$SLURM_JOB_ID
read -r process 2>/dev/null <"$STATE/$job.pid" || exit 0
# Its number may be another process's by now.
if tr '\0' ' ' 2>/dev/null <"/proc/$process/cmdline" | grep -q -- " coordinator --job $job "; then
    kill -TERM "$process"
fi
rm -f "$STATE/$job.pid"
exit 0
