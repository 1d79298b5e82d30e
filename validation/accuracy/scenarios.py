"""Which jobs are simulated: healthy ones, and every fault on every layout where it can be seen."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np
from ahead_faults import DeviceStalls, HostBoundBeyond, HostBoundHidden, HostStalls, SlowInputBeyond, SlowInputHidden
from compute_faults import (
    ChangingCulprit,
    SequenceImbalance,
    SlowBesideSpinning,
    SlowGpu,
    SlowHost,
    SlowKernel,
    StageImbalance,
)
from costs import Noise
from fault_model import Fault
from host_faults import ClockSkew, GarbageCollection, HostBound, ProfilerOnOneRank, SlowInput, Stall
from layouts import AHEAD, STANDARD, JobLayout
from network_faults import SlowEdge, SlowLink
from run_ahead import ahead_of
from simulator import JobSpec

Random = np.random.Generator
Draw = Callable[[JobLayout, Random], tuple[Fault, ...]]
Kind = Literal["healthy", "nobody", "guilty"]

EDGE_DELAY_MS = 8.0
"""Per step, over all transfers of the pipeline edge."""
SKEW_NS = 5e6
RECORDINGS = (1, 5, 50)
"""Steps of shorter and longer recordings; all others have 20."""
SPREADS = (0.0, 0.005, 0.01)


@dataclass(frozen=True)
class Scenario:
    """Jobs of one kind: they differ in their seeds, which also choose the guilty ranks."""

    name: str
    layout: str
    jobs: int
    kind: Kind
    """Nothing is wrong; something, but it is nobody's fault; some ranks are guilty."""
    draw: Draw
    steps: int = 20
    noise: Noise = field(default_factory=Noise)
    compared: int = 0
    """Of the jobs, those that the other methods see as well."""
    calibrated: int = 0
    """Of the jobs, those whose p-value is taken."""

    @property
    def key(self) -> str:
        """Tells it from all others."""
        return f"{self.name}, {self.layout}, {self.steps} steps, {self.noise.spread:.1%}, {self.noise.operation:.0%}"

    def faults(self, seed: int) -> tuple[Fault, ...]:
        """What is wrong with the job of one seed."""
        return self.draw(STANDARD[self.layout], np.random.default_rng((seed, 1000)))

    @property
    def runs_ahead(self) -> bool:
        """Whether hosts go on to the next step while their devices are busy with this one."""
        return STANDARD[self.layout].runs_ahead

    def spec(self, seed: int) -> JobSpec:
        """The job of one seed."""
        layout = STANDARD[self.layout]
        ahead = ahead_of(layout, seed) if layout.runs_ahead else None
        return JobSpec(layout, self.steps, seed, self.faults(seed), self.noise, ahead=ahead)


@cache
def scenarios() -> tuple[Scenario, ...]:
    """All of them, in the order of the report."""
    return (*_healthy(), *_nobodys_fault(), *_guilty(), *_recordings(), *_of_other_programs(), *_ahead())


def _healthy() -> Iterator[Scenario]:
    def healthy(layout: str, jobs: int, *, steps: int = 20, noise: Noise | None = None, **more: int) -> Scenario:
        return Scenario("healthy", layout, jobs, "healthy", _nothing, steps, noise or Noise(), **more)

    for layout, compared in (("dp8", 60), ("dp64", 40), ("3d64", 20)):
        for spread in SPREADS:
            usual = spread == Noise().spread
            yield healthy(
                layout,
                300,
                noise=Noise(spread=spread),
                compared=compared if usual else 0,
                calibrated=100 * bool(spread),
            )
        yield healthy(layout, 100 if layout == "dp8" else 50, noise=Noise(spread=0.02))
        for operation in (0.02, 0.1):
            yield healthy(layout, 100 if layout == "dp8" else 40, noise=Noise(operation=operation))
    others = (
        ("3d16", 100),
        ("3d16 in 16 microbatches", 40),
        ("dp4", 200),
        ("dp16", 150),
        ("dp256", 40),
        ("dp1024", 6),
        ("3d256", 12),
        ("fsdp8", 150),
        ("fsdp64", 100),
    )
    for layout, jobs in others:
        yield healthy(layout, jobs)
    for layout, jobs in (("dp8", 150), ("dp64", 60)):
        for steps in RECORDINGS:
            yield healthy(layout, jobs if steps < 50 else jobs // 2, steps=steps)


def _nobodys_fault() -> Iterator[Scenario]:
    for layout, jobs in (("dp8", 100), ("dp64", 70), ("3d64", 40)):
        for name, visible in (("garbage collection, invisible", False), ("garbage collection, visible", True)):
            calibrated = jobs if not visible else 0
            yield Scenario(name, layout, jobs, "nobody", _collects_garbage(visible), calibrated=calibrated)
    for layout, jobs in (("dp8", 100), ("dp64", 100), ("3d64", 60), ("3d256", 12)):
        yield Scenario("sequence imbalance 0.2", layout, jobs, "nobody", _uneven_sequences_of(0.2), compared=jobs // 6)
    for layout, jobs in (("3d16", 60), ("3d16 in 16 microbatches", 40), ("3d64", 40), ("3d64 in 16 microbatches", 12)):
        yield Scenario("sequence imbalance 0.15", layout, jobs, "nobody", _uneven_sequences_of(0.15))
    for layout, jobs in (("3d16", 60), ("3d64", 60), ("3d256", 12)):
        yield Scenario("stage imbalance ×1.3", layout, jobs, "nobody", _uneven_stage, compared=jobs // 6)
    for layout, jobs in (("dp8", 60), ("dp64", 40), ("3d64", 20)):
        yield Scenario("changing culprit ×1.3", layout, jobs, "nobody", _changing)


def _guilty() -> Iterator[Scenario]:
    for layout, jobs in _JOBS.items():
        for name, (draw, on) in _FAULTS.items():
            count = int(jobs * (1.5 if name in _MAIN else 1.0))
            if layout in on:
                compared = _COMPARED[layout] if name in _COMPARED_FAULTS else 0
                yield Scenario(name, layout, count, "guilty", draw, compared=compared)


def _recordings() -> Iterator[Scenario]:
    for name in ("slow GPU ×1.1", _STALL):
        for layout, jobs in (("dp8", 80), ("dp64", 30), ("3d64", 16)):
            for steps in RECORDINGS:
                count = jobs if steps < 50 else jobs // 2
                # A stall that never comes is no fault: of single steps two thirds are without.
                count *= 3 if name == _STALL and steps == 1 else 1
                yield Scenario(name, layout, count, "guilty", _FAULTS[name][0], steps)


def _of_other_programs() -> Iterator[Scenario]:
    """Programs, recorders and collectives of other kinds: fsdp layouts gather ahead, and hosts run ahead in all."""
    for layout in ("dp8 recomputing", "dp8 as CUDA graph"):
        yield Scenario("healthy", layout, 100, "healthy", _nothing)
        for name in ("slow GPU ×1.1", "slow kernel ×1.5"):
            yield Scenario(name, layout, 60, "guilty", _FAULTS[name][0])
    for layout, jobs in (("dp8", 100), ("3d64", 30)):
        yield Scenario("profiler on rank 0 alone", layout, jobs, "healthy", _profiled)
    yield Scenario("slow GPU ×1.1, others spin", "dp8", 60, "guilty", _beside_spinning)


def _ahead() -> Iterator[Scenario]:
    """Jobs without a synchronisation in every step: the launch queue hides delays of hosts, and full it blocks them."""
    for layout in AHEAD:
        small = STANDARD[layout].ranks == 8
        steps, jobs = (20, 20) if small else (10, 12 if STANDARD[layout].kind == "dp" else 8)
        yield Scenario("ahead: healthy", layout, 2 * jobs, "healthy", _nothing, steps)
        for name, draw in _FAULTS_AHEAD.items():
            # Hosts that are slower than their devices, or wait for them now and then, have nothing to spare.
            if not (name.endswith("hidden") and layout in ("dp8 slow hosts", "dp8 loss read every 4 steps")):
                yield Scenario(f"ahead: {name}", layout, jobs, "guilty", draw, steps)


def _profiled(_layout: JobLayout, _random: Random) -> tuple[Fault, ...]:
    return (ProfilerOnOneRank(0, 0.6),)


def _beside_spinning(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    return (SlowBesideSpinning(_anyone(layout, random), 1.1, 0.02),)


def _anyone(layout: JobLayout, random: Random) -> int:
    return int(random.integers(layout.ranks))


def _two(layout: JobLayout, random: Random) -> tuple[int, int]:
    first, second = random.choice(layout.ranks, 2, replace=False).tolist()
    return first, second


def _nothing(_layout: JobLayout, _random: Random) -> tuple[Fault, ...]:
    return ()


def _gpu(factor: float) -> Draw:
    return lambda layout, random: (SlowGpu(_anyone(layout, random), factor),)


def _slow_kernel(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    return (SlowKernel(_anyone(layout, random), "attention", 1.5),)


def _host_bound(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    return (HostBound(_anyone(layout, random), 0.15),)


def _slow_input(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    return (SlowInput(_anyone(layout, random), 0.15),)


def _stall(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    return (Stall(_anyone(layout, random), 0.3, 0.4),)


def _hidden(fault: type[SlowInputHidden | HostBoundHidden]) -> Draw:
    return lambda layout, random: (fault(_anyone(layout, random), float(random.uniform(0.4, 0.8))),)


def _beyond(fault: type[SlowInputBeyond | HostBoundBeyond]) -> Draw:
    return lambda layout, random: (fault(_anyone(layout, random), float(random.uniform(0.1, 0.3))),)


def _device_stalls(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    return (DeviceStalls(_anyone(layout, random), 3, 0.4),)


def _host_stalls(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    return (HostStalls(_anyone(layout, random), 3, 0.4),)


def _host_pauses(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    return (HostStalls(_anyone(layout, random), 1, float(random.uniform(1.0, 4.0))),)


def _slow_host(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    return (SlowHost(str(random.choice(layout.hosts)), 1.1),)


def _slow_link(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    return (SlowLink(_anyone(layout, random), 4.0),)


def _slow_edge(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    stage, dp, tp = (int(random.integers(size)) for size in (layout.pp - 1, layout.dp, layout.tp))
    return (SlowEdge(stage, dp, tp, extra_ms=EDGE_DELAY_MS / (2 * layout.microbatches)),)


def _skewed(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    return SlowGpu(_anyone(layout, random), 1.1), ClockSkew(SKEW_NS)


def _gpu_and_input(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    first, second = _two(layout, random)
    return SlowGpu(first, 1.1), SlowInput(second, 0.15)


def _two_gpus(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    first, second = _two(layout, random)
    return SlowGpu(first, 1.1), SlowGpu(second, 1.2)


def _collects_garbage(visible: bool) -> Draw:
    def draw(_layout: JobLayout, random: Random) -> tuple[Fault, ...]:
        return (GarbageCollection(float(random.uniform(0.05, 0.1)), float(random.uniform(15, 25)), visible),)

    return draw


def _uneven_sequences_of(cv: float) -> Draw:
    def draw(_layout: JobLayout, _random: Random) -> tuple[Fault, ...]:
        return (SequenceImbalance(cv),)

    return draw


def _uneven_stage(layout: JobLayout, random: Random) -> tuple[Fault, ...]:
    return (StageImbalance(int(random.integers(layout.pp)), 1.3),)


def _changing(_layout: JobLayout, _random: Random) -> tuple[Fault, ...]:
    return (ChangingCulprit(1.3),)


_STALL = "stall of 40 % in 30 % of the steps"
_SMALL, _LARGE = ("dp8", "dp16", "dp64", "3d64", "fsdp8"), ("dp256", "3d256")
_SEVERAL_HOSTS = ("dp16", "dp64", "dp256", "3d64", "3d256")
_FAULTS: dict[str, tuple[Draw, tuple[str, ...]]] = {
    "slow GPU ×1.02": (_gpu(1.02), _SMALL),
    "slow GPU ×1.05": (_gpu(1.05), (*_SMALL, *_LARGE)),
    "slow GPU ×1.1": (_gpu(1.1), ("dp4", *_SMALL, *_LARGE, "dp1024")),
    "slow GPU ×1.3": (_gpu(1.3), ("dp4", *_SMALL, "dp1024")),
    "slow kernel ×1.5": (_slow_kernel, (*_SMALL, *_LARGE)),
    "host-bound 15 %": (_host_bound, (*_SMALL, "dp256")),
    "slow input 15 %": (_slow_input, ("dp4", *_SMALL, *_LARGE, "dp1024")),
    _STALL: (_stall, (*_SMALL, *_LARGE)),
    "slow host ×1.1": (_slow_host, (*_SEVERAL_HOSTS, "dp1024")),
    "slow link ×4": (_slow_link, ("3d64", "3d256")),
    "slow pipeline edge +8 ms": (_slow_edge, ("3d16", "3d64", "3d256")),
    "slow GPU ×1.1, clocks skewed 5 ms": (_skewed, ("dp16", "dp64", "dp256", "3d64")),
    "slow GPU ×1.1 and slow input 15 %": (_gpu_and_input, _SMALL),
    "slow GPUs ×1.1 and ×1.2": (_two_gpus, _SMALL),
}
_JOBS = {"dp4": 80, "dp8": 100, "dp16": 60, "dp64": 70, "dp256": 10, "dp1024": 3}
_JOBS |= {"3d16": 60, "3d64": 36, "3d256": 4, "fsdp8": 40}
"""Per fault; half as many again of the main ones."""
_MAIN = ("slow GPU ×1.05", "slow GPU ×1.1", "slow kernel ×1.5", "slow input 15 %")
_COMPARED = {
    "dp4": 0,
    "dp8": 40,
    "dp16": 10,
    "dp64": 25,
    "dp256": 3,
    "dp1024": 0,
    "3d16": 0,
    "3d64": 12,
    "3d256": 0,
    "fsdp8": 0,
}
_COMPARED_FAULTS = (
    *("slow GPU ×1.02", "slow GPU ×1.05", "slow GPU ×1.1", "slow GPU ×1.3", "slow kernel ×1.5"),
    *("host-bound 15 %", "slow input 15 %", _STALL, "slow host ×1.1", "slow pipeline edge +8 ms"),
)
_FAULTS_AHEAD: dict[str, Draw] = {
    "slow GPU ×1.1": _gpu(1.1),
    "slow GPU ×1.3": _gpu(1.3),
    "slow kernel ×1.5": _slow_kernel,
    "device stalls of 40 % in 3 of 10 steps": _device_stalls,
    "host stalls of 40 % in 3 of 10 steps": _host_stalls,
    "host pauses of 1 to 4 steps in 1 of 10": _host_pauses,
    "slow input, hidden": _hidden(SlowInputHidden),
    "slow input, beyond the period": _beyond(SlowInputBeyond),
    "host-bound, hidden": _hidden(HostBoundHidden),
    "host-bound, beyond the period": _beyond(HostBoundBeyond),
}
"""Of jobs that run ahead. What is hidden, and so nobody's fault, is told by what it costs."""
