"""Measures this machine: everything a probe has, in about the seconds that were asked for.

Which rank this process is, its launcher states: torchrun's variables, else Slurm's.

The link between ranks that were launched together: all-reduces of several sizes, by torch.distributed.
"""

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from kair_engine.errors import UsageError
from kair_engine.probe.quantities import (
    Torch,
    chosen_gpu,
    cores,
    counted,
    gpu_name,
    gpu_quantities,
    host_quantities,
    numpy_on_one_core,
    processor_name,
    processor_quantities,
    snapshot,
    torch_if_there,
)
from kair_engine.probe.recording import (
    MAX_REPETITIONS,
    Quantity,
    Recording,
    Report,
    Series,
    busy_warning,
    repeated,
    repetition_seconds,
    seconds_of,
)
from kair_engine.ranks import Rank
from kair_engine.results.probe import HostCounters, LinkState, MeasureName, ProbedMachine
from kair_engine.trace.model import KairWarning


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
    """Return what the environment says.

    Raises UsageError where a variable is no number, or the rank none of the world.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _launch(environment, ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",))
    if "SLURM_PROCID" in environment:
        # Within a batch script Slurm states the job's number of tasks; a step of it can have fewer.
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


SHORTEST_S: Final = 0.1
LONGEST_S: Final = 3600
LINK_SHARE: Final = 0.25
"""Of the time, where there is a link."""
_LIBRARIES: Final = ("kair", "numpy", "torch")


def measured(seconds: float, device: str, rank: int | None, report: Report) -> Recording:
    """Return this machine's probe, as the rank that was launched, or `rank`.

    Raises UsageError for what cannot be measured.
    """
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise UsageError(f"--seconds must be between {SHORTEST_S:g} and {LONGEST_S}, got {seconds:g}")
    launch = launch_of()
    threads = numpy_on_one_core()  # before torch, which loads it too
    gpu = chosen_gpu(device, launch.local_rank)
    # Ranks meet at the start, when all have just been launched.
    link, state, warnings = link_series(launch, gpu, seconds * LINK_SHARE)
    alone_s = seconds * (1 - LINK_SHARE) if link else seconds
    quantities = _quantities(gpu, threads, alone_s)
    before = snapshot()
    series = repeated(quantities, alone_s, report)
    counters = counted(before, snapshot())
    machine = _machine(replace(launch, rank=launch.rank if rank is None else Rank(rank)), gpu, seconds, counters)
    busy = (busy_warning(machine),) if machine.is_busy else ()
    return Recording(machine, (*series, *link), state, (*warnings, *busy))


def _quantities(gpu: int | None, threads: str, seconds: float) -> tuple[Quantity, ...]:
    repetition_s = repetition_seconds(seconds, 4 if gpu is None else 6)
    device = () if gpu is None else gpu_quantities(gpu, repetition_s)
    return *device, *processor_quantities(threads, repetition_s), *host_quantities(repetition_s)


def _machine(launch: Launch, gpu: int | None, seconds: float, counters: HostCounters) -> ProbedMachine:
    processor = processor_name()
    return ProbedMachine(
        host=socket.gethostname(),
        rank=launch.rank,
        world_size=launch.world_size,
        launch=launch.name,
        device=processor if gpu is None else gpu_name(gpu),
        processor=processor,
        cpus=cores(),
        versions=_versions(),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        counters=counters,
    )


def _versions() -> dict[str, str]:
    """Of Python and of the libraries that measured."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _LIBRARIES:
        if name == "kair" or name in sys.modules:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
    return found


SIZES: Final[tuple[tuple[MeasureName, int], ...]] = (
    ("all_reduce_64_kib", 64 << 10),
    ("all_reduce_1_mib", 1 << 20),
    ("all_reduce_16_mib", 16 << 20),
)
MEETING_S: Final = 120
"""How long ranks wait for one another: one may have to load torch from a slow disk."""
_WARM_UP: Final = 3
_FEWEST: Final = 8


def link_series(
    launch: Launch, gpu: int | None, seconds: float
) -> tuple[tuple[Series, ...], LinkState, tuple[KairWarning, ...]]:
    """Return the all-reduces of this launch; else why there are none, with a warning where ranks were launched
    together.
    """
    if launch.world_size == 1:
        return (), "one_rank", ()
    if launch.address is None:
        return (), "no_address", (_left_out("$MASTER_ADDR and $MASTER_PORT do not say where the ranks meet"),)
    torch = torch_if_there()
    if torch is None or not import_module("torch.distributed").is_available():
        return (), "no_torch", (_left_out("torch.distributed is not installed"),)
    try:
        return _measured(torch, launch, gpu, seconds), "measured", ()
    except (RuntimeError, OSError, ValueError) as error:
        return (), "failed", (_left_out(" ".join(str(error).split())[:200]),)


def _left_out(why: str) -> KairWarning:
    return KairWarning("no_link", f"the link between the ranks was not measured: {why}")


def _measured(torch: Torch, launch: Launch, gpu: int | None, seconds: float) -> tuple[Series, ...]:
    distributed = import_module("torch.distributed")
    if gpu is not None:
        torch.cuda.set_device(gpu)
    distributed.init_process_group(
        "gloo" if gpu is None else "nccl",
        # By the environment, from which torch also learns whether the launcher keeps the meeting place already.
        init_method="env://",
        rank=launch.rank,
        world_size=launch.world_size,
        timeout=timedelta(seconds=MEETING_S),
    )
    try:
        return tuple(_all_reduces(torch, gpu, name, size, seconds / len(SIZES)) for name, size in SIZES)
    finally:
        with suppress(RuntimeError):
            distributed.destroy_process_group()


def _all_reduces(torch: Torch, gpu: int | None, name: MeasureName, size: int, seconds: float) -> Series:
    """All-reduces of one size, as many on every rank: the first rank says how many fit."""
    device = "cpu" if gpu is None else f"cuda:{gpu}"
    distributed = import_module("torch.distributed")
    values = torch.zeros(size // 4, dtype=torch.float32, device=device)

    def reduce(times: int) -> None:
        for _ in range(times):
            distributed.all_reduce(values)
        if gpu is not None:
            torch.cuda.synchronize(gpu)

    reduce(_WARM_UP)
    fitting = int(seconds / seconds_of(reduce, _WARM_UP) * _WARM_UP)
    times = torch.tensor([min(max(fitting, _FEWEST), MAX_REPETITIONS)], device=device)
    distributed.broadcast(times, src=0)
    took = tuple(seconds_of(reduce, 1) * 1e6 for _ in range(int(times.item())))
    return Series(name, f"{distributed.get_world_size()} ranks, {distributed.get_backend()}", "us", took)
