"""Measures this machine: everything a probe has, in about the seconds that were asked for."""

import socket
import sys
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from kair_engine.errors import UsageError
from kair_engine.probe.gpu import chosen_gpu, gpu_name, gpu_quantities
from kair_engine.probe.host import cores, counted, host_quantities, processor_name, snapshot
from kair_engine.probe.launch import Launch, launch_of
from kair_engine.probe.link import link_series
from kair_engine.probe.processor import numpy_on_one_core, processor_quantities
from kair_engine.probe.recording import Recording, busy_warning, is_busy
from kair_engine.probe.repetitions import Quantity, Report, repeated, repetition_seconds
from kair_engine.ranks import Rank
from kair_engine.results.runs.probe import HostCounters, ProbedMachine

SHORTEST_S: Final = 0.1
LONGEST_S: Final = 3600
LINK_SHARE: Final = 0.25
"""Of the time, where there is a link."""
_LIBRARIES: Final = ("kair", "numpy", "torch")


def measured(seconds: float, device: str, rank: int | None, report: Report) -> Recording:
    """This machine's probe, as the rank that was launched, or `rank`. Raises UsageError for what cannot be measured."""
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
    busy = (busy_warning(machine),) if is_busy(machine) else ()
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
