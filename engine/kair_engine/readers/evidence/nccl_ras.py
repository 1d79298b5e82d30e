"""Reads NCCL RAS output (`ncclras -v`, text or JSON) as evidence: ranks that are behind or do not answer.

kair_engine.readers.ras reads the same output as a recording of a hang; here it supplements one.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kair_engine.errors import InputError
from kair_engine.readers.evidence.moments import modified_ns
from kair_engine.readers.evidence.opening import FileRows
from kair_engine.readers.paths import MAX_RANKS
from kair_engine.readers.ras import Communicator, answer_of, job_ranks
from kair_engine.trace.evidence_table import EvidenceFile
from kair_engine.trace.measures import HOST, of_rank, process

KIND: Final = "ncclras"

_MOST_SAID: Final = 10_000
"""Most ranks of a file that are reported."""
_PROCESS: Final = re.compile(r"GPU (\d{1,3}) managed by process (\d{1,7}) on node (\S{1,253})")


def fits(name: str, head: bytes) -> bool:  # noqa: ARG001  (the content is enough)
    """Return whether it begins like RAS output, as text or as JSON."""
    start = head.lstrip()
    if start[:1] == b"{":
        return b'"nccl_version"' in head and b'"communicators' in head
    return start.startswith(b"NCCL version ") and b"Job summary" in head


def read(path: Path) -> EvidenceFile:
    """Return an event for each rank that is behind the others or does not answer.

    In a communicator of all GPUs, ranks are the job's; in others the process is named, if RAS does. Raises InputError
    if the file is damaged or is not RAS output.
    """
    communicators, gpus, _ = answer_of(path)
    if not 0 < gpus <= MAX_RANKS:
        raise InputError(f"{path} is no answer of RAS: it does not say how many GPUs the job has")
    rows = FileRows(path, KIND)
    time_ns = modified_ns(path)
    names = job_ranks(communicators, gpus)
    left_out = 0
    for one in communicators:
        rows.hosts |= {str(device[0]) for device in one.devices.values() if device[0]}
        for number, said, count in _said(one):
            if len(rows) >= _MOST_SAID:
                left_out += 1
                continue
            host, pid = _process(one, number)
            rank = names.get(one.name, {}).get(number)
            entity = of_rank(rank) if rank is not None else process(pid) if pid else HOST
            text = f"rank {number} of {one.size} in communicator {one.name}: {said}"
            rows.add(time_ns, entity, "nccl_report", count, host=host, rank=rank, text=text, raw=rows.at())
    rows.note("the time is when the file was written, because RAS has none")
    rows.note(f"{left_out} more ranks are behind, or do not answer", holds=left_out)
    return rows.evidence(observes=("nccl_report",))


def _said(one: Communicator) -> Iterator[tuple[int, str, int | None]]:
    """Yield (rank, description, number of launched operations) for a communicator's ranks that RAS mentions."""
    for rank, words in sorted(one.missing.items()):
        yield rank, f"does not answer{words and f' ({words[:200]})'}", None
    for kind, fewer, most in one.behind():
        for rank, count in sorted(fewer.items()):
            yield rank, f"has launched {count} {kind}, others {most}", count


def _process(one: Communicator, rank: int) -> tuple[str | None, int | None]:
    """Return (host, process id) as far as RAS names them."""
    device = one.devices.get(rank)
    if device is not None and device[0]:
        return str(device[0]), device[1] if 0 < device[1] < 1 << 22 else None
    match = _PROCESS.search(one.missing.get(rank, ""))
    return (match[3], int(match[2])) if match else (None, None)
