#!/bin/bash
# One task of srun on each node: a command under watch, and after it the agent's time to deliver what is left; Slurm ends
# whatever a task has started together with it.
#
#   srun --ntasks-per-node=1 captured.sh torchrun --nproc-per-node 8 train.py

job=slurm-$SLURM_JOB_ID
trap : HUP INT TERM USR1 USR2 # Slurm sends signals to the command as well
kair capture run --job "$job" -- "$@"
status=$?
lock=${KAIR_RUN_DIR:-/dev/shm/kair-$UID/$job}/agent.lock
[[ ! -e $lock ]] || flock --timeout 60 "$lock" true
exit "$status"
