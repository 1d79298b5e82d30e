"""Which rank a process is: from the environment that the report keeps, or from what the process says of itself."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kair_engine.readers.identity import MAX_RANKS
from kair_engine.readers.nsys.database import Report

# (rank, world size) of launchers, the training's own first: a launcher of one task a node counts nodes.
_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PALS_RANKID", "PALS_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_NAMES: Final = frozenset(name for pair in _VARIABLES for name in pair)
_ASSIGNMENT: Final = re.compile(r"(?:^|[;\s])([A-Z0-9_]{4,24})=\"?(\d{1,7})\"?(?=[;\s]|$)")
_SAID: Final = re.compile(r"^(?:MPI )?(?:global )?rank[ _:=#-]*(\d{1,7})$", re.IGNORECASE)


@dataclass(frozen=True)
class Environment:
    """What the environment says of the process that was profiled."""

    rank: int | None = None
    world_size: int | None = None


def environment(report: Report) -> Environment:
    """Rank and world size of the launched process; nothing where a world of one says nothing."""
    values: dict[str, int] = {}
    texts = [
        value
        for name, value in report.rows("META_DATA_CAPTURE", ("name", "value"))
        if isinstance(value, str) and isinstance(name, str) and name.endswith("ENVIRONMENT_VARIABLE")
    ]
    texts += [
        value
        for name, value in report.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
        if name == "DeviceEnvironment" and isinstance(value, str)
    ]
    for text in texts:
        for name, number in _ASSIGNMENT.findall(text):
            if name in _NAMES:
                values.setdefault(name, int(number))
    for rank_name, size_name in _VARIABLES:
        rank, size = values.get(rank_name), values.get(size_name)
        if rank is not None and rank < MAX_RANKS and (size is None or rank < size) and (size or 0) != 1:
            return Environment(rank, size if size is not None and size <= MAX_RANKS else None)
    return Environment()


def said_rank(texts: Iterable[str]) -> int | None:
    """The rank that marks or names of a process state (`MPI Rank 3`), where all of them state one."""
    found = {int(match[1]) for text in texts if (match := _SAID.match(text.strip()))}
    return found.pop() if len(found) == 1 else None


def host_name(report: Report) -> str | None:
    """The name of the host that was profiled."""
    named = (value for name, value in report.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")) if name == "Hostname")
    return next((value for value in named if isinstance(value, str) and value), None)
