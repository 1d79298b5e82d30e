"""Compares what triage says of a take with what was measured in it; pure functions on plain values."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from drawing import CHORES
from truth import (
    compared,
    delivering_share,
    guilty_ranks,
    median_step_ns,
    parts_of,
    ranks_of_link,
    slowed_ranks,
    step_parts,
)

RIGHT_CAUSES: Final[dict[str, frozenset[str]]] = {
    "extra_work": frozenset({"uneven_work"}),
    "larger_batch": frozenset({"uneven_work"}),
    "extra_layers": frozenset({"uneven_work"}),
    "small_operators": frozenset({"uneven_work"}),
    "slower_kernel": frozenset({"compute"}),
    "slow_input": frozenset({"input", "unmarked_input"}),
    "busy_python": frozenset({"host"}),
    "sleep": frozenset({"host"}),
    # From inside, a process that is stopped or has no core looks the same.
    "sigstop": frozenset({"contention", "host"}),
    "nice": frozenset({"contention"}),
    "quota": frozenset({"contention"}),
    "core_hog": frozenset({"contention"}),
    "bandwidth_hog": frozenset({"contention", "compute"}),
    # The profiler does not record collections by hand: they are Python that holds up the thread.
    "garbage_collection": frozenset({"garbage_collection", "host"}),
    "slow_link": frozenset({"communication"}),
    # What rank 0 does at a step's end.
    **dict.fromkeys(CHORES, frozenset({"periodic_pause", "host", "uneven_work"})),
    # On a GPU: operators that the others lack, which keep the host waiting and the GPU idle.
    "synchronising_copies": frozenset({"uneven_work", "host"}),
}
"""A fault's kind → the causes that name it."""
SHARED: Final[dict[str, frozenset[str]]] = {
    "quota_on_all": frozenset({"contention"}),
    "stops_on_all": frozenset({"contention"}),
    "busy_processes_x2": frozenset({"contention"}),
    "busy_processes_x4": frozenset({"contention"}),
    "threads_x2": frozenset({"contention"}),
    "threads_x4": frozenset({"contention"}),
    "slow_links": frozenset({"exposed_communication"}),
    # On a GPU.
    "gpu_hog": frozenset({"device_contention"}),
    "slow_input_on_all": frozenset({"input", "input_bound"}),
    "launch_bound": frozenset({"launch_bound"}),
    "synchronising_copies_on_all": frozenset({"copies", "launch_bound"}),
}
"""A fault's kind that all ranks share → the causes that name it, on no rank."""
TRULY_SLOWER: Final = 0.05
"""Of the step: a rank that measurably took so much more for itself than its peers is no innocent, fault or not."""
LACKS_CORES: Final = 0.05
"""Of the step: the mean rank has to be ready without a core for as long; triage asks as much of stops."""
SHORTEST: Final = 0.01
"""Of the step: a shorter sleep is what a call takes that does not sleep."""
COSTS_NOTHING: Final = 0.01
"""Of the steps: a take whose chores took less is healthy, since nobody would gain a hundredth without them."""
NOTABLE, LARGE, ENOUGH_STEPS = 0.10, 0.25, 8
"""Faults that must be found: as shares of the step, measured, over so many steps."""
CLEARED_STEPS = 10
"""Of so many steps healthy jobs must be cleared."""


@dataclass(frozen=True)
class Scored:
    """One take: what it was, and how the answer compares."""

    seed: int
    kind: str
    """`healthy`, `fault`, `link` (a slow one, and nothing else), `shared`, or `two` (faults at once)."""
    fault: str | None
    from_outside: bool
    """Whether the system does something to the rank (signals, quotas, priority, other processes), not its program."""
    load: str
    ranks: int
    steps: int
    """From the fault's onset on."""
    hit: int
    """Of these steps, those in which the slowest guilty rank's fault was there: some come in a few steps only."""
    severity: float
    """Measured: how much more of the step the slowest rank with a fault took for itself than its peers, in the mean.

    A slow link is no such fault: it makes ranks wait, and no rank's own time longer.
    """
    verdict: str
    accused: tuple[int, ...]
    """By findings about ranks."""
    more: tuple[float, ...]
    """Measured of each of these: how much more of the step it took for itself than its peers, in the mean."""
    innocents: tuple[int, ...]
    """Accused, without a fault, and not measurably slower than their peers either."""
    right_rank: bool
    right_cause: bool
    leads: bool
    """Whether a rank with a fault is first in the ranking."""
    said_shared: bool
    """Whether contention on all ranks was found."""
    shared_price: float | None
    """What the step would save without it by the answer, in ms."""
    delivering: float
    """What a slow link needs for what its host sends in a step, as a share of the step; 0 where there is none."""
    right_link: bool
    """Whether a finding about communication names ranks of that host."""
    delayed: float
    """Measured: the share of the median step that the mean rank's main thread was ready and had no core."""
    is_cleared: bool
    """Whether the answer is that there is no straggler; or first of all a lack of cores on all ranks, which is true."""
    names_largest: bool | None
    """Whether the first line names the largest open item; None where that was not kept."""


def score(document: dict[str, Any], answer: dict[str, Any]) -> Scored:
    """`document` is a take.json, `answer` what `kair triage --json` says of it."""
    take = document["take"]
    guilty = set(guilty_ranks(document))
    slower = set(slowed_ranks(document))
    faults = take["faults"]
    first = min((fault.get("onset") or 0 for fault in faults), default=0)
    more = {rank: mean_excess(document, rank, first) for rank in range(take["ranks"])}
    findings = [one for one in answer["findings"] if one["ranks"]]
    accused = {rank for one in findings for rank in one["ranks"]}
    alone = {fault["kind"] for fault in faults}
    sought = frozenset[str]().union(*(SHARED[kind] for kind in alone if kind in SHARED)) or {"contention"}
    shared = next((one for one in answer["findings"] if one["cause"] in sought and not one["ranks"]), None)
    named = [one for one in findings if guilty & set(one["ranks"])]
    kinds = [fault["kind"] for fault in faults if fault["kind"] not in SHARED]
    causes = frozenset[str]().union(*(RIGHT_CAUSES[kind] for kind in kinds))
    return Scored(
        seed=take["seed"],
        kind="healthy" if faults and chores_share(document) < COSTS_NOTHING else _kind(alone, len(faults)),
        fault="+".join(sorted(alone)) or None,
        from_outside=any(fault.get("place") == "outside" for fault in faults),
        load=take["load"],
        ranks=take["ranks"],
        steps=take["steps"] - first,
        hit=max(((more[rank], steps_hit(document, rank, first)) for rank in slower), default=(0.0, 0))[1],
        severity=max((more[rank] for rank in slower), default=0.0),
        verdict=answer["verdict"],
        accused=tuple(sorted(accused)),
        more=tuple(more[rank] for rank in sorted(accused)),
        innocents=tuple(sorted(rank for rank in accused - guilty if more[rank] < TRULY_SLOWER)),
        right_rank=bool(named),
        right_cause=any(one["cause"] in causes for one in named),
        leads=answer.get("first") in guilty,
        said_shared=shared is not None,
        shared_price=None if shared is None else shared["time_lost_us_per_step"] / 1e3,
        delivering=delivering_share(document),
        right_link=any(
            one["cause"] == "communication" and not set(ranks_of_link(document)).isdisjoint(one["ranks"])
            for one in findings
        ),
        delayed=_delayed(document),
        is_cleared=answer["verdict"] == "no_straggler"
        or (
            answer["verdict"] == "job_wide"
            and answer["findings"][0]["cause"] == "contention"
            and _delayed(document) >= LACKS_CORES
        ),
        names_largest=answer.get("names_largest"),
    )


def mean_excess(document: dict[str, Any], rank: int, first: int = 0) -> float:
    """How much more of the step the rank took for itself than the median of its peers, in the mean over steps."""
    mine = _own(document, rank)[first:]
    others = [[scale * own for own in _own(document, at)[first:]] for at, scale in compared(document, rank).items()]
    apart = [own - median(other[at] for other in others) for at, own in enumerate(mine)]
    return sum(apart) / len(apart) / median_step_ns(document, first)


def chores_share(document: dict[str, Any]) -> float:
    """Return the share of the steps that chores took, where they are all that a take has; else 1."""
    if not {fault["kind"] for fault in document["take"]["faults"]} <= set(CHORES):
        return 1.0
    steps = document["ranks"][0]["steps"]
    spent = sum(one["injected_wall_ns"] for one in steps)
    return float(spent / sum(one["end_ns"] - one["begin_ns"] for one in steps))


def steps_hit(document: dict[str, Any], rank: int, first: int = 0) -> int:
    """In how many steps from `first` on the rank was at fault: slept or was stopped, where that comes now and then."""
    steps = step_parts(document, rank)[first:]
    kinds = {fault["kind"] for fault in document["take"]["faults"] if rank in fault["ranks"]}
    least = SHORTEST * median_step_ns(document, first)
    if kinds and kinds <= set(CHORES):
        return sum(step["injected_wall_ns"] > least for step in document["ranks"][rank]["steps"])
    if not kinds or not kinds <= {"sleep", "sigstop"}:
        return len(steps)
    return sum(parts.asleep + parts.stopped > least for parts in steps)


def _own(document: dict[str, Any], rank: int) -> list[float]:
    spells = [spell for stop in document["stops"] if rank in stop["ranks"] for spell in stop["spells"]]
    return [float(parts_of(step, spells).own) for step in document["ranks"][rank]["steps"]]


def _kind(faults: set[str], count: int) -> str:
    if not count:
        return "healthy"
    if faults <= SHARED.keys():
        return "shared"
    if faults == {"slow_link"}:
        return "link"
    return "fault" if count == 1 else "two"


def _delayed(document: dict[str, Any]) -> float:
    lengths = median_step_ns(document)
    delays = [step["delay_ns"] for rank in document["ranks"] for step in rank["steps"]]
    return sum(delays) / len(delays) / lengths
