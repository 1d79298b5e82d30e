"""Logs of jobs: what the watchdog of NCCL process groups says in them when a call times out."""
