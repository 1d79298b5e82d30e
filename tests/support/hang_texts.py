"""What is said of hung jobs in text: lines of NCCL's watchdog in a log, and what NCCL's RAS prints."""

from collections.abc import Collection, Iterable

CPP = "ProcessGroupNCCL.cpp"


def caught(rank: int, *, number: int = 808, operation: str = "ALLREDUCE", elements: int = 4096) -> str:
    work = f"WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn={elements}, NumelOut={elements}, Timeout(ms)=600000)"
    return (
        f"[rank{rank}]:[E626 06:24:44.903881913 {CPP}:632] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"{work} ran for 600020 milliseconds before timing out."
    )


def failed(rank: int, *, number: int = 808, enqueued: int = 811, group: str = "PG ID 0 PG GUID 0(default_pg)") -> str:
    return (
        f"[rank{rank}]:[E626 06:24:44.905538748 {CPP}:2268] [{group} Rank {rank}]  failure detected by watchdog at "
        f"work sequence id: {number} PG status: last enqueued work: {enqueued}, last completed work: {number - 1}"
    )


def failed_in_2_4(rank: int) -> str:
    return (
        f"[rank{rank}]:[E321 02:07:08.465150152 {CPP}:1664] [PG 0 (default_pg) Rank {rank}] Exception (either an error "
        "or timeout) detected by watchdog at work: 808, last enqueued NCCL work: 811, last completed NCCL work: 807."
    )


def signalled(rank: int, *, last: int = 807) -> str:
    return (
        f"[rank{rank}]:[E703 15:37:17.178360488 {CPP}:1987] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a "
        f"dump signal due to a collective timeout from  rank 7 and we will try our best to dump the debug info. Last "
        f"enqueued NCCL work: {last}, last completed NCCL work: {last}.This is most likely caused by incorrect usages"
    )


def stack(rank: int) -> Iterable[str]:
    yield f"[rank{rank}]:[E606 09:09:08.170255835 {CPP}:801] Stack trace of the failed collective:"
    yield "#0 all_reduce from /venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:2696"
    yield "#1 step from /workspace/train.py:120"
    yield ""


def timed_out(ranks: Collection[int]) -> list[str]:
    return [line for rank in ranks for line in (caught(rank), failed(rank), *stack(rank))]


HEAD = """NCCL version 2.26.2 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
OF_ALL = "    0         1         4         8        32        32   RUNNING  MISMATCH\n"
NONE = "\nErrors\n======\n\nWarnings\n========\n\n"


def mismatch(*lines: str, kind: str = "AllGather", name: str = "#0-0 (fa93daea854b060b)") -> str:
    told = "\n".join(f"  {line}" for line in (f"Communicator ranks have different {kind} operation counts", *lines))
    return f"{name} MISMATCH\n{told}\n\n"


def process(rank: int) -> str:
    return f"Rank {rank} -- GPU {rank % 8} managed by process {323000 + rank} on node 10.137.190.{rank // 8}"
