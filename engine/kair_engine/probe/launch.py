"""Which rank this process is, as its launcher told it: torchrun's variables, else Slurm's."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from kair_engine.errors import UsageError
from kair_engine.ranks import Rank


@dataclass(frozen=True)
class Launch:
    """This process among those that were launched together."""

    rank: Rank | None
    """None where nobody launched ranks."""
    world_size: int
    local_rank: int
    address: tuple[str, int] | None
    """Where they meet."""
    name: str | None
    """The same for all of them; None for one alone."""


def launch_of(environment: Mapping[str, str] = os.environ) -> Launch:
    """What the environment says. Raises UsageError where a variable is no number, or the rank none of the world."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _launch(environment, ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",))
    if "SLURM_PROCID" in environment:
        # Within a batch script Slurm tells the job's number of tasks; a step of it can have fewer.
        return _launch(environment, ("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",))
    return Launch(None, 1, 0, None, None)


def _launch(
    environment: Mapping[str, str], rank: tuple[str, ...], size: tuple[str, ...], local: tuple[str, ...]
) -> Launch:
    number, world_size = _number(environment, rank, 0), _number(environment, size, 1)
    if not 0 <= number < world_size:
        raise UsageError(f"${rank[0]} is {number}, but only {world_size} ranks were launched")
    place = _address(environment)
    name = None
    if world_size > 1:
        job = environment.get("TORCHELASTIC_RUN_ID") or environment.get("SLURM_JOB_ID") or ""
        step = environment.get("SLURM_STEP_ID", "")
        name = ":".join((*map(str, place or ()), job, step))
    return Launch(Rank(number), world_size, _number(environment, local, 0), place, name)


def _address(environment: Mapping[str, str]) -> tuple[str, int] | None:
    host = environment.get("MASTER_ADDR")
    if not host or "MASTER_PORT" not in environment:
        return None
    return host, _number(environment, ("MASTER_PORT",), 0)


def _number(environment: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    name = next((name for name in names if name in environment), None)
    if name is None:
        return default
    try:
        return int(environment[name])
    except ValueError:
        raise UsageError(f"${name} is not a whole number: {environment[name]!r}") from None
