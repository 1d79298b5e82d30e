"""Recordings of small runs in which all ranks meet in every step, to be mixed with one another."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from support import kineto_builder as kb
from support.altered import sample_files

STEP_US = 1000
_BASE_NS = 1_790_000_000_000_000_000


def write_run(
    folder: Path,
    lengths: Sequence[int],
    *,
    ranks: Sequence[int] = range(4),
    world: int = 4,
    slow: int | None = None,
    ahead_us: Mapping[int, float] | None = None,
    drift: float = 0.0,
    set_by_us: float = 0.0,
    host: str = "node0",
    names: Mapping[int, str] | None = None,
) -> Path:
    """A file for each of `ranks` of a job with a device: a kernel, and an all-reduce that all leave at once.

    Step k takes `lengths[k]` µs. The slow rank comes 200 µs later than the others. Clocks are ahead by `ahead_us`;
    the last rank's drifts by that share besides, and is set by so much after half of the steps.
    """
    for rank in ranks:
        events, began = [], 0.0
        for number, length in enumerate(lengths):
            ahead = (ahead_us or {}).get(rank, 0.0)
            if rank == ranks[-1]:
                ahead += drift * began + (set_by_us if 2 * number >= len(lengths) else 0.0)
            at, come = began + ahead, length - (100 if rank == slow else 300)
            first = 10 * number + 1
            events += [
                kb.step(number, at, length - 5),
                kb.launch(at + 5, 5, first),
                kb.kernel("gemm", at + 20, come - 30, first),
                kb.launch(at + 15, 5, first + 1),
                kb.kernel("ncclDevKernel_AllReduce_Sum_f32", at + come, length - come - 20, first + 1, stream=20),
            ]
            began += length
        header = {"host_name": host, "baseTimeNanoseconds": _BASE_NS, "deviceProperties": [{"id": 0, "name": "A100"}]}
        name = (names or {}).get(rank, f"rank{rank}.json")
        kb.write(folder / name, kb.trace(events, rank=rank, world=world, **header))
    return folder


def mixed(folder: Path, sample: str, other: str, ranks: Sequence[int], *, both: bool = False) -> Path:
    """A sample in which `ranks` have the files of another sample, or have those besides their own (`both`)."""
    folder.mkdir(parents=True)
    files, others = sample_files(sample), sample_files(other)
    for rank, (name, text) in files.items():
        if both or rank not in ranks:
            (folder / name).write_bytes(text)
        if rank in ranks:
            (folder / others[rank][0]).write_bytes(others[rank][1])
    return folder


def without(folder: Path, source: Path, names: Sequence[str]) -> Path:
    """A copy of a folder without some of its files."""
    return Path(shutil.copytree(source, folder, ignore=shutil.ignore_patterns(*names)))
