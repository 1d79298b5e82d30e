"""Scenarios: which operations of which ranks are replaced by their peers' ideal, or scaled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kair_engine.arrays import NONE, Bools, Floats, Ints
from kair_engine.whatif.execution_model import ExecutionModel
from kair_engine.whatif.fixes import KINDS, Fix


@dataclass(frozen=True)
class Places:
    """What is known of the ranks by number."""

    host: Mapping[int, str]
    role: Mapping[int, str]


def changed(
    model: ExecutionModel, fixes: Sequence[Fix], ideal_ns: Floats, names: Mapping[int, str], places: Places
) -> tuple[Ints, Floats]:
    """(nodes, by how much their durations change, in ns) when all of `fixes` are made; nodes can occur repeatedly.

    Of communication all members are changed, if one is.
    """
    parts = model.parts
    value = parts.value_ns
    for fix in fixes:
        chosen = _matched(model, fix, names, places)
        if fix.scale is not None:
            if "host" not in fix.kinds:
                chosen &= parts.own
            value = np.where(chosen, value * fix.scale, value)
        else:
            value = np.where(chosen, np.minimum(value, ideal_ns), value)
    different = np.flatnonzero(value != parts.value_ns)
    return parts.node[different], value[different] - parts.value_ns[different]


def _matched(model: ExecutionModel, fix: Fix, names: Mapping[int, str], places: Places) -> Bools:
    parts = model.parts
    chosen = np.asarray(parts.kind != NONE)
    if fix.kinds:
        kinds = {*fix.kinds, "gc"} if "host" in fix.kinds else set(fix.kinds)
        chosen &= np.isin(parts.kind, [KINDS.index(kind) for kind in kinds])
    if fix.operators:
        codes = [code for code, name in names.items() if fix.named(name)]
        chosen &= np.isin(parts.name, codes)
    if fix.ranks or fix.hosts or fix.stages:
        chosen &= np.concatenate([_of_ranks(ranks, fix, places) for ranks in model.ranks])[_cell(model)]
        group = model.graph.group[parts.node]
        transfers = parts.own & (group != NONE)
        chosen |= transfers & np.isin(group, np.unique(group[chosen & transfers]))
    return chosen


def _cell(model: ExecutionModel) -> Ints:
    """Per part the place of its rank among the ranks of all steps."""
    first = np.cumsum([0, *(len(ranks) for ranks in model.ranks)])
    return np.asarray(first[model.parts.step] + model.parts.rank)


def _of_ranks(ranks: Ints, fix: Fix, places: Places) -> Bools:
    def named(rank: int) -> bool:
        role = places.role.get(rank, "")
        return (
            (not fix.ranks or rank in fix.ranks)
            and (not fix.hosts or places.host.get(rank) in fix.hosts)
            and (not fix.stages or role in {f"stage {stage}" for stage in fix.stages})
        )

    return np.array([named(rank) for rank in ranks.tolist()], dtype=bool)
