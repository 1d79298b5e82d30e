"""Logs of jobs that hang or die, made for the tests in the wording of their launchers and libraries."""

from collections.abc import Collection, Iterable

DEFAULT = "0(default_pg)"


def timed_out(
    rank: int,
    number: int,
    operation: str = "ALLREDUCE",
    *,
    at: str = "1117 08:00:00",
    ran_s: int = 600,
    group: str = DEFAULT,
    in_group: int | None = None,
    before: str = "",
    after: str = "",
) -> list[str]:
    """Return what the watchdog of one rank says of a call."""
    own = rank if in_group is None else in_group
    prefix = f"{before}[rank{rank}]:[E{at}.000000000 ProcessGroupNCCL.cpp:"
    work = f"WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn=64, NumelOut=64, Timeout(ms)={ran_s * 1000})"
    caught = f"Watchdog caught collective operation timeout: {work} ran for {ran_s * 1000 + 7} milliseconds before"
    status = f"PG status: last enqueued work: {number}, last completed work: {number - 1}"
    return [
        f"{prefix}629] [Rank {own}] {caught} timing out.{after}",
        f"{prefix}2168] [PG ID 0 PG GUID {group} Rank {own}]  failure detected by watchdog at work sequence id: "
        f"{number} {status}{after}",
        f"{prefix}1895] [PG ID 0 PG GUID {group} Rank {own}] Process group watchdog thread terminated with exception: "
        f"[Rank {own}] {caught} timing out.{after}",
    ]


def all_timed_out(
    ranks: Iterable[int], number: int, operation: str = "ALLREDUCE", *, at: str = "1117 08:00:00"
) -> list[str]:
    """Return the same of several ranks in the group of all."""
    return [line for rank in ranks for line in timed_out(rank, number, operation, at=at)]


def traceback(error: str, before: str = "") -> list[str]:
    """Return what Python prints of an exception."""
    frames = ["Traceback (most recent call last):", '  File "/app/train.py", line 88, in step', "    loss.backward()"]
    return [f"{before}{line}" for line in (*frames, error)]


def torchrun(rank: int, exit_code: int, *, at: str = "07:58:00", host: str = "node3", error: str = "") -> list[str]:
    """Return the report of torchrun on the process that failed first."""
    signal = f"Signal {-exit_code} received by PID 2303"
    return [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "======================================================",
        "train.py FAILED",
        "------------------------------------------------------",
        "Failures:",
        "  <NO_OTHER_FAILURES>",
        "------------------------------------------------------",
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : 2025-11-17_{at}",
        f"  host      : {host}",
        f"  rank      : {rank} (local_rank: {rank % 8})",
        f"  exitcode  : {exit_code} (pid: 2303)",
        "  error_file: <N/A>",
        f"  traceback : {error or (signal if exit_code < 0 else 'To enable traceback see: https://pytorch.org')}",
        "======================================================",
    ]


def nccl_init(ranks: Collection[int], size: int, how: str) -> list[str]:
    """Return what NCCL logs of the begin (START) or end (COMPLETE) of its initialisation."""
    return [
        f"node{rank // 4}:{2300 + rank}:{2400 + rank} [{rank % 4}] NCCL INFO ncclCommInitRank comm 0x5e rank {rank} "
        f"nranks {size} cudaDev {rank % 4} nvmlDev {rank % 4} busId 1b000 commId 0xad - Init {how}"
        for rank in ranks
    ]
