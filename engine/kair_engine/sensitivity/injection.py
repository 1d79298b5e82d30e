"""The faults that `kair sensitivity` puts on one rank of a recording, and whether stage 1 finds them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.localize.detect import detect
from kair_engine.localize.excess import CLASSES
from kair_engine.localize.excess_table import ExcessTable, OperatorTable
from kair_engine.results.sensitivity import InjectedFault
from kair_engine.stats import median

COMPUTE, INPUT, HOST = (CLASSES.index(name) for name in ("compute", "input", "host"))
STALL_LENGTH = 0.25
"""Of the step: how long an injected stall lasts."""


@dataclass(frozen=True)
class RankFault:
    """A lasting fault of one rank: what size 1 of it adds per step, to a class and to operators of it."""

    fault: InjectedFault
    row: int
    """Of CLASSES."""
    added_ns: Floats
    """Per rank; 0 where it cannot have the fault."""
    operators: Mapping[str, Floats]
    own_ns: Floats | None = None
    """Per rank, what it spends on this anyway; None where a ratio to it says nothing."""
    operator: str | None = None
    """The one operator that is slow."""


def rank_faults(table: ExcessTable) -> tuple[RankFault, ...]:
    """Sizes are in units of the rank's self time (device, operator) or in ns per step (input, host)."""
    own, anyone = table.work_ns, np.ones(len(table.role))
    compute = {name: one.typical_ns for name, one in table.of_operator.items() if not one.fetches}
    most = max(compute, key=lambda name: float(compute[name].sum()), default=None)
    only = {} if most is None else {most: compute[most]}
    slowed = only.get(most or "", 0 * anyone)
    fetches = {name: float(one.typical_ns.sum()) for name, one in table.of_operator.items() if one.fetches}
    fetch = max(fetches, key=lambda name: fetches[name], default=None)
    fetching = anyone * (own[INPUT] > 0)
    return (
        RankFault("slow_device", COMPUTE, own[COMPUTE], compute, own[COMPUTE]),
        RankFault("slow_operator", COMPUTE, slowed, only, slowed, most),
        RankFault("slow_input", INPUT, fetching, {} if fetch is None else {fetch: fetching}, own[INPUT]),
        RankFault("slow_host", HOST, anyone, {}),
    )


def with_slow_rank(table: ExcessTable, fault: RankFault, rank: int, size: float) -> ExcessTable:
    """The recording with that fault on one rank in every step, and everybody waiting for it."""
    members = np.flatnonzero(table.role == table.role[rank])
    every, more_ns = np.arange(len(table.by_step_ns)), size * float(fault.added_ns[rank])
    excess = table.by_step_ns.copy()
    excess[:, fault.row] = _slower(excess[:, fault.row], members, rank, every, more_ns)
    of_operator = dict(table.of_operator)
    for name, added in fault.operators.items():
        one = of_operator[name]
        slower = _slower(one.excess_ns, members, rank, every, size * float(added[rank]))
        of_operator[name] = OperatorTable(one.fetches, slower, one.typical_ns)
    return replace(table, by_step_ns=excess, step_times_ns=table.step_times_ns + more_ns, of_operator=of_operator)


def with_stalls(table: ExcessTable, rank: int, steps: Ints) -> ExcessTable:
    """The recording with one rank's host standing still in those steps, and everybody waiting for it."""
    members = np.flatnonzero(table.role == table.role[rank])
    excess, times = table.by_step_ns.copy(), table.step_times_ns.copy()
    length = STALL_LENGTH * times[steps]
    excess[:, HOST] = _slower(excess[:, HOST], members, rank, steps, length)
    times[steps] += length
    return replace(table, by_step_ns=excess, step_times_ns=times)


def finds(table: ExcessTable, rank: int, row: int) -> bool:
    """Whether stage 1 accuses that rank, alone, of that class of operations, in some steps or in all."""
    found = detect(table, sought=rank, onsets=False).anomalies
    return any(one.positions == (rank,) and one.class_index == row for one in found)


def _slower(values: Floats, members: Ints, rank: int, steps: Ints, more_ns: Floats | float) -> Floats:
    """Excesses (steps × ranks) with a rank slower in some steps, about its role's new median.

    Of many ranks that hardly moves; of two it lies halfway between them, so that half of the fault shows on either.
    """
    result = values.copy()
    result[steps, rank] += more_ns
    moved = median(result[:, members]) - median(values[:, members])
    result[:, members] -= moved[:, None]
    return result
