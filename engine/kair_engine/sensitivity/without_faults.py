"""The healthy job within a recording: what stands out is taken out, so that other faults can be put in."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kair_engine.arrays import Floats, Ints
from kair_engine.localize.anomalies import Anomaly
from kair_engine.localize.excess import CLASSES
from kair_engine.localize.excess_table import ExcessTable, OperatorTable
from kair_engine.localize.large_delays import counted
from kair_engine.stats import TRIM, trimmed_mean


def without_faults(table: ExcessTable, found: Sequence[Anomaly]) -> ExcessTable:
    """The job without what the anomalies are about.

    Of a rank that is slow in all steps its class, and its operators of that class, come down to the mean of its
    role's other ranks; steps in which a rank stalled get what is usual for it in the others.
    """
    return _without_stalls(_without_lasting(table, found), found)


def _without_lasting(table: ExcessTable, found: Sequence[Anomaly]) -> ExcessTable:
    steady = [one for one in found if one.kind != "intermittent"]
    slow = np.isin(np.arange(len(table.role)), [rank for one in steady for rank in one.positions])
    excess, work = table.by_step_ns.copy(), table.work_ns.copy()
    operators = {name: one.excess_ns.copy() for name, one in table.of_operator.items()}
    for rank, row in sorted({(rank, one.class_index) for one in steady for rank in one.positions}):
        peers = np.flatnonzero((table.role == table.role[rank]) & ~slow)
        if not len(peers):
            continue
        work[row, rank] -= _above(excess[:, row], rank, peers)
        excess[:, row, rank] -= _above(excess[:, row], rank, peers)
        for name, values in operators.items():
            if row == CLASSES.index("input" if table.operators[name] else "compute"):
                values[:, rank] -= _above(values, rank, peers)
    return _with(replace(table, work_ns=work), excess, operators)


def _without_stalls(table: ExcessTable, found: Sequence[Anomaly]) -> ExcessTable:
    hit = counted(table)
    excess = table.by_step_ns.copy()
    operators = {name: one.excess_ns.copy() for name, one in table.of_operator.items()}
    for rank in sorted({rank for one in found if one.kind == "intermittent" for rank in one.positions}):
        stalled = hit[:, rank]
        if stalled.any() and not stalled.all():
            excess[stalled, :, rank] = np.median(excess[~stalled, :, rank], axis=0)
            for values in operators.values():
                values[stalled, rank] = np.median(values[~stalled, rank])
    return _with(table, excess, operators)


def _above(values: Floats, rank: int, peers: Ints) -> float:
    """How far one rank's mean of `values` (steps × ranks) lies above its peers'."""
    mean = trimmed_mean(values, TRIM, axis=0)
    return float(mean[rank] - mean[peers].mean())


def _with(table: ExcessTable, by_step_ns: Floats, operators: dict[str, Floats]) -> ExcessTable:
    of_operator = {
        name: OperatorTable(one.fetches, operators[name], one.typical_ns) for name, one in table.of_operator.items()
    }
    return replace(table, by_step_ns=by_step_ns, of_operator=of_operator)
