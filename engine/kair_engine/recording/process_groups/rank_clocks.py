"""Ranks put on one clock by the collectives whose process groups are known."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kair_engine.recording.process_groups.exit_times import Visits
from kair_engine.recording.process_groups.families import Family, as_columns


def aligned(visits: Sequence[Visits], decided: Sequence[tuple[Visits, Family]]) -> list[Visits]:
    """`visits` on one clock for all ranks that the groups of `decided` connect: members leave a collective together."""
    ahead: dict[int, dict[int, list[float]]] = {}
    resolution = 0.0
    for one, family in decided:
        first, second = pairs = as_columns(family.pairs(one.ranks))
        for here, there, clocks in zip(first.tolist(), second.tolist(), one.clock[pairs].T.tolist(), strict=True):
            difference = one.end_ns[:, here] - one.end_ns[:, there]
            if clocks[0] == clocks[1] or np.isnan(difference).all():
                continue
            usual = float(np.nanmedian(difference))
            resolution = max(resolution, float(np.nanmedian(np.abs(difference - usual))))
            ahead.setdefault(clocks[0], {}).setdefault(clocks[1], []).append(usual)
            ahead.setdefault(clocks[1], {}).setdefault(clocks[0], []).append(-usual)
    reference, offset = _offsets(ahead)
    return [_moved(one, reference, offset, resolution) for one in visits]


def _offsets(ahead: dict[int, dict[int, list[float]]]) -> tuple[dict[int, int], dict[int, float]]:
    """Per clock the one it is compared with, directly or over others, and how far it is ahead of that."""
    reference: dict[int, int] = {}
    offset: dict[int, float] = {}
    for root in sorted(ahead):
        if root in reference:
            continue
        reference[root], offset[root] = root, 0.0
        waiting = [root]
        for clock in waiting:
            for other, differences in ahead[clock].items():
                if other not in reference:
                    reference[other] = root
                    offset[other] = offset[clock] - float(np.median(differences))
                    waiting.append(other)
    return reference, offset


def _moved(visits: Visits, reference: dict[int, int], offset: dict[int, float], resolution: float) -> Visits:
    clocks = visits.clock.tolist()
    shift = np.array([offset.get(clock, 0.0) for clock in clocks])
    clock = np.array([reference.get(clock, clock) for clock in clocks], dtype=np.int64)
    return replace(
        visits,
        clock=clock,
        start_ns=visits.start_ns - shift,
        end_ns=visits.end_ns - shift,
        resolution_ns=max(resolution, visits.resolution_ns),
    )
