"""What is true of a take, from its take.json alone; pure functions.

take.json holds
  take      the draw: every field of drawing.Take, or of written.script_drawing.WrittenTake (`faults`: kind, ranks,
            severity as drawn, onset, place, share_of_steps; `host_of_rank`; `pinning`; `load`; `seed`, of drawn
            blocks below 100 for tuning)
  torch     its version
  began     when it began, seconds since the epoch
  ranks     for each rank
    rank, host, trace (the name of its file under traces/), parameters (how many numbers it trains)
    reference  before any fault or load: step_ns, process_ns and own_ns (medians of a step's length, of all its
               threads' CPU time and of what the rank took for itself), sent_bytes (a step's, by its host; two hosts
               only), steps (as below)
    steps      for each recorded step
      begin_ns, end_ns       since the epoch: one clock for all ranks and stops
      run_ns, delay_ns       the main thread was on a core; was ready, and waited for one
      process_ns             CPU time of all the process's threads
      voluntary, involuntary switches of the main thread
      injected_wall_ns, injected_run_ns, injected_delay_ns   within the fault's own code: its length, and the
                             parts of run_ns and delay_ns that fall into it
      waited_ns              on a GPU only: waiting for the others, when the rank's own work was done on the host and
                             on the GPU, and it was not stopped
      throttled_ns           of the rank's CPU group, where it has a quota
      machine_busy_ns        rank 0 only: what the machine's cores ran, in ticks of 10 ms
  stops     for each fault that stops ranks: fault (its index), ranks, spells [begin, end] (ns since the epoch)
  outside   what the other faults from outside came to: nice level, quota and period, bits per second of a link

Step s of the lists is the trace's ProfilerStep#(s + AnyTake.lead_steps), but for scripts, whose authors differ in that.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from drawing import CORES


@dataclass(frozen=True)
class StepParts:
    """Where a rank's own time of a step went, nanoseconds that do not overlap, but for the last.

    Attributes:
        length: from begin to end, waiting for others included.
        run: the main thread on a core, a fault's work included.
        delay: the main thread ready, but without a core.
        asleep: in a fault's code, neither of the two (`sleep`).
        stopped: stopped by a signal, and not counted as ready meanwhile.
        throttled: of its CPU group; the kernel may count it in `delay` too, so `own` leaves it out.
        waited: for the others, as a rank on a GPU measured it; None where the other parts tell.
    """

    length: int
    run: int
    delay: int
    asleep: int
    stopped: int
    throttled: int
    waited: int | None = None

    @property
    def own(self) -> int:
        """The time that the rank itself took, rather than waited for others."""
        if self.waited is not None:
            return self.length - self.waited
        return self.run + self.delay + self.asleep + self.stopped


def step_parts(document: dict[str, Any], rank: int) -> list[StepParts]:
    """The parts of each recorded step of `rank`."""
    spells = [spell for stop in document["stops"] if rank in stop["ranks"] for spell in stop["spells"]]
    return [parts_of(step, spells) for step in document["ranks"][rank]["steps"]]


def parts_of(step: dict[str, int], spells: list[list[int]]) -> StepParts:
    asleep = step["injected_wall_ns"] - step["injected_run_ns"] - step["injected_delay_ns"]
    stopped = sum(max(0, min(end, step["end_ns"]) - max(begin, step["begin_ns"])) for begin, end in spells)
    return StepParts(
        length=step["end_ns"] - step["begin_ns"],
        run=step["run_ns"],
        delay=step["delay_ns"],
        # Where a stop falls into a fault's code it is a stop.
        asleep=max(0, asleep - stopped),
        stopped=stopped,
        throttled=step.get("throttled_ns", 0),
        waited=step.get("waited_ns"),
    )


def median_step_ns(document: dict[str, Any], first: int = 0) -> float:
    """The median length of all ranks' recorded steps, from step `first` on."""
    ranks = range(len(document["ranks"]))
    return median(parts.length for rank in ranks for parts in step_parts(document, rank)[first:])


def mean_step_ns(document: dict[str, Any]) -> float:
    """The mean length of all ranks' recorded steps."""
    ranks = range(len(document["ranks"]))
    return mean(parts.length for rank in ranks for parts in step_parts(document, rank))


def peers(document: dict[str, Any], rank: int) -> list[int]:
    """The ranks that do the same work as `rank`, without it; none where each is a stage of its own."""
    count, parallel = document["take"]["ranks"], document["take"]["parallel"]
    size = {"pipeline": count // 2, "stages": 1}.get(parallel, count)
    return [other for other in range(count) if other // size == rank // size and other != rank]


def compared(document: dict[str, Any], rank: int) -> dict[int, float]:
    """The ranks that `rank` is compared with, and what their own time is to be multiplied by.

    Of three ranks on two cores two share one: of either the other one tells what it takes for itself without a fault.
    A rank without peers is compared with all others, each by how much more or less it took before any fault or load.
    """
    alike = peers(document, rank)
    if alike:
        as_crowded = [other for other in alike if crowding(document, other) == crowding(document, rank)]
        return dict.fromkeys(as_crowded or alike, 1.0)
    before = [one["reference"].get("own_ns") for one in document["ranks"]]
    return {other: before[rank] / before[other] for other in range(len(before)) if other != rank}


def crowding(document: dict[str, Any], rank: int) -> int:
    """How many ranks share the core of `rank`; 0 where each has one for itself, or all the same."""
    take = document["take"]
    if take["pinning"] != "round_robin":
        return 0
    return len(range(rank % CORES, take["ranks"], CORES))


def delivering_share(document: dict[str, Any]) -> float:
    """Of the median step: what a slow link needs for what its host sends in a step; 0 where there is none.

    It may happen beside computing: it is no severity, which is what the step takes longer.
    """
    links = [of for name, of in document["outside"].items() if name.startswith("link")]
    longest = max((of["sent_bytes"] * 8 / of["bits_per_s"] for of in links), default=0.0)
    return float(longest * 1e9 / median_step_ns(document))


def guilty_ranks(document: dict[str, Any]) -> list[int]:
    """The ranks that a fault of one rank is at; empty where the take is healthy or all ranks share the fault.

    A slow link is that of all ranks on its host.
    """
    return sorted({*slowed_ranks(document), *ranks_of_link(document)})


def slowed_ranks(document: dict[str, Any]) -> list[int]:
    """Those of them whose own time the fault makes longer: a slow link makes ranks wait."""
    faults = (one for one in document["take"]["faults"] if one["kind"] != "slow_link")
    return sorted({rank for fault in faults if len(fault["ranks"]) == 1 for rank in fault["ranks"]})


def ranks_of_link(document: dict[str, Any]) -> list[int]:
    """All ranks of hosts whose link is slow."""
    links = [one for one in document["take"]["faults"] if one["kind"] == "slow_link"]
    if not links:
        return []
    hosts = document["take"]["host_of_rank"]
    slow = {hosts[one["ranks"][0]] for one in links}
    return [rank for rank, host in enumerate(hosts) if host in slow]
